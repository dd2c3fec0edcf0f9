"""Shared by the commands: options, the connection to a namespace, questions before what cannot be undone, results.

A command over a namespace is a coroutine whose first parameter is an `At`; `over_namespace` makes it a command with the
options `--uri`, `--conf`, `--set` and `--output` behind its own. Every result is one JSON object, or JSON lines where
it has no end; text is for people, and may change.

Exit status: 0 done; 1 not done, and standard error says why; 2 wrong usage; 3 done, and what was found needs a person.

The modules of the commands are imported to print any `--help`, so they import only what their options need; what a
command works with is imported where it works.
"""

from __future__ import annotations

import difflib
import inspect
import json
import os
import re
import select
import shutil
import sys
import textwrap
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Concatenate, ParamSpec, TypeAlias, get_type_hints

import typer

from dlspark.default_namespace import uri_or_default
from metadata.foundation.errors import CallerError, DistributedLogError
from metadata.foundation.plurals import counted
from metadata.security.listening import INSECURE_LISTEN_HELP

if TYPE_CHECKING:
    from dlspark.core.namespace import AsyncNamespace
    from dlspark.core.settings.settings import Settings
    from dlspark.core.sync.namespace import Namespace

P = ParamSpec("P")

MAX_COMPARED = 10_000
"""Names of logs with which a wrong one is compared: a tenth of a second."""
ATTENTION = 3
"""Exit status of a command that was done, and found what needs a person."""
Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"

UriOption = Annotated[
    str | None, typer.Option("--uri", "-u", help="Namespace URI, distributedlog://host:port/path. [env: DLSPARK_URI]")
]
ConfOption = Annotated[
    Path | None, typer.Option("--conf", "-c", help="Properties file, in place of the one that DLSPARK_CONF names.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting; may be given several times.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")]
ConcurrencyOption = Annotated[int, typer.Option("--concurrency", min=1, help="Logs that are worked on at a time.")]
FilterOption = Annotated[
    str | None, typer.Option("--filter", help="Regular expression: logs whose names begin with it.")
]
InsecureListenOption = Annotated[bool, typer.Option("--insecure-listen", help=INSECURE_LISTEN_HELP)]
NameArgument = Annotated[str, typer.Argument(help="The log's name.")]
NamesArgument = Annotated[list[str] | None, typer.Argument(metavar="[LOG]...", help="Logs.")]


class Output(str, Enum):
    """How a result is printed."""

    TEXT = "text"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("--output", help="How the result is printed.")]


# ---------------------------------------------------------------------- the connection to a namespace


def namespace_uri(uri: str | None) -> str:
    """Return the URI given by option or environment, or that of a running sandbox. Raises CallerError where there is
    none.
    """
    return uri_or_default(uri, "Give --uri distributedlog://host:port/path")


def settings_of(conf: Path | None, values: Iterable[str] | None) -> Settings:
    """Return settings as for `Namespace.open`, with `conf` as the properties file and `values` (key=value) over all.

    Raises SettingsError, and CallerError for a value without '='.
    """
    from dlspark.core.settings.settings import Settings
    from metadata.foundation.settings import values_given

    if conf is None:
        settings = Settings.from_environment()
    else:
        # --conf stands in the place of DLSPARK_CONF, and does not come on top of it.
        others = {name: value for name, value in os.environ.items() if name != "DLSPARK_CONF"}
        settings = Settings.from_environment(others, Settings.from_properties(conf))
    return settings.with_values(values_given(values or ()))


@dataclass(frozen=True, slots=True)
class At:
    """Where a command works, and how it prints its result."""

    uri: str
    settings: Settings
    output: Output

    def open(self, uri: str | None = None) -> AbstractAsyncContextManager[AsyncNamespace]:
        """Return the namespace, to be entered."""
        return _Opening(uri or self.uri, self.settings)

    @property
    def as_json(self) -> bool:
        """True where the result is printed as JSON."""
        return self.output is Output.JSON

    def result(self, result: Mapping[str, Json], text: str | Table | Iterable[str]) -> None:
        """Print a command's one result."""
        print_result(self.output, result, text)

    def line(self, result: Mapping[str, Json], text: str) -> None:
        """Print one of many results; a reader of a pipe sees it at once."""
        typer.echo(json_text(result) if self.as_json else text)
        sys.stdout.flush()


