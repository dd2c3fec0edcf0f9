"""Clusters and metadata servers: in memory, on virtual time, or as processes that start quickly."""
