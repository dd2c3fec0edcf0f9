"""Tables of what a namespace knows of itself: logs, segments, ledgers, bookies, cursors, sinks."""
