"""`Mutation`: one safety rule of the product, and how a function looks without it.

A mutation is made in one of two ways: `edited` changes a line of the function's own text, as the mistake would be made;
a function of its own stands in where the mistake is not one line.
"""

from __future__ import annotations
import __future__

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from textwrap import dedent
from typing import Any

Method = Callable[..., Any]
_ANNOTATIONS = __future__.annotations.compiler_flag


@dataclass(frozen=True, slots=True)
class Mutation:
    """`rule` names what is missing; `replace` makes the mutated function of the original one."""

    rule: str
    owner: object
    attribute: str
    replace: Callable[[Method], object]
    also: tuple[str, ...] = ()
    """Rules that must go with it: alone they make up for it."""


def edited(*edits: tuple[str, str]) -> Callable[[Method], object]:
    """Return the same function with pieces of its text replaced, each of which must be in it exactly once.

    Raises ValueError where one is not: the product has changed, and the mutation has to follow.
    """

    def replace(original: Method) -> object:
        source = dedent(inspect.getsource(original))
        for old, new in edits:
            if source.count(old) != 1:
                raise ValueError(f"{original.__qualname__} holds {old!r} {source.count(old)} times, not once")
            source = source.replace(old, new)
        made: dict[str, object] = {}
        code = compile(source, inspect.getfile(original), "exec", flags=_ANNOTATIONS, dont_inherit=True)
        exec(code, original.__globals__, made)
        return made[original.__name__]

    return replace
