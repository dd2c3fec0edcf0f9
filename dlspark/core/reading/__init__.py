"""Readers of a log, and positions in it.

The way of a record, from a bookie to a program:

    beginnings.py         a reader begins where it asks to, or at the first position that truncation has left
    segment_list.py       which segments there are; a watch says when that changes
    segment_follower.py   one segment's entries are fetched, until its ledger is closed
    read_ahead.py         segment after segment, ahead of the reader, up to a limit
    reader.py             entries are decoded and delivered, one by one or as columns, after reader_checks.py
    decoded_records.py    records that wait to be delivered, here or in another thread

A reader that is the only one has a lock (locked_reader.py), and may store how far it came (subscriptions.py). Questions
about positions (positions.py) are answered from metadata and by reading few entries (segments.py).
"""
