"""Runs by seed, one or many, and rounds of failover."""
