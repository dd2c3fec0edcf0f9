"""Makes the synchronous classes' plain methods from the asynchronous classes, with their types and docstrings.

A method that only runs its asynchronous twin on the background loop is not written by hand. In `MODULES` each class has
a part between two comments, which is rewritten by

    python -m dlspark.core.sync

    # --- made from dlspark.core.log.AsyncLog; left out: use_settings
    ...
    # --- made up to here

The part holds every public method and property of the class that the first comment names, its bases included, except

* what the synchronous class has by hand outside the part: that differs on purpose;
* what a base of the synchronous class was made from;
* what `left out` names: what the synchronous side has no use for;
* static and class methods, and plain attributes, which have neither type nor docstring to take over.

What is made is ordinary checked-in code: type checkers, editors and readers see signatures, types and docstrings.
`tests/core/sync/test_generated_twins.py` holds the files to what this module makes, and every method to having a
docstring. Imports are written by hand; the linter reports what is missing.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeAlias

MODULES: Final = (
    "dlspark.core.sync.readers",
    "dlspark.core.sync.writer",
    "dlspark.core.sync.log",
    "dlspark.core.sync.namespace",
    "dlspark.serving.client.sync",
)
"""The modules that have made parts. They are only read here, as texts."""
_BEGIN: Final = re.compile(r"    # --- made from (?P<source>[\w.]+)(?:; left out: (?P<left_out>[\w, ]+))?\n")
_END: Final = "    # --- made up to here\n"
_LINE: Final = 120
_TWIN: Final = re.compile(
    r"\bAsync(Namespace|Log|LogReader|LockedReader|LogWriter|AppendStream|AppendReader"
    r"|Client|Producer|ProxyReader|MultiStreamWriter|StreamMonitor)\b"
)
_SPECIAL: Final = {"LogReader": ("LockedReader",)}
"""What an asynchronous result's twin may be instead, by the class of the result."""
_Function: TypeAlias = "ast.FunctionDef | ast.AsyncFunctionDef"


def write_all() -> None:
    """Rewrite the made parts of all modules."""
    for path in paths():
        path.write_text(rewritten(path.read_text()))


def paths() -> list[Path]:
    """Return the files of the modules that have made parts."""
    root = Path(__file__).parents[3]
    return [root.joinpath(*name.split(".")).with_suffix(".py") for name in MODULES]


def rewritten(text: str) -> str:
    """Return a module's text with each made part as it is to be. Raises ValueError for a comment that has no end."""
    classes = {node.name: _Twin(node, text) for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}
    done, rest = "", text
    while (begin := _BEGIN.search(rest)) is not None:
        end = rest.index(_END, begin.end())
        done, rest = done + rest[: begin.end()], rest[end:]
        twin = classes[re.findall(r"^class (\w+)", done, re.MULTILINE)[-1]]
        inherited = [classes[name].source for name in twin.bases if name in classes]
        done += _made(twin.source, inherited, twin.left_out | twin.by_hand)
    return done + rest


class _Twin:
    """A synchronous class as it stands in its module."""

    def __init__(self, node: ast.ClassDef, text: str) -> None:
        lines = text.splitlines(keepends=True)[node.lineno - 1 : node.end_lineno]
        # The last comment may be behind the last statement, where the syntax tree does not count it.
        begin = _BEGIN.search("".join(text.splitlines(keepends=True)[node.lineno - 1 : (node.end_lineno or 0) + 4]))
        self.source = begin["source"] if begin is not None else ""
        self.left_out = {name.strip() for name in (begin["left_out"] or "").split(",")} if begin is not None else set()
        self.bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
        first = next((number for number, line in enumerate(lines) if _BEGIN.fullmatch(line)), len(lines))
        last = next((number for number, line in enumerate(lines) if line == _END), len(lines))
        self.by_hand = {item.name for item in _functions(node) if not first <= item.lineno - node.lineno < last}


def _functions(node: ast.ClassDef) -> Iterator[_Function]:
    return (item for item in node.body if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)))


def _ancestry(source: str) -> list[type]:
    """Return the class at this dotted address and its bases."""
    module, _, name = source.rpartition(".")
    found: type = getattr(importlib.import_module(module), name)
    return list(found.__mro__[:-1])


def _made(source: str, inherited: list[str], without: set[str]) -> str:
    """Return the part for the class at this dotted address: its own methods first, then those of its bases.

    What the twin's own base was made from is left to that.
    """
    parts: list[str] = []
    seen = set(without)
    elsewhere = {one for address in inherited for one in _ancestry(address)}
    for one in _ancestry(source):
        if one in elsewhere:
            continue
        path = inspect.getsourcefile(one)
        if path is None:
            raise ValueError(f"{one} has no source")
        lines = Path(path).read_text().splitlines()
        tree = next(
            node
            for node in ast.parse("\n".join(lines)).body
            if isinstance(node, ast.ClassDef) and node.name == one.__name__
        )
        wanted = [item for item in _functions(tree) if not item.name.startswith("_") and item.name not in seen]
        parts += [_method(item, lines) for item in wanted if not _has(item, "staticmethod", "classmethod")]
        seen |= {item.name for item in wanted}
    return "\n" + "".join(f"{part}\n" for part in parts)


