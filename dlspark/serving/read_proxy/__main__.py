"""`python -m dlspark.serving.read_proxy`: one read proxy, until SIGTERM or SIGINT (`process.run`)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

from dlspark.serving.process.run import listening_values, program_parser, run_program
from dlspark.serving.read_proxy.proxy import ReadProxy
from dlspark.serving.read_proxy.settings import PAGE, ReadProxySettings
from metadata.foundation.settings import values_given

NAME: Final = "read proxy"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a proxy as the command line says; return the exit status."""
    parser = program_parser("dlspark.serving.read_proxy", "Run one read proxy of a namespace.", keys=PAGE)
    options = parser.parse_args(arguments)
    return run_read_proxy(options.uri, options.conf, options.set, insecure_listen=options.insecure_listen)


def run_read_proxy(
    uri: str | None, conf: str | os.PathLike[str] | None, values: Sequence[str], *, insecure_listen: bool = False
) -> int:
    """Run a proxy until a signal ends it; return the exit status. `values`: settings over the file's, `key=value`."""

    def make() -> ReadProxy:
        given = {**values_given(values), **listening_values(insecure_listen=insecure_listen)}
        return ReadProxy(uri, ReadProxySettings.from_properties(conf, given))

    return run_program(make, NAME)


if __name__ == "__main__":
    sys.exit(main())
