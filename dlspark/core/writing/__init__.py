"""Writers: ownership, segments one after the other, and the ledgers they are given."""