def _has(item: _Function, *decorators: str) -> bool:
    return any(isinstance(one, ast.Name) and one.id in decorators for one in item.decorator_list)


def _method(item: _Function, lines: list[str]) -> str:
    """Return the synchronous method for this one, indented as in a class."""
    returns = ast.unparse(item.returns) if item.returns is not None else "None"
    # A generator, or a function that returns one, becomes an iterator that waits for each item.
    stream = re.fullmatch(r"Async(?:Generator|Iterator)\[(?P<item>.*?)(?:, None)?\]", returns)
    result = f"Iterator[{stream['item']}]" if stream else _TWIN.sub(r"\1", returns)
    # An overload's only statement is its dots.
    text = [f"    @{name}" for name in ("overload", "property") if _has(item, name)]
    head = _wrapped(
        f"    def {item.name}(", _parameters(item), f") -> {result}:", " ..." if _has(item, "overload") else ""
    )
    if _has(item, "overload"):
        return "\n".join([*text, head, ""])
    text.append(head)
    if ast.get_docstring(item) is not None:
        text += [_TWIN.sub(r"\1", line) for line in lines[item.body[0].lineno - 1 : item.body[0].end_lineno]]
    text += _body(item, stream is not None, returns)
    return "\n".join([*text, ""])


def _parameters(item: _Function) -> list[str]:
    """Return the parameters with their types and defaults, `self` included, and `*` where it stands."""
    # The formatter's quotes, and its spaces around the default of a parameter that has a type.
    parts = _split(ast.unparse(item.args).replace("'", '"'))
    return [re.sub(r"(: [^=]+)=", r"\1 = ", part, count=1) for part in parts]


def _split(text: str) -> list[str]:
    """Split at the commas that are not in brackets or quotes."""
    parts, depth, quoted, start = [], 0, False, 0
    for index, character in enumerate(text):
        quoted ^= character == '"'
        if not quoted:
            depth += (character in "[({") - (character in "])}")
            if character == "," and not depth:
                parts.append(text[start:index].strip())
                start = index + 1
    return [*parts, text[start:].strip()]


def _arguments(item: _Function) -> list[str]:
    """Return how the parameters are handed on."""
    arguments = item.args
    plain = [one.arg for one in (*arguments.posonlyargs, *arguments.args)][1:]
    variable = [f"*{arguments.vararg.arg}"] if arguments.vararg is not None else []
    return [*plain, *variable, *(f"{one.arg}={one.arg}" for one in arguments.kwonlyargs)]


def _body(item: _Function, stream: bool, returns: str) -> list[str]:
    if _has(item, "property"):
        return [f"        return self._inner.{item.name}"]
    call = _wrapped(f"        self._inner.{item.name}(", _arguments(item), ")").strip()
    if stream:
        return [f"        yield from iterated(self._runtime, {call})"]
    if not isinstance(item, ast.AsyncFunctionDef):
        return [f"        return {call}"]
    twin = _TWIN.fullmatch(returns)
    if twin is not None:
        return _adopting(twin[1], call)
    if item.name == "close":  # The runtime's own end has closed it.
        return ["        if not self._runtime.closed:", f"            self._runtime.run({call})"]
    kept = "" if returns == "None" else "return "
    return [_wrapped(f"        {kept}self._runtime.run(", [call], ")", trailing=False)]


def _adopting(twin: str, call: str) -> list[str]:
    """Return lines that make the synchronous object for what was opened."""
    lines = [_wrapped("        opened = self._runtime.run(", [call], ")", trailing=False)]
    for special in _SPECIAL.get(twin, ()):
        lines.append(f"        if isinstance(opened, Async{special}):")
        lines.append(f"            return {special}(self._runtime, opened)")
    return [*lines, f"        return {twin}(self._runtime, opened)"]


def _wrapped(head: str, parts: list[str], tail: str, body: str = "", *, trailing: bool = True) -> str:
    """Join `head`, comma-separated parts and `tail`, broken as the formatter does: one line, an inner line, a line
    each."""
    whole = f"{head}{', '.join(parts)}{tail}{body}"
    if len(whole) <= _LINE:
        return whole
    indent = " " * (len(head) - len(head.lstrip()))
    inner = f"{indent}    {', '.join(parts)}"
    if len(inner) <= _LINE:
        return f"{head}\n{inner}\n{indent}{tail}{body}"
    comma = "," if trailing else ""
    return "\n".join([head, *(f"{indent}    {part}{comma}" for part in parts), f"{indent}{tail}{body}"])
