"""What tests of the Spark connector share: clusters and logs behind it, drivers without Spark, and programs with it."""
