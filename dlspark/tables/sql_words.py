"""The words of SQL texts: names, numbers, strings and signs, each with where it stands.

What columns are (`ddl`) and which rows are wanted (`conditions`) are read from these. A comment goes from two minus
signs to the end of the line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dlspark.tables.errors import SqlTextError

MAX_CHARS: Final = 1 << 20
"""Of a text."""
_BLANK: Final = re.compile(r"(?:\s|--[^\n]*(?:\n|\Z))*")
_WORD: Final = re.compile(
    _BLANK.pattern
    + r"""(?:(?P<name>[^\W\d]\w*)
            |`(?P<quoted>(?:[^`]|``)+)`
            |(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
            |'(?P<text>(?:[^']|'')*)'
            |(?P<sign><=|>=|<>|!=|==|[-+<>=(),:.])
            |(?P<end>\Z)
        )""",
    re.VERBOSE,
)


class WordKind(Enum):
    """What is a word?"""

    NAME = "name"
    QUOTED = "quoted"
    NUMBER = "number"
    TEXT = "text"
    SIGN = "sign"
    END = "end"


@dataclass(frozen=True, slots=True)
class Word:
    """One word.

    Args:
        kind: What it is.
        text: A name or string without its quotes, anything else as it stands.
        at: Its place in the text, from 1.
    """

    kind: WordKind
    text: str
    at: int

    def says(self, *keywords: str) -> bool:
        """Return whether it is one of these keywords, in any case, or of these signs."""
        return self.kind in (WordKind.NAME, WordKind.SIGN) and self.text.upper() in keywords


class Words:
    """The words of a text, taken one after the other.

    Args:
        text: The text.
        advice: What errors say that it may be.
    """

    def __init__(self, text: str, advice: str) -> None:
        self._advice = advice
        if len(text) > MAX_CHARS:
            raise SqlTextError(f"A text of {len(text)} characters is too long; nothing was done", advice=advice)
        self._words = self._split(text)
        self._next = 0

    def _split(self, text: str) -> list[Word]:
        found: list[Word] = []
        at = 0
        while not found or found[-1].kind is not WordKind.END:
            match = _WORD.match(text, at)
            if match is None or match.lastgroup is None:
                place = _BLANK.match(text, at).end()  # type: ignore[union-attr]
                what = "a quote that is not closed" if text[place] in "'`" else repr(text[place])
                raise self._error(f"there is {what}", place + 1)
            kind = WordKind(match.lastgroup)
            quote = {WordKind.QUOTED: "`", WordKind.TEXT: "'"}.get(kind, "")
            start = match.start(match.lastgroup) + 1 - len(quote)
            found.append(Word(kind, match[match.lastgroup].replace(quote * 2, quote or ""), start))
            at = match.end()
        return found

    def peek(self) -> Word:
        """Return the next word, which stays there; at the end one of kind END."""
        return self._words[self._next]

    def take(self) -> Word:
        """Take the next word."""
        word = self._words[self._next]
        if word.kind is not WordKind.END:
            self._next += 1
        return word

    def took(self, *keywords: str) -> bool:
        """Take these words if they are the next ones, all or none; return whether they were."""
        after = self._words[self._next : self._next + len(keywords)]
        if len(after) < len(keywords) or not all(one.says(word) for one, word in zip(after, keywords, strict=True)):
            return False
        self._next += len(keywords)
        return True

    def need(self, keyword: str) -> None:
        """Take this word. Raises SqlTextError for another one."""
        if not self.took(keyword):
            raise self.error(f"{keyword} is missing")

    def name(self, what: str) -> str:
        """Take a name. Raises SqlTextError for anything else."""
        if self.peek().kind not in (WordKind.NAME, WordKind.QUOTED):
            raise self.error(f"{what} is missing")
        return self.take().text

    def end(self) -> None:
        """Raise SqlTextError unless all words were taken."""
        if self.peek().kind is not WordKind.END:
            raise self.error(f"{self.peek().text!r} is one word too many")

    def error(self, what: str, word: Word | None = None) -> SqlTextError:
        """Return an error at a word, the next one if not said."""
        word = word or self.peek()
        before = "" if word.kind is WordKind.END else f", before {word.text!r}" if word is self.peek() else ""
        return self._error(what + (before if what.endswith("missing") else ""), word.at)

    def _error(self, what: str, at: int) -> SqlTextError:
        return SqlTextError(f"Character {at}: {what}; nothing was done", advice=self._advice)