class _Opening(AbstractAsyncContextManager["AsyncNamespace"]):
    def __init__(self, uri: str, settings: Settings) -> None:
        self._uri = uri
        self._settings = settings
        self._opened: AsyncNamespace | None = None

    async def __aenter__(self) -> AsyncNamespace:
        from dlspark.core.namespace import AsyncNamespace

        self._opened = await AsyncNamespace.open(self._uri, self._settings)
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opened is None:
            return
        try:
            # Names are listed for an error alone, while the session is still open: a folder may have very many.
            missing = _missing_log(error)
            if missing is not None:
                with suppress(DistributedLogError):  # the error that there is says more
                    name_near_ones(error, await self._opened.logs(missing.rpartition("/")[0]))
                    name_what_is_below(error, await self._opened.logs(missing))
        finally:
            await self._opened.close()


@contextmanager
def open_sync(uri: str | None, conf: Path | None, values: Iterable[str] | None) -> Iterator[Namespace]:
    """Open the namespace for commands that stream, as `At.open` does for the others."""
    from dlspark.core.sync.namespace import Namespace

    with Namespace.open(namespace_uri(uri), settings_of(conf, values)) as namespace:
        try:
            yield namespace
        except DistributedLogError as error:
            missing = _missing_log(error)
            if missing is not None:
                with suppress(DistributedLogError):
                    name_near_ones(error, namespace.logs(missing.rpartition("/")[0]))
                    name_what_is_below(error, namespace.logs(missing))
            raise


def _missing_log(error: BaseException | None) -> str | None:
    """Return the log that was not found, if that is the error."""
    from metadata.distributedlog.log_names import LogNotFoundError

    return error.log if isinstance(error, LogNotFoundError) else None


def name_near_ones(error: BaseException | None, names: Sequence[str]) -> None:
    """Have the error that a log was not found say which ones of its folder, that has `names`, are called like it.

    Bounded: in a folder with more than MAX_COMPARED names none is compared.
    """
    if not isinstance(error, DistributedLogError) or error.log is None:
        return
    error.path = None  # which of a log's znodes was looked for first does not help the user
    folder, slash, last = error.log.rpartition("/")
    others = [one for one in names if one != last] if len(names) <= MAX_COMPARED else []
    near = difflib.get_close_matches(last, others, n=3, cutoff=0.6)
    if near:
        error.advice = f"Did you mean {' or '.join(folder + slash + one for one in near)}?"


def name_what_is_below(error: BaseException | None, names: Sequence[str]) -> None:
    """Have the error that a log was not found say that its name is a folder's, which has `names`; none: it is not."""
    if not isinstance(error, DistributedLogError) or not error.log or not names:
        return
    some = " or ".join(f"{error.log}/{name}" for name in names[:3])
    error.message = f"that is a folder of {counted(len(names), 'name')}, and not a log itself"
    error.advice = f"Name one of what it holds ({some}); dlspark log list {error.log} shows all"


# ---------------------------------------------------------------------- a coroutine as a command


def _shared(
    uri: UriOption = None, conf: ConfOption = None, values: SetOption = None, output: OutputOption = Output.TEXT
) -> None:
    """Declare the options that `over_namespace` adds."""


