"""`python -m storage_node.bookie.tools TOOL --conf FILE ...`; `dlspark bookie` has the same tools."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from metadata.foundation.errors import DistributedLogError
from storage_node.bookie.tools import commands
from storage_node.bookie.tools.commands import ToolReport

DECOMMISSION_TIMEOUT_S = 3600.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a tool; returns the exit status."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    try:
        report = _run(options)
    except (DistributedLogError, OSError) as error:
        print(f"{options.tool}: {error}", file=sys.stderr)
        return 1
    print(report.text(options.output))
    return report.status


def _run(options: argparse.Namespace) -> ToolReport:
    conf: Path = options.conf
    if options.tool == "status":
        return commands.status(conf)
    if options.tool == "list-ledgers":
        return commands.list_ledgers(conf)
    if options.tool == "read-entry":
        return commands.read_entry(conf, options.ledger, options.entry)
    if options.tool == "verify":
        return commands.verify(conf)
    if options.tool == "rebuild-index":
        return commands.rebuild_index(conf)
    if options.tool == "format":
        return commands.format_node(conf, _ask, force=options.force, delete_cookie=options.delete_cookie)
    if options.tool == "limbo":
        return commands.limbo(conf, clear=options.clear, mark=options.mark)
    if options.tool == "decommission":
        return commands.decommission(conf, options.bookie_id, options.timeout, _say)
    if options.action == "list":
        return commands.cookie_list(conf)
    if options.action == "show":
        return commands.cookie_show(conf, options.bookie_id)
    return commands.cookie_delete(conf, options.bookie_id, force=options.force)


def _ask(question: str) -> bool:
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--conf", required=True, type=Path, help="the node's properties file")
    common.add_argument("--output", choices=("text", "json"), default="text")
    parser = argparse.ArgumentParser(prog="python -m storage_node.bookie.tools", description=__doc__)
    tools = parser.add_subparsers(dest="tool", required=True)

    def tool(name: str, help_text: str | None) -> argparse.ArgumentParser:
        return tools.add_parser(name, help=help_text, parents=[common])

    tool("status", commands.status.__doc__)
    tool("list-ledgers", commands.list_ledgers.__doc__)
    entry = tool("read-entry", commands.read_entry.__doc__)
    entry.add_argument("ledger", type=int)
    entry.add_argument("entry", type=int, help="-1: the last one")
    tool("verify", commands.verify.__doc__)
    tool("rebuild-index", commands.rebuild_index.__doc__)
    formatting = tool("format", commands.format_node.__doc__)
    formatting.add_argument("--force", action="store_true", help="do not ask")
    formatting.add_argument("--delete-cookie", action="store_true", help="remove the cookie in metadata too")
    limbo = tool("limbo", commands.limbo.__doc__)
    limbo.add_argument("--clear", action="store_true", help="take those out that need it no longer")
    limbo.add_argument("--mark", action="store_true", help="ask auto-recovery to replicate what is missing")
    leaving = tool("decommission", commands.decommission.__doc__)
    leaving.add_argument("--bookie-id", help="default: the one whose directories these are")
    leaving.add_argument("--timeout", type=float, default=DECOMMISSION_TIMEOUT_S, help="seconds")
    cookie = tool("cookie", "Show, list or delete cookies in metadata.")
    cookie.add_argument("action", choices=("show", "list", "delete"))
    cookie.add_argument("--bookie-id", help="default: the one whose directories these are")
    cookie.add_argument("--force", action="store_true", help="delete it though ledgers name the bookie")
    return parser


if __name__ == "__main__":
    sys.exit(main())
