"""What the real code runs on: event loop, network, disk and metadata store, all on virtual time."""
