"""The mover: copies completed segments into files, takes hot copies away, and at last the files themselves.

daemon                  all logs of a namespace that have cold storage, while logs come and go
log_mover               one log, under its worker's lock: what is due, step by step
unit_steps              what the machine asks for, carried out for one unit
planning, machine       what is next, and what follows from what: no I/O
pictures                what of a log has to be read for that
copying, verifying      ledgers into one file, which is read back; a file looked through
sweeping, auditing      what no mark names goes; whether everything that marks name is there
stores, folders, clocks where objects lie, and how old they are
"""
