"""The ground on which a node's files rest; nothing here knows a ledger.

system_disk   `SystemDisk`: files of a real Linux file system, and the few threads that long calls run on
resources     space and file descriptors: how much there is, and how a lack of them differs from a failing disk
records       the one format in which entries and facts about ledgers lie in memory, journal and entry log; slabs, the
              pooled memory that an entry is copied into once
cookies       the check at start that a node's id, directories and metadata belong together
"""
