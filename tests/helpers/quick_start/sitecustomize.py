"""Python processes that Spark starts take `pyspark` from where it is installed, and not from Spark's pyspark.zip.

Spark puts python/lib/pyspark.zip first on their path. It has the same modules, which Python compiles anew in every
process, as a zip file has no place for what was compiled: more than a second each, and a query needs four of them.

Python imports this module as it starts, since tests/conftest.py has put this folder on PYTHONPATH.
"""

import sys

_LIBRARIES = "/pyspark/python/lib/"
_PLACES = {entry.partition(_LIBRARIES)[0] for entry in sys.path if entry.endswith(_LIBRARIES + "pyspark.zip")}
if _PLACES and set(sys.path) >= _PLACES:
    sys.path[:] = [entry for entry in sys.path if _LIBRARIES not in entry and not entry.endswith(".jar")]
