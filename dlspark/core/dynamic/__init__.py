"""What operators change in files while logs are open: dynamic settings by stream, and feature switches."""
