"""The connector's options: `registry` has all there are, `query_options` reads those of one query."""
