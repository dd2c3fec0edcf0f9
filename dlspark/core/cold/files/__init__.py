"""The format of cold files: Parquet that any engine reads, from which entries come back as a ledger gave them.

    columns        which columns a file has, and their field ids
    digests        what is computed over records, whatever file or ledger they are in
    checksums      CRC-32 of the parts of a file from those of its beginnings
    entry_table    how many slots and records each entry has
    footer         what a file says of itself, read from its last bytes
    writing        stored entries into a file
    typed_columns  records as columns of their declared schema, and back into the very bytes
    row_groups     fetched bytes of a row group, checked, as columns or as records
    entries        records as the entries they were in
    verifying      every byte of a file against all that is said of it

docs/reference/cold-files.md is the specification. Nothing here does I/O, and nothing here knows a namespace or a log.
"""
