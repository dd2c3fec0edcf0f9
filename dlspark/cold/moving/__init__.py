"""The mover: copies completed segments into files, takes hot copies away, and at last the files themselves.

settings_of_logs, daemon    which logs of a namespace have cold storage, and who works at them
worker                      one log, under its lock: what is due, step by step
copying, verifying          ledgers into one file; the file read back
sweeping, auditing          what no mark names; whether everything that marks name is there
planning, machine           what is next, and what follows from what: pure
"""
