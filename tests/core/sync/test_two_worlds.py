"""The synchronous and the asynchronous class of each pair have the same methods with the same signatures.

What differs is listed here with the reason, and nothing is listed that does not differ.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import textwrap

import pytest

import dlspark
from dlspark.core.sync.namespace import AccessControl
from metadata.distributedlog.permissions import PermissionStore

OVER_EDGES = "for the library's own rooms, tests and simulations, which are asynchronous"
BY_LOG = "the log's method opens it"
LISTENER = "called by the log when its settings change"
FILE = "the synchronous one is a Python file, with a file's methods"

LOOP = "what a synchronous loop over records takes them from"
ONLY_ASYNC = {
    "Namespace": dict.fromkeys(("ledgers", "logs_store", "over", "services", "store"), OVER_EDGES),
    "Log": {"open_segment": OVER_EDGES},
    "LogWriter": {
        "open": BY_LOG,
        "on_failed": "for proxies, which hold a writer whose failure concerns others",
        "owned": OVER_EDGES,
        "push": "for proxies, which wait for nothing",
        "use_settings": LISTENER,
        "wait_for_room": "writing synchronously waits for room by itself",
    },
    "LogReader": {
        "lend": LOOP,
        "use_settings": LISTENER,
        "read_available": "that is what reading synchronously does",
    },
    "LockedReader": {
        "lend": LOOP,
        "open": BY_LOG,
        "use_settings": LISTENER,
        "read_available": "that is what reading synchronously does",
    },
    "AppendStream": {"append": FILE, "at_end": BY_LOG, "force": FILE, "position": FILE},
    "AppendReader": {"length": FILE, "position": FILE},
    "AccessControl": {"move_ops": OVER_EDGES},
    "Client": dict.fromkeys(("ask", "open", "settings"), OVER_EDGES),
}
ONLY_SYNC: dict[str, dict[str, str]] = {name: {} for name in ONLY_ASYNC}
OTHER_SIGNATURE = {
    ("Namespace", "open"): "a synchronous namespace may have a runtime of its own",
    ("Client", "connect"): "a synchronous client may have a runtime of its own, and no network",
    ("LogReader", "read_next"): "synchronously reading need not wait, and at the end says so",
    ("LogReader", "read_bulk"): "synchronously reading need not wait, and at the end says so",
    ("LockedReader", "read_next"): "synchronously reading need not wait, and at the end says so",
    ("LockedReader", "read_bulk"): "synchronously reading need not wait, and at the end says so",
    ("AppendReader", "seek"): FILE,
    ("AppendReader", "read"): FILE,
}


def pair(name):
    if name == "AccessControl":
        return AccessControl, PermissionStore
    return getattr(dlspark, name), getattr(dlspark, f"Async{name}")


def public_names(kind):
    """Methods, properties, and what `__init__` sets, of the class and its bases; not of Python's own."""
    names = {"closed", "read"} & set(dir(kind)) if issubclass(kind, io.RawIOBase) else set()
    for base in kind.__mro__:
        if base in (object, *io.RawIOBase.__mro__):
            continue
        names |= set(vars(base))
        tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        names |= {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        }
    return {name for name in names if not name.startswith("_")}


def parameters(method):
    return [
        (one.name, one.kind, one.default) for one in inspect.signature(method).parameters.values() if one.name != "self"
    ]


@pytest.mark.parametrize("name", ONLY_ASYNC)
def test_a_pair_has_the_same_names(name):
    sync, asynchronous = map(public_names, pair(name))
    if issubclass(pair(name)[0], io.RawIOBase):
        sync -= set(dir(io.RawIOBase)) - asynchronous
    assert asynchronous - sync == set(ONLY_ASYNC[name])
    assert sync - asynchronous == set(ONLY_SYNC[name])


def test_a_pair_has_the_same_signatures():
    different = set()
    for name in ONLY_ASYNC:
        sync, asynchronous = pair(name)
        for method in public_names(sync) & public_names(asynchronous):
            one, other = getattr(sync, method, None), getattr(asynchronous, method, None)
            if callable(one) and callable(other) and parameters(one) != parameters(other):
                different.add((name, method))
    assert different == set(OTHER_SIGNATURE)


TWINS = {"PermissionStore": "AccessControl", "asyncio.Future": "PendingWrite", "DLSN | int | str": "Start"}


def types(method):
    """Its annotations, with the asynchronous names replaced by their synchronous twins."""
    signature = inspect.signature(method)
    text = (
        ", ".join(str(one.annotation) for one in signature.parameters.values()) + f" -> {signature.return_annotation}"
    )
    text = re.sub(r"AsyncGenerator\[(.*), None\]", r"Iterator[\1]", text)
    for asynchronous, sync in {"Async": "", **TWINS}.items():
        text = text.replace(asynchronous, sync)
    return text


def test_a_pair_has_the_same_types():
    compared = 0
    for name in ONLY_ASYNC:
        sync, asynchronous = pair(name)
        for method in public_names(sync) & public_names(asynchronous):
            found = [inspect.getattr_static(kind, method, None) for kind in (sync, asynchronous)]
            one, other = (item.fget if isinstance(item, property) else item for item in found)
            if (name, method) in OTHER_SIGNATURE or not (inspect.isfunction(one) and inspect.isfunction(other)):
                continue
            assert types(one) == types(other), f"{name}.{method}"
            compared += 1
    assert compared > 80


@pytest.mark.parametrize("name", sorted(set(ONLY_ASYNC) - {"AccessControl"}))
def test_both_are_context_managers_in_their_world(name):
    sync, asynchronous = pair(name)
    assert hasattr(sync, "__enter__")
    assert hasattr(sync, "__exit__")
    assert hasattr(asynchronous, "__aenter__")
    assert hasattr(asynchronous, "__aexit__")


def test_readers_are_iterated_over_in_their_world():
    for name in ("LogReader", "LockedReader"):
        sync, asynchronous = pair(name)
        assert hasattr(sync, "__iter__")
        assert hasattr(asynchronous, "__aiter__")
    for kind, method in (("Namespace", "watch_logs"), ("Log", "watch_segments"), ("LogReader", "batches")):
        sync, asynchronous = (getattr(one, method) for one in pair(kind))
        assert inspect.signature(sync).return_annotation.startswith("Iterator[")
        assert inspect.signature(asynchronous).return_annotation.startswith(("AsyncGenerator[", "AsyncIterator["))
