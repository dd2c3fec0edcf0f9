"""Settings of the storage floor: one module for each of those who have some, and one for the file that a node reads."""
