"""The format of cold files: Parquet that any engine reads, from which entries come back as a ledger gave them.

    columns          which columns a file has, and their field ids
    digests          what is computed over records, whatever file or ledger they are in
    entry_table      how many slots and records each entry has
    group_index      what each row group holds, and all entry tables
    seal, checksums  by what damage anywhere in a file is found
    footer           what a file says of itself, read from its last bytes
    typed_columns    records as columns of their declared schema, and back into the very bytes
    pieces, sink     small parts of a row group; what Parquet's writer writes to
    segment_entries  a segment while it is written, and whether all of it came
    writing          stored entries into a file
    fetched, pages   parts of a file as a file; which page of a chunk is damaged
    row_groups       fetched bytes of a row group, checked, as columns or as records
    entries          records as the entries they were in
    large_entries    entries that would come back too large
    verifying        every byte of a file against all that is said of it

docs/reference/cold-files.md has the format. Nothing here does I/O, and nothing here knows a namespace or a log.
"""
