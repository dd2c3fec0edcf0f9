"""Text and HTML for people: payloads in a line, escaped cells, tables.

Stored bytes never reach a page unchanged. A payload could hold a script, a terminal's control sequences, or characters
that change the direction of writing: what is not printable is shown as Python's escapes, and all is escaped for HTML.
"""

from __future__ import annotations

import codecs
import html
from collections.abc import Iterable, Sequence

MAX_PREVIEW = 100
"""Characters of a payload that are shown."""
_MAX_BYTES = 4 * MAX_PREVIEW
_TABLE = '<table style="text-align:left;border-collapse:collapse">'
_CELL = "padding:0.15em 0.8em 0.15em 0;text-align:left;vertical-align:top"


class Printed:
    """Shown as `str` has it also where Python and IPython ask for `repr`: these objects are made for people."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def preview(payload: bytes | memoryview) -> str:
    """Return a payload in at most one line: its text where it is UTF-8, else bytes as Python writes them."""
    size = len(payload)
    head = bytes(payload[:_MAX_BYTES])
    try:
        whole = printable(codecs.getincrementaldecoder("utf-8")().decode(head, final=size <= _MAX_BYTES))
    except UnicodeDecodeError:
        whole = repr(head)
    if len(whole) <= MAX_PREVIEW and size <= _MAX_BYTES:
        return whole
    return f"{whole[:MAX_PREVIEW]}… ({size:,} bytes)"


def printable(text: str) -> str:
    """Return `text` in which every character that is not printable is written as Python's escape."""
    return text if text.isprintable() else repr(text)[1:-1]


def escaped(value: object) -> str:
    """Return `value` as text that HTML shows and does not interpret, between tags and in attributes."""
    return html.escape(printable(str(value)), quote=True)


def code(value: object) -> str:
    """Return `value`, escaped, in a fixed-width font."""
    return f"<code>{escaped(value)}</code>"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table of plain values, all escaped."""
    lines = [_TABLE, "<thead><tr>"]
    lines += [f'<th style="{_CELL}">{escaped(name)}</th>' for name in head]
    lines.append("</tr></thead><tbody>")
    for row in rows:
        lines.append("<tr>" + "".join(f'<td style="{_CELL}">{escaped(cell)}</td>' for cell in row) + "</tr>")
    lines.append("</tbody></table>")
    return "".join(lines)


def heading(title: str, note: str = "") -> str:
    """Return a line above a picture or table; both parts are escaped."""
    return f"<div><b>{escaped(title)}</b>{' — ' if note else ''}{escaped(note)}</div>"


def folded(title: str, content: str) -> str:
    """Return HTML `content` under a line that opens and closes it; at first closed."""
    return f"<details><summary>{escaped(title)}</summary>{content}</details>"


def failure(title: str, error: BaseException) -> str:
    """Return the HTML for an object that could not be looked up: a title and the reason, in place of a stack trace."""
    reason = str(error) or "no reason given"
    return heading(title) + f"<div>cannot be shown: {escaped(f'{type(error).__name__}: {reason}')}</div>"
