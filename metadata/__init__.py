"""The metadata store of dlspark: ZooKeeper sessions and what is kept there."""

BELONGS_TO = "dlspark"  # `import dlspark` looks for this line: another package of the name may be before this one
