"""Numbers with the things that they count, as messages say them."""

from __future__ import annotations


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return `1 segment`, `2,000 segments`; `many` is for a noun that does not just take an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
