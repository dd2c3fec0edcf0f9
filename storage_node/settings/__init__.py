"""Settings of the storage floor: one module for each of those who have some, and `files`: read, written, generated."""
