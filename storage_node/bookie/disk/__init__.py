"""What a node's files rest on; nothing here knows a ledger.

system_disk   `SystemDisk`: files of a real Linux file system, and the few threads that long calls run on
space         how a full disk differs from a failing one; which directories have how much space
descriptors   how many file descriptors there may be, and what is left of them for clients
slabs         the pooled, page-aligned memory that an entry is copied into once
records       the one format in which entries and facts about ledgers lie in memory, journal and entry log
cookies       the check at start that a node's id, directories and metadata belong together
"""
