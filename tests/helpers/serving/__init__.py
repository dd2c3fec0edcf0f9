"""Proxies and thin clients in one process, models of them, values that travel, and the rounds of faults on them."""
