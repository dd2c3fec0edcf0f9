"""The connection of a query: its namespace, with which settings, and the session's defaults of its options.

The namespace is named by option `uri`, else the conf `spark.distributedlog.uri`, else the variable `DLSPARK_URI`, else
it is that of the sandbox which runs on the driver's machine (`dlspark.default_namespace`).

Spark runs a Python data source in worker processes of its own, and hands them the query's options but neither a
session nor its configuration. What can be seen from there is the Spark driver (an ancestor process): the `--conf`
items and the properties file it was started with, and `spark-defaults.conf` in `SPARK_CONF_DIR`. So a conf works
when it was set before the session started, by `SparkSession.builder.config`, `spark-submit --conf` or
`spark-defaults.conf`. One set later in a running session (`spark.conf.set`), or a Spark Connect client's, cannot be
seen: `dlspark.spark.register(spark)` hands the session's values on.

Options `bkc.<key>` and `distributedlog.<key>` go on to the namespace's clients (docs/settings/logs.md). Spark hands
options over in lower case, so the keys are found again in the registries of settings (`namespace_settings`).

Once the namespace is open, the driver asks it for what queries of every kind need: the addresses of the proxies that it
announces (`announced_proxies`, for `proxy=discover`), and what a name may have meant that no log has
(`missing_log_error`).

Only the driver side asks: a task gets all it needs with its partition, the addresses of proxies too.

Fault model: ZooKeeper may be out of reach: the error names the option to correct. No proxy may be announced, or none
that speaks frames, or not yet: the error says what to start. What is announced may be gone by now: a task finds that
out when it dials.
"""

from __future__ import annotations

import asyncio
import functools
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from dlspark.default_namespace import VARIABLE, default_uri
from dlspark.spark.errors import OptionError
from dlspark.spark.options.proxies import DISCOVER, MAX_ADDRESSES, PROXY
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import CLIENT_PREFIX, CONF_PREFIX
from metadata.foundation.errors import MetadataUnavailableError
from metadata.foundation.settings import Value, did_you_mean

if TYPE_CHECKING:
    from dlspark.core.namespace import AsyncNamespace
    from dlspark.serving.client.fleet import NoProxiesError
    from metadata.distributedlog.log_names import LogNotFoundError

CONF_KEY = f"{CONF_PREFIX}uri"
_MAX_ANCESTORS = 16
LOOK_AGAIN_S: Final = 0.2
"""How often it is looked whether a proxy has been announced, where one is waited for."""

Connect: TypeAlias = "Callable[[str], Awaitable[AsyncNamespace]]"


def resolve_uri(options: Options) -> str:
    """Return the namespace's URI for this query, whose options know the session's. OptionError names all places."""
    found = options.text("uri") or default_uri()
    if not found:
        raise OptionError(
            "No namespace to connect to",
            advice=(
                'Give option("uri", "distributedlog://host:port/path"), or start the session with the conf '
                f"{CONF_KEY}, or set the environment variable {VARIABLE}, or start a sandbox on the driver's machine "
                "(dlspark sandbox start). "
                f"A conf set in a running session needs dlspark.spark.register(spark)"
            ),
        )
    return found.strip()


