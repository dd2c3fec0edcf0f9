"""docs/cli.md, from the commands themselves and the table of upstream's.

python -m dlspark.cli.reference > docs/cli.md
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import typer

INTRODUCTION: Final = """# The command line

`dlspark` does what upstream's `dlog tool` and `dlog admin` do, and runs sandbox and storage nodes. `dlspark COMMAND
--help` (`-h`) says the same as this page, which is generated from the commands: `python -m dlspark.cli.reference`.

## What holds for all commands

* The namespace is given by `--uri`, else by the environment variable `DLSPARK_URI`, else it is that of the sandbox
  which runs on this machine (in its default directory). `dlspark --verbose COMMAND` says which it was.
* Settings are those of the library ([settings/logs.md](settings/logs.md)): the environment's; `--conf FILE` takes the
  place of the file that `DLSPARK_CONF` names; `--set key=value` goes over all. `lockTimeoutSeconds` says how long a
  command waits for a log that has a writer: `--set lockTimeoutSeconds=0` does not wait.
* These options (`-u` and `-c` for short) are not repeated below. Nor is `--output text|json`, which most commands have.
* `--output json` prints one object, and commands without an end one object a line. Its fields stay; text may change.
* What cannot be undone asks first. `--yes` answers; without a terminal and `--yes` it is refused.
* A log that has a writer is not truncated, purged, deleted, renamed, sealed or repaired, nor are its ledgers recovered:
  all that takes the log's lock, and the error names its owner. `delete` and `rename` would take the log away from
  whoever has it: they do not wait, and nobody gives way to them. The others wait, and a Spark query gives its log up to
  them between two batches ([spark.md](spark.md)); a writer and a proxy do not.
* What is asked for and is there already is not a failure, as with upstream: `log create` says that a log exists, leaves
  it as it is, and ends with 0. With `--metadata`, which would not be stored then, it ends with 1.
* Tables are as wide as the terminal, 80 columns where there is none: what can be spared is left out then, and named
  below; what else does not fit beside goes below. For programs there is `--output json`.
* A terminal that lacks a character gets an escape for it; JSON stays JSON in every encoding.
* Times are read as in Spark's options ([settings/spark.md](settings/spark.md)): `2013-07-01`, `2013-07-01 02:00:00Z`,
  with up to nine digits of a second and any offset, or milliseconds since 1970. They are printed in UTC.
* Of several logs, those that fail are named on standard error, and the others are done.

| exit status | means |
|---|---|
| 0 | done |
| 1 | not done, or not for all logs: standard error says what, and what to do next |
| 2 | wrong usage |
| 3 | done, and what was found needs a person: faults, failed checks, orphans, what was left, unnamed ledgers |
| 130 | ended by Ctrl-C; `write` has written what it had read |
| 143, 129 | `write` was ended by SIGTERM or SIGHUP, likewise |
"""

PIPES: Final = """## Records in pipes

    dlspark read a | less     # for people: a line a record, with escapes for what is not text
    dlspark read a --output raw | dlspark write b     # lines: right where no record holds a line feed
    dlspark read a --output raw --delimiter '\\0' | dlspark write b --delimiter '\\0'
    dlspark read a --output length-prefixed | dlspark write b --input length-prefixed
    dlspark read a --output json | dlspark write b --input json --keep-transaction-ids

| form | a record is | what is kept |
|---|---|---|
| `raw` | its bytes, then the delimiter | every byte, where no record holds the delimiter: `read` says how many do |
| `length-prefixed` | its length in four bytes, the highest first, then its bytes | every byte |
| `json` | an object on a line: `value`, or `value_base64` where that is not UTF-8 | every byte, transaction ids |

With `--hex` the JSON has `value_hex`, which `write` takes too. `write` adds nothing to a record and takes nothing from
it: a carriage return is the record's, an empty line is an empty record, and the last line needs no line feed.

* **When it is in the log.** What was read is sent in blocks, at the latest `--flush-after` milliseconds (100) after it
  came, and is visible to readers once nothing more has come for that long. All records of a block have the same
  transaction id: the time when it was sent, or the log's highest if that is above it.
* **What ends the input** (its end, Ctrl-C, SIGTERM, SIGHUP, a record that cannot be taken) takes nothing along: what
  was read before is written, and the last line on standard error says how many records are in the log and where the
  last one is. They are on the disks of an ack quorum, and no kill takes them away. Where storage nodes fail, it says
  too how many more may be there or not. `--progress` says it while writing. A second signal ends the command at once.
* **Progress.** On a terminal a line says how many records are in the log, their bytes and how many a second, with a bar
  where the input is a file; `read` has such a line where it prints to a file. There is none where the input is typed,
  or in the background, and none with `--no-progress`.
* **A record that cannot be taken** (too long, not JSON, a transaction id below the log's) is named by its number.
  Nothing behind it is written.
"""

COLUMNS: Final = """## Rows of columns

A log can declare what columns its records have ([python/tables.md](python/tables.md)). From records that are there:

    dlspark log schema infer orders > orders.sql      # columns that the last records seem to have, as SQL; look at it
    dlspark log schema check orders orders.sql        # how many records would fit, and what is wrong with the others
    dlspark log schema set orders orders.sql --timestamp at
    dlspark read orders --columns id,price --where "price > 10 and item in ('nut', 'bolt') and note is not null"
    dlspark log errors orders                         # records that do not fit: where, when, why

`set` takes columns as SQL declares them (`id BIGINT NOT NULL, item STRING, price DECIMAL(9, 2), at TIMESTAMP`), a
schema in Iceberg's JSON, or an Avro schema. Given again, with other columns, it makes the changes that lead there, and
says which: `--dry-run` only says it. In the JSON that `show --output json` prints a column is known by its id, so that
another name is a renaming; in all other forms by its name.

A condition is of comparisons (`= <> < <= > >=`), `IN`, `BETWEEN`, `IS NULL`, `AND`, `OR`, `NOT` and parentheses, with
fields of structs as `place.city`, and names with blanks as `` `the name` ``. Nothing in it is run. As in SQL, a
comparison with null is neither true nor false. Rows have `_log`, where each row's record is, and `_error`, why it does
not fit: `--columns id,_error --where "_log.segment > 3"`.
"""

AUDIT: Final = """## What an audit calls an orphan

`dlspark ledger audit` looks at everything on the ZooKeeper ensembles of the namespace and of its ledgers, whatever
namespace it belongs to. A ledger is in use where any segment, allocator, pool, sink or note of deletion names it. One
that nothing names is

| verdict | where |
|---|---|
| `young` | it was made less than `--min-age` hours ago (24 if not said): it may be about to be named |
| `foreign` | it carries metadata of another application of the same BookKeeper cluster |
| `undecided` | something could not be read that may name it, or it cannot be read itself |
| `orphan` | else |

Two things an audit cannot know of, so their ledgers look like orphans: namespaces whose metadata are on **another
ZooKeeper ensemble**, unless they are named with `--also`, and other applications of the cluster that do not mark their
ledgers. `dlspark ledger delete` decides anew for each ledger that it is given, and deletes none that is in use or
undecided, also with `--force`.
"""

UPSTREAM: Final = (
    ("tool list", "log list", "`-m`, `-x` as `--metadata`, `--hex`"),
    ("tool create", "log create", "`-r PREFIX -e 0-15` is `create PREFIX -e 0-15`"),
    ("tool delete", "log delete", "several, or by `--filter`"),
    ("tool show", "log show", "`-ns`, `-lp`, `-fl`, `-ll` as `--no-segments`, `--placement`, `--first`, `--last`"),
    ("tool count", "log count", "up to before the second DLSN"),
    ("tool dump", "read", "`-o`, `-n -e -t` as `--from`; `-l`, `-x`, `-sp` as `--limit`, `--hex`, `--skip-payload`"),
    (
        "tool inspect",
        "log inspect",
        "`-i`, `-cio` as `--only`, `-pso` as `--names`, `-t` as `--concurrency`; for `-d` see `ledger read-entries`; "
        "no `-ot`: sort the JSON",
    ),
    ("tool inspectstream", "log inspect", "the same with a name"),
    ("tool truncate", "log purge", "all but the newest completed segment; `-d` is `log delete --filter`"),
    ("tool truncate_stream", "log truncate", ""),
    ("tool watch", "log watch", ""),
    ("tool delete_allocator_pool", "namespace allocator-pool delete", "by name; one at a time, so no `-t`"),
    ("tool delete_ledgers", "ledger delete", "looks first whether anything names them"),
    ("tool findledger", "ledger find", "allocators, sinks and notes of deletion, too"),
    ("tool readlac", "ledger lac", ""),
    (
        "tool readentries",
        "ledger read-entries",
        "`-bks`, `-bad`, `-ver` as `--copies`, `--corrupt`, `--metadata-version`",
    ),
    ("tool recoverledger", "ledger recover", "under the log's lock"),
    ("tool audit_ledgers", "ledger audit", "`-u` twice is `--also`; `-lf` is `--orphans`; `-ap`: it finds all pools"),
    ("tool audit_dl_space", "ledger space", "`-groupByRegex` as `--group-by`"),
    ("tool audit_bk_space", "ledger space", "with `--cluster`"),
    ("tool serialize_dlsn", "log dlsn encode", ""),
    ("tool deserialize_dlsn", "log dlsn decode", ""),
    ("tool delete_subscriber", "log subscribers delete", ""),
    ("tool -a (ZooKeeper ACL id)", "", "a setting: `--set zkAclId=...`"),
    ("tool -f (no prompts)", "", "`--yes`; `--force` means more than not asking"),
    ("admin bind", "namespace bind", "and `--acl-root`, which upstream cannot give; `-q` is `namespace show`"),
    ("admin unbind", "namespace unbind", ""),
    ("admin repairseqno", "namespace repair-lssn", "`-v`: it always says what it does"),
    ("admin dlck", "namespace check", "`-v` likewise; `-cy` as `--concurrency`"),
    ("admin set_default_acl", "namespace acl set-default", ""),
    ("admin set_stream_acl", "namespace acl set", ""),
    ("admin delete_stream_acl", "namespace acl delete", ""),
    ("tool help, admin help", "", "`--help` with any command"),
    ("local", "sandbox start", ""),
    ("dlog-daemon bookie", "bookie", ""),
    ("dlog-daemon bookie-rereplicator", "autorecovery", ""),
    ("dlog-daemon writeproxy", "proxy write", ""),
    (
        "balancer clusterbalancer",
        "proxy balance",
        "`-sp` is `--source`; one at a time, so no `-rc`",
    ),
    ("balancer regionbalancer", "proxy balance", "with `--regions`; both regions are of one namespace"),
    ("zkshell, bkshell", "", "they are programs of ZooKeeper and BookKeeper, and work with our clusters as they are"),
    ("a Java class's name", "", "there is nothing like it here: `python -m`"),
)
"""Command of upstream's, ours, and what differs or why there is none."""
_SHARED: Final = {"--uri", "--conf", "--set", "--output"}
"""Options that the page names once."""
_RECORDS: Final = "How records are printed."


def page() -> str:
    """Return the whole page."""
    parts = [
        INTRODUCTION,
        PIPES,
        COLUMNS,
        AUDIT,
        "\n".join(_upstream()),
        *_commands(typer.main.get_command(_app()), "dlspark"),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _app() -> typer.Typer:
    from dlspark.cli.main import app

    return app


def _upstream() -> Iterator[str]:
    yield "## Upstream's commands\n"
    yield "| dlog | dlspark | note |"
    yield "|---|---|---|"
    for theirs, ours, note in UPSTREAM:
        yield f"| `{theirs}` | {f'`{ours}`' if ours else 'none'} | {note} |"
    yield ""


def _commands(group: Any, path: str) -> Iterator[str]:
    """Yield a group's commands, then the groups in it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield f"## `{path} {name}`\n\n{_help(command)}\n"
            if command.params:
                yield "\n".join(_options(command))
            yield from _commands(command, f"{path} {name}")
        else:
            yield f"### `{_usage(command, f'{path} {name}')}`\n\n{_help(command)}\n"
            yield "\n".join(_options(command))


def _usage(command: Any, path: str) -> str:
    """Return the command with its arguments."""
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    words = [one.metavar or one.name.upper() for one in arguments]
    shown = [
        word if one.required or word.startswith("[") else f"[{word}]"
        for one, word in zip(arguments, words, strict=True)
    ]
    return " ".join([path, *shown])


def _help(command: Any) -> str:
    text = (command.help or "").partition("\n\n")
    return "\n\n".join(" ".join(part.split()) for part in (text[0], text[2]) if part)


def _options(command: Any) -> Iterator[str]:
    shared = _SHARED if any("--set" in one.opts for one in command.params) else {"--output"}
    rows = [
        f"| {_names(one)} | {' '.join(one.help.split())} |"
        for one in command.params
        if one.help is not None and not (set(one.opts) & shared and one.help != _RECORDS)
    ]
    if rows:
        yield "\n".join(["| | |", "|---|---|", *rows, ""])


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    names = ", ".join(f"`{name}`" for name in parameter.opts)
    return names + "".join(f" / `{name}`" for name in parameter.secondary_opts)


if __name__ == "__main__":
    print(page(), end="")
