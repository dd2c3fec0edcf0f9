"""Digests by the compiled core and by its twins: the same bytes, and the same errors for entries good or bad."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from helpers.entry_mutations import mutated
from helpers.twins import Draws, alike, answered_of
from helpers.twins import core as core
from helpers.twins import draws as draws

from metadata.bookkeeper.ledger_metadata import DigestType
from metadata.foundation.compiled import CompiledCore
from storage_node.protocol.digests import EntryDigest

pytestmark = [pytest.mark.timeout(0)]  # as many rounds as one has patience for
NUMBERS = (0, 1, 7, -1, 2**63 - 1, -(2**63))
NOT_NUMBERS = (2**63, -(2**63) - 1, None, 1.5, "7", b"7")
DIGESTS = [EntryDigest(one, b"secret") for one in DigestType]


def packaging(draw: random.Random) -> Callable[[], object]:
    digest = draw.choice(DIGESTS)
    ids = [draw.choice(NUMBERS) if draw.random() < 0.97 else draw.choice(NOT_NUMBERS) for _ in range(4)]
    pieces: list[object] = [draw.randbytes(draw.choice((0, 1, 15, 300))) for _ in range(draw.randrange(4))]
    pieces = [draw.choice((bytes, bytearray, memoryview))(one) for one in pieces]
    if pieces and draw.random() < 0.05:
        pieces[-1] = draw.choice((None, 7, "text"))
    return lambda: digest.package(*ids, *pieces)


def test_headers_and_their_digests(core: CompiledCore, draws: Draws) -> None:
    good = alike(core, draws, packaging)
    assert 0.6 * len(draws) < good < len(draws)


def verifying(draw: random.Random) -> Callable[[], object]:
    digest = draw.choice(DIGESTS)
    ledger, number = draw.choice(NUMBERS), draw.choice(NUMBERS)
    payload = draw.randbytes(draw.choice((0, 1, 15, 300)))
    entry = digest.package(ledger, number, draw.choice(NUMBERS), draw.choice(NUMBERS), payload) + payload
    if draw.random() < 0.3:
        entry = mutated(draw, entry)
    asked_ledger = ledger if draw.random() < 0.9 else draw.choice((*NUMBERS, *NOT_NUMBERS))
    asked = number if draw.random() < 0.9 else draw.choice((*NUMBERS, *NOT_NUMBERS))
    return lambda: digest.verify(asked_ledger, asked, memoryview(entry))


def test_entries_good_and_bad(core: CompiledCore, draws: Draws) -> None:
    good = alike(core, draws, verifying)
    assert 0.4 * len(draws) < good < 0.9 * len(draws)


@pytest.mark.parametrize(
    ("name", "good"),
    [
        ("package_entry", (8, (1, 2, 3, 4), (b"payload",))),
        ("verify_entry", (8, 1, 2, DIGESTS[0].package(1, 2, 3, 4, b"payload") + b"payload")),
    ],
)
def test_no_argument_is_too_much_for_a_digest(
    name: str, good: tuple[object, ...], core: CompiledCore, draws: Draws
) -> None:
    assert DIGESTS[0].digest_size == good[0]
    assert answered_of(core, name, good, draws) > len(draws) // 20
