"""Cold files back: into ledgers of a log that is there, or as a log whose metadata is gone.

    returning        a unit's segments as ledgers again, in the log's list
    staged_ledgers   ledgers that are being written, listed so that nothing is orphaned
    checking         a file looked through: everything that it says of itself, against its bytes
    choosing         which files make a log: the runs that follow each other without overlap
    rebuilding       a log whose units point at the very files

What cannot be restored is said in docs/cold/restoring.md: producers' numbers, sinks' marks, subscribers.
"""
