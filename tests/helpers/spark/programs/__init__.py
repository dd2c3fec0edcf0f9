"""Programs with a Spark session of their own, which tests start, kill and start again."""
