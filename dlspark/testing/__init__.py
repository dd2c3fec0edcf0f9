"""Helpers for tests of programs that use dlspark: a cluster in the process, and the real Java software."""
