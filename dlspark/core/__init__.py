"""Logs: written, read, truncated and deleted by programs, without Spark or proxies.

namespace, log     `AsyncNamespace` and `AsyncLog`, where every program begins; sync: the same for threads
writing, reading   writers and readers; write_lock: what keeps a log to one writer
lifecycle          recovery of segments, truncation, retention, deletion
typed              what a log declares of its records, and its records as tables
codec              records, entries and positions as bytes and columns
settings, dynamic  what may be set, and what changes while logs are open
administration, display, metrics    repairs; what people see; what is measured
opening, services, binding, runtime    how a namespace is opened, and what is shared in it
append_stream      a log as a stream of bytes
"""
