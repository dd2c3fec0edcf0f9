"""Settings of namespaces, logs, writers and readers: upstream's keys."""
