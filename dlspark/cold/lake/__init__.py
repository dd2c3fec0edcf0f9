"""Lake tables: the very same cold files as an Iceberg or Delta table, which any engine reads (docs/lake-tables.md).

    syncing       what is cold by now goes into the tables; what leaves cold storage leaves them before
    opening       opens the table of a declaration
    iceberg, iceberg_files, delta      the two kinds, each behind its extra
    planning      which files a table lacks, and which it must give up: no I/O
    columns       the columns that a table has, by what its logs declare: no I/O

The log comes first: readers of the log never look at a table, and a table that somebody changes is reported, not
fought. Every commit depends on the table's head that the units were read *after*, and carries how far each log has
come. So a commit whose answer was lost is decided by loading the table again, and a file is in it once, however often
that happens.
"""