def over_namespace(command: Callable[Concatenate[At, P], Awaitable[None]]) -> Callable[..., None]:
    """Make a command of the coroutine: its own parameters without the first, then those of `_shared`."""
    hints = get_type_hints(command, include_extras=True)
    own = list(inspect.signature(command).parameters.values())[1:]
    shared = get_type_hints(_shared, include_extras=True)
    parameters = [one.replace(annotation=hints[one.name], kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
    parameters += [
        one.replace(annotation=shared[one.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for one in inspect.signature(_shared).parameters.values()
    ]

    def run(**given: object) -> None:
        import asyncio

        # Here, because a loop that runs takes Ctrl-C for itself: it would wait for the end of the imports.
        import metadata.zookeeper.client  # noqa: F401

        uri, conf, values, output = (given.pop(name) for name in ("uri", "conf", "values", "output"))
        at = At(namespace_uri(uri), settings_of(conf, values), output)  # type: ignore[arg-type]
        asyncio.run(_awaited(command(at, **given)))  # type: ignore[call-arg,arg-type]

    run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


async def _awaited(command: Awaitable[None]) -> None:
    await command


# ---------------------------------------------------------------------- questions, and which logs


def confirm(question: str, *, yes: bool, by: str = "--yes") -> None:
    """Ask before what cannot be undone. Raises CallerError without a terminal to ask on; it names the option that
    answers (`by`)."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CallerError("nothing was done: there is no terminal to ask on", advice=f"{question} Then give {by}")
    typer.confirm(question, abort=True, err=True)


async def chosen_logs(namespace: AsyncNamespace, names: Iterable[str] | None, pattern: str | None) -> list[str]:
    """Return the logs that are named, or that the pattern matches, or all of them without either.

    Raises CallerError for both, or for a malformed pattern.
    """
    named = list(names or ())
    if named and pattern is not None:
        raise CallerError("logs were named and filtered", advice="Give names or --filter, not both")
    if named:
        return named
    try:
        matches = re.compile(pattern or "")
    except re.error as error:
        raise CallerError(f"{pattern!r} is not a regular expression: {error}") from error
    return [name for name in await namespace.logs(recursive=True) if matches.match(name)]


async def some_logs(namespace: AsyncNamespace, names: Iterable[str] | None, pattern: str | None) -> list[str]:
    """Return `chosen_logs` for commands that change them: not all of them by saying nothing."""
    if not names and pattern is None:
        raise CallerError("no log was named", advice="Name logs, or give --filter ('' means every log)")
    return await chosen_logs(namespace, names, pattern)


async def each(names: Sequence[str], concurrency: int, work: Callable[[str], Awaitable[None]]) -> list[str]:
    """Do `work` on `concurrency` logs at a time. Prints on standard error why it failed for some, and returns their
    names.

    With a single log its failure is raised.
    """
    from metadata.foundation.pacing import for_each

    failed: list[str] = []

    async def attempt(name: str) -> None:
        try:
            await work(name)
        except DistributedLogError as error:
            if len(names) == 1:
                raise
            failed.append(name)
            typer.echo(f"dlspark: {error}" if error.log == name else f"dlspark: {name}: {error}", err=True)

    await for_each(names, concurrency, attempt)
    return sorted(failed)


# ---------------------------------------------------------------------- results


def print_result(output: Output, result: Mapping[str, Json], text: str | Table | Iterable[str]) -> None:
    """Print `result` as JSON, or `text`."""
    if output is Output.JSON:
        typer.echo(json_text(result, indent=2))
        return
    for line in text.lines() if isinstance(text, Table) else [text] if isinstance(text, str) else text:
        typer.echo(line)


def table(*columns: str, rows: Iterable[Sequence[object]] = (), spare: Sequence[str] = ()) -> Table:
    """Return a table for people; None is an empty cell. `spare`: columns that a narrow terminal can do without."""
    return Table(columns, rows, spare)


def file_address(given: str) -> str:
    """Return the address of a file or folder, given as one or as its path."""
    return given if "://" in given else f"file://{os.path.abspath(given)}"


def size_text(count: int) -> str:
    """Return bytes for people: 2.5 MB."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def json_text(value: Json, indent: int | None = None) -> str:
    """Return JSON as text that standard output can print, whatever its encoding: escapes stand for characters that it
    lacks.
    """
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return json.dumps(value, indent=indent)
    return text


def shown(data: bytes | memoryview, *, as_hex: bool = False) -> str:
    """Return bytes as text: UTF-8 with escapes for bytes of another kind, or hexadecimal."""
    return bytes(data).hex() if as_hex else bytes(data).decode("utf-8", errors="backslashreplace")


def check_output() -> None:
    """Raise BrokenPipeError where the output has no reader any more: for commands without an end, while they have
    nothing to print, because the next record may come tomorrow.
    """
    if sys.stdout is None:
        return
    try:
        waiting = select.poll()
        waiting.register(sys.stdout.fileno(), 0)
        # POLLERR at the writing end of a pipe: no process has its reading end open any more.
        gone = any(events & select.POLLERR for _, events in waiting.poll(0))
    except (OSError, ValueError):
        return  # not a file
    if gone:
        raise BrokenPipeError


def exit_with(*, failed: Sequence[str] = (), attention: bool = False) -> None:
    """End with the status that this comes to; to be called last."""
    if failed:
        raise typer.Exit(1)
    if attention:
        raise typer.Exit(ATTENTION)


# ---------------------------------------------------------------------- tables

_GAP = "  "
_INDENT = "    "


class Table:
    """Rows below their columns' names; numbers stand to the right, None is an empty cell.

    A table is never wider than the terminal. One that is too wide goes without its spare columns, the last of them
    first, and says below which; what is too wide still is folded between its columns, and the head with it in the same
    way. No cell is cut off: one that is wider than the terminal is left to it.
    """

    def __init__(self, columns: Sequence[str], rows: Iterable[Sequence[object]], spare: Sequence[str] = ()) -> None:
        """Make an empty table. `spare`: columns that a narrow terminal can do without, the dearest first."""
        self._columns = list(columns)
        self._rows = [list(row) for row in rows]
        self._spare = list(spare)

    def lines(self, width: int | None = None) -> Iterator[str]:
        """Yield the table in lines of at most `width` characters; the terminal's (80 where there is none) if
        not said.
        """
        width = shutil.get_terminal_size().columns if width is None else width
        texts = [[_text(cell) for cell in row] for row in self._rows]
        widths = [max(map(len, column)) for column in zip(self._columns, *texts, strict=True)]
        right = [all(_is_number(row[place]) for row in self._rows) for place in range(len(widths))]
        kept, left_out = self._kept(widths, width)
        folds = _folds([widths[place] for place in kept], width)
        for row in (self._columns, *texts):
            cells = [
                row[place].rjust(widths[place]) if right[place] else row[place].ljust(widths[place]) for place in kept
            ]
            for number, (first, after) in enumerate(folds):
                line = (_INDENT if number else "") + _GAP.join(cells[first:after])
                # A fold of empty cells only would be a line of nothing.
                if number == 0 or line.strip():
                    yield line.rstrip()
        if left_out and self._rows:
            yield from textwrap.wrap(
                f"(left out, for {width} columns are too few: {', '.join(left_out)}; --output json has all)", width
            )

    def _kept(self, widths: Sequence[int], width: int) -> tuple[list[int], list[str]]:
        """Return the places of the columns that are shown, and the names of those that are not."""
        kept = list(range(len(widths)))
        left_out: list[str] = []
        for name in reversed(self._spare):
            if sum(widths[place] for place in kept) + len(_GAP) * (len(kept) - 1) <= width:
                break
            kept.remove(self._columns.index(name))
            left_out.insert(0, name)
        return kept, left_out


def _folds(widths: Sequence[int], width: int) -> list[tuple[int, int]]:
    """Return the columns that stand on each line: (first, behind the last)."""
    folds: list[tuple[int, int]] = []
    first, used = 0, 0
    for place, size in enumerate(widths):
        needed = used + size + (len(_GAP) if place > first else 0)
        if needed > width and place > first:
            folds.append((first, place))
            first, needed = place, len(_INDENT) + size
        used = needed
    return [*folds, (first, len(widths))]


def _text(cell: object) -> str:
    return "" if cell is None else str(cell)


def _is_number(cell: object) -> bool:
    return cell is None or (isinstance(cell, int) and not isinstance(cell, bool))
