"""A node as one process.

bookie      `Bookie`: start, read-only mode, failure and stop
identity    what it is called, and what it learns from the process that was this node before
endpoints   what it shows over HTTP, metrics among them
"""
