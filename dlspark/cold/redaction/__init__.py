"""Erasing records from cold files: what a person has a right to, and what an object that never changes makes hard.

    selection    which records are meant: a condition, positions, a time
    rewriting    a file anew without them, read back before anything names it
    erasing      a log's files, one after the other, each swapped by one conditional step

An erased record keeps its place: position, transaction id and sequence id stay, its payload and columns are gone.
docs/cold/erasing.md says how readers see it, and where copies may be left.
"""
