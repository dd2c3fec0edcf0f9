"""Java's bookies, client and log library beside ours, for the tests in tests/interop."""
