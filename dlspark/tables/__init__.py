"""Schemas that logs own: what columns a record has, how that may change, and how rows become bytes and back.

1. `types` has the types of columns, schemas and their JSON, which is Iceberg's.
2. `evolution` says how a schema may become another one.

Nothing here knows Spark.
"""
