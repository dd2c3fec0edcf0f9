"""The loader of the reference pages' test vectors: what it reads, and what it refuses."""

from __future__ import annotations

import pytest
from helpers.reference_vectors import read_vectors, vectors

PAGE = """# A page

```text
other: block
```

```vectors
# A comment.
short: 0a ff
long: 00112233
  44 55

  66
```

Text between: not read.

```vectors
in the next block:
  7f
```
"""


def block(*lines: str) -> str:
    return "\n".join(["```vectors", *lines, "```", ""])


def test_blocks_of_vectors_are_read_in_order_and_other_blocks_are_not() -> None:
    read = read_vectors(PAGE, "page.md")
    assert list(read.items()) == [
        ("short", b"\x0a\xff"),
        ("long", bytes.fromhex("00112233445566")),
        ("in the next block", b"\x7f"),
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (block("a: 00", "a: 00"), "page.md, line 3: the name 'a' stands twice, first in line 2"),
        (block("a: 00") + block("a: 01"), "stands twice"),
        (block("a: 0"), "page.md, line 2: a: not pairs"),
        (block("a: 0g"), "not pairs"),
        (block("a: 0x00"), "not pairs"),
        (block("a: AA"), "not pairs"),
        (block("a:"), "not pairs"),
        (block("no colon"), "not `name: hex`"),
        (block(": 00"), "not `name: hex`"),
        (block("  00"), "continues no vector"),
        (block("a: 00") + block("  00"), "page.md, line 5: continues no vector"),
        ("```vectors\na: 00\n", "has no end"),
    ],
)
def test_what_is_not_a_vector_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read_vectors(text, "page.md")


def test_a_page_that_is_not_there_is_refused() -> None:
    with pytest.raises(FileNotFoundError, match=r"no-such-page\.md"):
        vectors("no-such-page.md")


def test_a_page_without_vectors_is_refused() -> None:
    with pytest.raises(ValueError, match=r"README\.md: no vectors"):
        vectors("README.md")
