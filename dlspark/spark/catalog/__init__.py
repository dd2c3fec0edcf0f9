"""The SQL catalog: logs as tables of Spark SQL. Its Java part (jvm-shim) asks, and what is here answers.

`enabling` switches it on in a running session. `tables` has what a table's properties may say, and the handle that
carries them to each read and write. `requests` answers the questions of the Java part: `creation` checks what
`CREATE TABLE` may say, `declared_columns` and `column_defaults` make a log's schema of its columns and a table of a
schema, `scan` turns what the planner pushed down into one read, and says what is known without it.
"""
