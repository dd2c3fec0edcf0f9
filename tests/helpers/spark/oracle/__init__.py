"""Random queries, each asked of a log and of Parquet files with the same rows."""
