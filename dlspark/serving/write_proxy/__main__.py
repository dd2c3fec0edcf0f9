"""`python -m dlspark.serving.write_proxy`: one write proxy, until SIGTERM or SIGINT (`process.run`).

The first signal ends it in order: it hands its streams over to the others. After a second one, which ends it at once,
its streams are free when its session with ZooKeeper ends.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dlspark.serving.process.run import listening_values, program_parser, run_program
from dlspark.serving.write_proxy.proxy import ProxyRole, WriteProxy
from dlspark.serving.write_proxy.settings import read_configuration, with_stream_files
from metadata.foundation.settings import Value, values_given

NAME: Final = "write proxy"
LOAD_APPRAISERS: Final = ("equal", "measured")


@dataclass(frozen=True, slots=True)
class Flags:
    """Settings that have options of their own, which go over `--set`. None: not given."""

    port: int | None = None
    grpc_port: int | None = None
    stats_port: int | None = None
    shard: int | None = None
    insecure_listen: bool = False

    def values(self) -> dict[str, Value]:
        """Return those that are given, by key."""
        flags = {
            "server_port": self.port,
            "server_grpc_port": self.grpc_port,
            "server_stats_port": self.stats_port,
            "server_shard": self.shard,
        }
        given: dict[str, Value] = {key: value for key, value in flags.items() if value is not None}
        return {**given, **listening_values(insecure_listen=self.insecure_listen)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a proxy as the command line says; return the exit status."""
    options = _parser().parse_args(arguments)
    return run_write_proxy(
        options.uri,
        options.conf,
        options.set,
        Flags(options.port, options.grpc_port, options.stats_port, options.shard, options.insecure_listen),
        ProxyRole(options.announce, options.load_appraiser == "measured"),
        options.stream_conf,
    )


def _parser() -> argparse.ArgumentParser:
    parser = program_parser(
        "dlspark.serving.write_proxy", "Run one write proxy of a namespace.", keys="conf/write_proxy.conf"
    )
    parser.add_argument("--stream-conf", type=Path, metavar="DIR", help="directory of <stream>.conf files")
    parser.add_argument("-p", "--port", type=int, help="server_port: the port for frames, 0 for any")
    parser.add_argument("--grpc-port", type=int, help="server_grpc_port: the port for gRPC, 0 for any, -1 for none")
    parser.add_argument(
        "--stats-port",
        type=int,
        help="server_stats_port: the port of the page with health and metrics, 0 for any, -1 for none",
    )
    parser.add_argument("--shard", type=int, help="server_shard: the number of this proxy among all; 0 leads placement")
    parser.add_argument("--no-announce", dest="announce", action="store_false", help="be no member of the tier")
    parser.add_argument(
        "--load-appraiser",
        choices=LOAD_APPRAISERS,
        default=LOAD_APPRAISERS[0],
        help="how the leader weighs streams: all alike, or by the bytes that they take",
    )
    return parser


def run_write_proxy(
    uri: str | None,
    conf: str | os.PathLike[str] | None,
    values: Sequence[str],
    flags: Flags,
    role: ProxyRole,
    stream_conf: Path | None = None,
) -> int:
    """Run a proxy until a signal ends it, or it fails; return the exit status.

    `values`: settings over the file's, `key=value`. `stream_conf`: the directory of the streams' own files.
    """

    def make() -> WriteProxy:
        configuration = read_configuration(conf, {**values_given(values), **flags.values()})
        if stream_conf is not None:
            configuration = with_stream_files(configuration, stream_conf)
        return WriteProxy(uri, configuration, role)

    return run_program(make, NAME)


if __name__ == "__main__":
    sys.exit(main())
