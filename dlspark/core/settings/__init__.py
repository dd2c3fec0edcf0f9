"""Settings of namespaces, logs, writers and readers: upstream's keys, with their defaults and bounds.

cluster            the sessions with ZooKeeper, federation, what is kept in the metadata store
writing            writers, segments, and how long segments are kept
reading            readers, but for the bytes that they read ahead (`dlspark.core.reading.read_ahead`)
operations         what is measured, warned of and traced
log_setting        what is known of a key besides: whether one log may override it
settings           all of them together: `Settings`
"""
