"""Makes a record durable before it is answered (I1); read again only at start.

journals   all journals of a node as one; which of them takes a ledger's records
writer     `Journal`: group commit without a timer, one journal's batches on their way to the disk
files      the bytes of files and batches; files written before use, and used again
replay     reading a journal at start: every record behind the checkpoint's mark, or a refusal
"""
