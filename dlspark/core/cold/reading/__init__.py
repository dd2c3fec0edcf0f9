"""A cold segment as entries, as a ledger gives them: what readers of logs, proxies and Spark's tasks go on in.

    ColdFiles        the stores and files that an event loop reads, and what of them is kept in memory
    ColdFileReader   one file: its footer, and row groups fetched ahead of whoever reads
    ColdLedger       one segment of a file, with the calls of a closed ledger's reader
    ColdLocation     where a segment's entries are: it travels to Spark's tasks

Nothing here knows a namespace, a log or a metadata store. pyarrow.parquet and the libraries of stores are loaded where
the first file is opened, not before.
"""
