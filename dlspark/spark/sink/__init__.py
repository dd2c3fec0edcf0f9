"""Writing with Spark, exactly once: staging in tasks, publishing on the driver, sweeping what failed."""
