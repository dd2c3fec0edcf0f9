"""A log's one writer: it owns the log, writes its segments one after the other, and answers each record.

The way of a record, from a program to a bookie and back:

    writer.py             a program's call makes a write (`proxy_writes.py`: a proxy's, for many callers at a time)
    write_kinds.py        the write checks itself; many records are one write over a `RecordRun` (record_runs.py)
    issuing.py            it is issued, or queued while a segment begins (write_queue.py, with the limits)
    segment_writer.py     records fill an entry, which is sent when it is full, or when send_timing.py says so
    storage_node/client/  the ledger's writer sends it to bookies, and hears when it is stored
    acknowledgements.py   the entry's outcome becomes that of its records, in their order
    failures.py           what becomes of the writer, and of records that nobody waited for

Requests that are written once at most, and only on a condition, take the same way (conditional_appends.py); what may
follow what, producers.py knows, and a new owner learns from the log (producer_recovery.py, segment_ends.py).

Segments: segment_sequence.py begins, rolls and ends them, recovery.py gives an end to those of a dead owner, and each
change is a transaction (transitions.py, transactions.py). Ledgers may be made in advance (ledger_allocators.py).
"""
