"""BookKeeper's wire protocol and its rules, without I/O (docs/reference/wire.md).

frames, wire, schema, layouts    bytes: frames, protobuf's wire format, the catalogue of messages, the hot ones
values, encoding, decoding, v2, adds    requests and answers as values; to bytes and back, in both versions
digests, striping  what proves an entry; where entries lie, and whose answers are enough
writing, writing_model, writing_progress, writing_errors    the writer of a ledger as a machine
recovery           recovery of a ledger as a machine, and how many entries it reads at a time
reading            reads as machines
tables             a machine's table as text
"""
