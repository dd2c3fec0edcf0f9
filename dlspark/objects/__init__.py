"""Object stores: whole files that never change, and ranges of them, in a folder, on S3 or HDFS. They know no log."""
