"""The streams on a write proxy: their logs and requests, their limits, and their hand-over to other proxies."""
