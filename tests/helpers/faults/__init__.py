"""Clusters of processes on hosts that fail: the faults, programs that write under them, and the judge of both."""
