"""The streams on a write proxy: each one's log and requests, its limits, and how it is handed over."""
