"""Python sources as trees, for tests that look at the house itself."""

from __future__ import annotations

import ast
import gc


def parse(source: str, filename: str = "<unknown>") -> ast.Module:
    """Parse a source while no garbage is collected.

    A collection may report an exception that nobody took, and its traceback parses lines of source as well. CPython
    3.11 takes that for a fault of the parsing that was under way and raises SystemError ("AST constructor recursion
    depth mismatch").
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source, filename)
    finally:
        if collects:
            gc.enable()
