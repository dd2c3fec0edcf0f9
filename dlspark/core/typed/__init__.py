"""Logs that declare what their records are: the declaration of one, and its records as tables.

    declarations.py    `Declarations`: what a log declares is read, made, changed and withdrawn
    table_writes.py    tables of a program become records, by the declaration that the log has now
    table_reads.py     records become tables, by the version that the reader began with

What records and rows are to each other is in `dlspark.tables`, which does no I/O.
"""
