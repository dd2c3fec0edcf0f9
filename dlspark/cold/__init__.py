"""Cold storage: the past of a log as columnar files in a folder, an object store or HDFS, which any engine reads.

Rooms, each importing only those below it:

    lake, restoring, redaction, commands    what is made of cold files, and what people do with them
    moving                                  copies segments into files, and takes hot copies and old files away
    (dlspark.core: namespaces, logs, readers)
    reading                                 a cold segment as entries, as a ledger gives them
    files                                   the format: Parquet with positions, digests and an index
    objects                                 where files lie: local, S3, HDFS

`objects`, `files` and `reading` know no namespace and no log, so that the core's readers can go on into them.
"""
