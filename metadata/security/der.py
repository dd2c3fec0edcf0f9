"""DER as certificates have it: a strict reader of nested elements, which trusts no length that a file or peer gives.

Certificates are verified by OpenSSL, and nothing here verifies any. What is read here is what `ssl` does not say:
names, serial numbers and times of a certificate that has been verified already, and of revocation lists. Every fault of
the encoding is a `DerError`, never a guess. Source: ITU-T X.690.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Final

BOOLEAN: Final = 0x01
INTEGER: Final = 0x02
BIT_STRING: Final = 0x03
OCTET_STRING: Final = 0x04
OBJECT_ID: Final = 0x06
UTC_TIME: Final = 0x17
GENERALIZED_TIME: Final = 0x18
SEQUENCE: Final = 0x30
SET: Final = 0x31

_TEXTS: Final = {
    0x0C: "utf-8",  # UTF8String
    0x12: "ascii",  # NumericString
    0x13: "ascii",  # PrintableString
    0x14: "latin-1",  # TeletexString, as everybody reads it
    0x16: "ascii",  # IA5String
    0x1C: "utf-32-be",  # UniversalString
    0x1E: "utf-16-be",  # BMPString
}
_MAX_LENGTH_BYTES: Final = 4


class DerError(ValueError):
    """The bytes are not DER, or not what was expected there."""


@dataclass(frozen=True, slots=True)
class Element:
    """Which kind of element is it, and what is in it?"""

    tag: int
    content: bytes
    whole: bytes
    """With its tag and length, as it stood there."""

    def expect(self, tag: int) -> Element:
        """Return this element. Raises DerError unless it has the tag."""
        if self.tag != tag:
            raise DerError(f"an element has tag {self.tag:#04x} where {tag:#04x} was expected")
        return self

    def children(self) -> list[Element]:
        """Return the elements inside of this one, in order. Raises DerError."""
        return list(elements(self.content))

    def integer(self) -> int:
        """Return the number that it is. Raises DerError."""
        self.expect(INTEGER)
        if not self.content:
            raise DerError("a number has no bytes")
        return int.from_bytes(self.content, "big", signed=True)

    def object_id(self) -> str:
        """Return the object identifier in dots. Raises DerError."""
        self.expect(OBJECT_ID)
        if not self.content or self.content[-1] & 0x80:
            raise DerError("an object identifier ends too soon")
        arcs: list[int] = []
        arc = 0
        for byte in self.content:
            arc = arc << 7 | byte & 0x7F
            if not byte & 0x80:
                arcs.append(arc)
                arc = 0
        first = min(arcs[0] // 40, 2)
        return ".".join(map(str, (first, arcs[0] - 40 * first, *arcs[1:])))

    def text(self) -> str:
        """Return the text that it is. Raises DerError, also for another kind of value."""
        encoding = _TEXTS.get(self.tag)
        if encoding is None:
            raise DerError(f"an element of tag {self.tag:#04x} is not a text")
        try:
            return self.content.decode(encoding)
        except UnicodeDecodeError as error:
            raise DerError(f"a text is not {encoding}") from error

    def time_s(self) -> float:
        """Return the time that it is, in seconds since the epoch. Raises DerError."""
        if self.tag not in (UTC_TIME, GENERALIZED_TIME):
            raise DerError(f"an element of tag {self.tag:#04x} is not a time")
        try:
            digits = self.content.decode("ascii")
            if self.tag == UTC_TIME:
                # RFC 5280, 4.1.2.5.1: two digits of 50 and more are the last century's.
                digits = ("19" if digits[:2] >= "50" else "20") + digits
            moment = datetime.strptime(digits, "%Y%m%d%H%M%SZ")
        except ValueError as error:
            raise DerError("a time is not written as RFC 5280 has it") from error
        return moment.replace(tzinfo=timezone.utc).timestamp()


def elements(content: bytes) -> Iterator[Element]:
    """Yield the elements of which `content` consists, one after the other. Raises DerError."""
    at = 0
    while at < len(content):
        end = _end(content, at)
        head = end[0]
        yield Element(content[at], content[head : end[1]], content[at : end[1]])
        at = end[1]


def only_element(content: bytes) -> Element:
    """Return the one element that `content` is. Raises DerError where there is none, or more behind it."""
    found = list(elements(content))
    if len(found) != 1:
        raise DerError(f"there are {len(found)} elements where one was expected")
    return found[0]


def _end(content: bytes, at: int) -> tuple[int, int]:
    """Return where the content of the element at `at` begins, and where it ends."""
    if content[at] & 0x1F == 0x1F:
        raise DerError("an element has a tag of several bytes")
    if at + 2 > len(content):
        raise DerError("an element ends before its length")
    length = content[at + 1]
    begin = at + 2
    if length & 0x80:
        count = length & 0x7F
        if not 1 <= count <= _MAX_LENGTH_BYTES or begin + count > len(content):
            raise DerError("the length of an element is not given, or too long")
        length = int.from_bytes(content[begin : begin + count], "big")
        begin += count
    if begin + length > len(content):
        raise DerError("an element is longer than what it stands in")
    return begin, begin + length
