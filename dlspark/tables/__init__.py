"""Schemas that logs own: what columns a record has, how that may change, and how rows become bytes and back.

1. `types` has the types of columns, schemas and their JSON, which is Iceberg's.
2. `evolution` says how a schema may become another one.
3. `json_encoding`, `avro_encoding` and `arrow_encoding` make records of rows, and the modules of decoding beside them
   rows of records; `resolution` says which field of a record is which column where records say their schema.

Nothing here knows Spark.
"""
