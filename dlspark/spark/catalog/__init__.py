"""The SQL catalog: switching it on, and the answers to what its Java part asks."""
