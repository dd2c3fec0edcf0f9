"""What operators change while logs are open: settings by stream, and features."""
