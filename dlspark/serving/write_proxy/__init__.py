"""A write proxy: many clients write one log through its one owner."""
