"""Segments as columnar files, below the core's readers: what a file is (`files`), and a file's segment as a reader's
ledger (`reading`). Knows no namespace, log or metadata store; `dlspark.cold` makes the files.
"""
