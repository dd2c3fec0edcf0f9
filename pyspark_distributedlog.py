"""Found by Spark's lookup of `pyspark_*` modules: makes `format("distributedlog")` work without registration."""