def session_defaults(environ: Mapping[str, str], registered: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the session's defaults by option name: those that `register` kept, else those Spark's driver was started
    with."""
    home = environ.get("SPARK_HOME")
    directory = environ.get("SPARK_CONF_DIR") or (os.path.join(home, "conf") if home else None)
    found = _in_file(Path(directory) / "spark-defaults.conf") if directory else {}
    # The nearest Spark last, so that it counts: a driver may have been started by another one.
    for arguments in reversed(list(_spark_command_lines())):
        found |= defaults_in_arguments(arguments)
    return {**found, **(registered or {})}


def defaults_among(confs: Mapping[str, str]) -> dict[str, str]:
    """Return the defaults of options that are among some confs, by option name."""
    return {
        key.removeprefix(CONF_PREFIX): value.strip()
        for key, value in confs.items()
        if key.startswith(CONF_PREFIX) and value.strip()
    }


def defaults_in_arguments(arguments: Sequence[str]) -> dict[str, str]:
    """Return what a Spark driver's command line says: `--conf k=v`, `-Dk=v`, or its `--properties-file`."""
    from_file: dict[str, str] = {}
    found: dict[str, str] = {}
    for position, argument in enumerate(arguments):
        following = arguments[position + 1] if position + 1 < len(arguments) else ""
        if argument == "--properties-file":
            from_file = _in_file(Path(following))
        item = following if argument == "--conf" else argument.removeprefix("-D") if argument.startswith("-D") else ""
        key, _, value = item.partition("=")
        found |= defaults_among({key: value})
    return from_file | found


def driver_process() -> str | None:
    """Return what distinguishes the process of Spark's driver from all others anywhere; None where it cannot be
    seen."""
    for pid, _ in _spark_processes():
        try:
            started = _stat(pid)[19]
            boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
        except OSError:
            return None
        return f"{socket.gethostname()}-{boot}-{pid}-{started}"
    return None


def _spark_command_lines() -> Iterator[list[str]]:
    """Yield the command lines of the Java processes among our ancestors, nearest first."""
    for _, arguments in _spark_processes():
        yield arguments


def _spark_processes() -> Iterator[tuple[int, list[str]]]:
    """Yield Spark's Java processes among our ancestors, nearest first (Linux; elsewhere none can be seen)."""
    yield from _spark_processes_from(os.getppid())


@functools.lru_cache(maxsize=1)
def _spark_processes_from(pid: int) -> tuple[tuple[int, list[str]], ...]:
    """Return this process and what is above it, as far as they are Spark's. Looked at once: while a parent lives its
    own parents stay, and a sink asks twice a micro-batch."""
    return tuple(_looked_up(pid))


def _looked_up(pid: int) -> Iterator[tuple[int, list[str]]]:
    for _ in range(_MAX_ANCESTORS):
        if pid < 1:
            return
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
            parent = int(_stat(pid)[1])
        except OSError:
            return
        if any(argument.startswith("org.apache.spark.") for argument in arguments):
            yield pid, arguments
        pid = parent


def _stat(pid: int) -> list[str]:
    """Return the fields of a process's state from the third on, as in proc(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _in_file(path: Path) -> dict[str, str]:
    """Return the defaults in a Spark properties file."""
    return defaults_among(confs_in_file(path, CONF_PREFIX))


def confs_in_file(path: Path, prefix: str = "spark.") -> dict[str, str]:
    """Return the confs in a Spark properties file (`key value` or `key=value` lines); empty if the file cannot be read,
    or if no line has a conf that begins with `prefix`."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return {}
    if not any(prefix in line for line in text.splitlines() if not line.lstrip().startswith("#")):
        return {}
    import javaproperties  # imported late: it is slow to load, and few files have such a line

    return {key: value.strip() for key, value in javaproperties.loads(text).items()}


def namespace_settings(passed_on: Mapping[str, str]) -> dict[str, Value]:
    """Return the settings by their proper keys. An unknown key stays as it is: the settings refuse it by name.

    Raises OptionError for a setting that is a secret: what Spark keeps and shows of a query has its options.
    """
    if not passed_on:
        return {}
    # Imported late, as below: the data source needs only what is above, in each of Spark's workers.
    from dlspark.core.settings.settings import FILE_VARIABLE, REGISTRY, VARIABLE_PREFIX
    from storage_node.settings.client import REGISTRY as CLIENT_REGISTRY

    proper = {key.lower(): key for key in (*REGISTRY, *(CLIENT_PREFIX + key for key in CLIENT_REGISTRY))}
    for key in passed_on:
        registry = CLIENT_REGISTRY if key.startswith(CLIENT_PREFIX) else REGISTRY
        known = proper.get(key, key).removeprefix(CLIENT_PREFIX)
        if known in registry and registry.find(known)[2].secret:
            raise OptionError(
                f"The setting {known} is a secret, and an option's value is none: Spark shows and keeps options; "
                "nothing was done",
                advice=f"Set it by a file that the environment variable {FILE_VARIABLE} names, or by "
                f"{VARIABLE_PREFIX}{known}, on driver and executors (docs/settings/logs.md)",
            )
    return {proper.get(key, key): value for key, value in passed_on.items()}


async def open_namespace(uri: str, connect: Connect | None = None) -> AsyncNamespace:
    """Open a namespace, by default with `AsyncNamespace.open`; an error names the option to correct.

    Raises MetadataUnavailableError, or CallerError for a namespace that does not exist.
    """
    from dlspark.core.namespace import AsyncNamespace

    try:
        return await (connect or AsyncNamespace.open)(uri)
    except MetadataUnavailableError as error:
        raise MetadataUnavailableError(
            f"ZooKeeper of {uri} cannot be reached: {error.message}; nothing was read",
            advice=f"{error.advice or 'Start it'}. A query names the cluster by option uri (`dlspark sandbox status` "
            "shows a sandbox's), and what it shows a secured one by option tls.directory or DLSPARK_SECURITY",
        ) from error


# ---------------------------------------------------------------------- what an open namespace is asked


async def announced_proxies(namespace: AsyncNamespace, folder: str, wait_ms: int = 0) -> tuple[str, ...]:
    """Return where the namespace's proxies of one kind (`READ_PROXIES`, `WRITE_PROXIES`) take frames; one at least.

    Waits up to `wait_ms` for the first. Raises NoProxiesError, MetadataUnavailableError or an OutcomeUnknownError.
    """
    from dlspark.serving.process.membership import read_members
    from metadata.store import join

    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_ms / 1000
    while True:
        members = await read_members(namespace.store, join(namespace.uri.path, folder))
        addresses = tuple(dict.fromkeys(str(member.frames) for member in members if member.frames is not None))
        if addresses:
            return addresses[:MAX_ADDRESSES]
        if loop.time() >= deadline:
            raise _no_proxies_error(namespace, folder, len(members), wait_ms)
        await asyncio.sleep(LOOK_AGAIN_S)


def _no_proxies_error(namespace: AsyncNamespace, folder: str, others: int, wait_ms: int) -> NoProxiesError:
    from dlspark.serving.client.fleet import NoProxiesError
    from dlspark.serving.process.membership import READ_PROXIES

    kind = "read" if folder == READ_PROXIES else "write"
    spoken = f" that takes frames ({others:,} are announced that do not)" if others else ""
    waited = f" (waited {wait_ms / 1000:g} s for one)" if wait_ms else ""
    return NoProxiesError(
        f"Option {PROXY}={DISCOVER}: no {kind} proxy{spoken} is announced in {namespace.uri}{waited}",
        advice=f"Start one (`dlspark proxy {kind}`, or `dlspark sandbox start --proxies 2`), list the addresses of "
        f"proxies that are not announced, or leave out option {PROXY}",
    )


async def missing_log_error(namespace: AsyncNamespace, missing: Sequence[str]) -> LogNotFoundError:
    """Return the error for logs that a query names, of which these are missing; its advice is about the first of
    them, and takes two requests: what is in the folder that the name has, and what lies beside it."""
    from metadata.distributedlog.log_names import LogNotFoundError

    name = missing[0]
    what = f"No such log: {', '.join(missing)}; nothing was read"
    inside = sorted(await namespace.logs_store.list(name))
    if inside:
        return LogNotFoundError(
            f"{what}. {name} is a folder, in which there are logs",
            advice=f"Name one ({name}/{inside[0]}), or those in the folder by subscribePattern ({name}/.*)",
            log=name,
        )
    near = await near_log(namespace, name)
    several = "Several logs are named by option subscribe. " if "," in name else ""
    return LogNotFoundError(
        what,
        advice=f"{near}{several}Create it (`dlspark log create {name}`), correct the name, or read by subscribePattern",
        log=name,
    )


async def near_log(namespace: AsyncNamespace, name: str) -> str:
    """Return how advice begins for a log that is not there: with one of nearly that name in its folder; empty without
    one."""
    folder = name.rpartition("/")[0]
    beside = await namespace.logs_store.list(folder)
    return did_you_mean(name, [f"{folder}/{one}" if folder else one for one in beside])
