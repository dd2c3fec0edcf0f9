"""The ground on which the real code runs: event loop, network, disk and metadata store, all on virtual time."""
