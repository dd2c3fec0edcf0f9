"""Readers: positions in a log, what is read ahead, and readers that keep their place."""
