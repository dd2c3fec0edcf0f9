"""Schemas that logs own: what columns a record has, how that may change, and how rows become bytes and back.

1. `types` has the types of columns, schemas and their JSON, which is Iceberg's; `arrow_types` has them in Arrow.
2. `evolution` says how a schema may become another one; `declaration` is all that a log says of its records.
3. `codecs` makes records of rows and rows of records, whichever format the log declares. `json_encoding`,
   `avro_encoding` and `arrow_encoding` do it for each format, and the modules of decoding beside them; `resolution`
   says which field of a record is which column where records say their schema.
4. `typed_rows` adds where each row's record is and why one does not fit: what readers hand out.

This room lies below the core: a log's handles declare schemas, write tables and read them. Nothing here does I/O, and
nothing here knows Spark.
"""
