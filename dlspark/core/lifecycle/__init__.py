"""The end of segments: truncation, retention, deletion, and the state of a log."""
