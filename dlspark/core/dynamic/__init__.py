"""Files that operators change while logs are open: dynamic settings by stream, and feature switches."""
