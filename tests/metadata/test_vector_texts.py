"""The vectors of docs/reference as people read them: the text beside a vector is what its bytes say.

A comment `# text:` above a vector shows them, with Python's escapes.
"""

from __future__ import annotations

import re

import pytest
from helpers.reference_vectors import REFERENCE, vectors

_TEXT = re.compile(r"^# text: (.*)\n([^#:\n][^:\n]*):", re.M)


@pytest.mark.parametrize("page", ["znodes.md", "records.md", "tables.md"])
def test_the_text_above_a_vector_is_what_it_says(page: str) -> None:
    source = (REFERENCE / page).read_text()
    shown = {name: text.encode("ascii").decode("unicode_escape").encode() for text, name in _TEXT.findall(source)}
    found = vectors(page)
    assert shown == {name: found[name] for name in shown}
    assert len(shown) == source.count("\n# text: ") > 0
