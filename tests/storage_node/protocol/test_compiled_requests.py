"""Requests of adds by the compiled core and by its twin: the same bytes as the messages have, and the same errors."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from helpers.twins import Draws, alike, answered_of, outcome, running_on
from helpers.twins import core as core
from helpers.twins import draws as draws
from hypothesis import given
from hypothesis import strategies as st

from metadata.bookkeeper.ledger_metadata import DigestType
from metadata.foundation import compiled
from metadata.foundation.compiled import CompiledCore
from storage_node.protocol.adds import Add, AddTemplate
from storage_node.protocol.digests import EntryDigest
from storage_node.protocol.encoding import RECOVERY_PRIORITY, encode_add_request, encode_add_response

pytestmark = [pytest.mark.timeout(0)]  # as many rounds as one has patience for
KEY = b"k" * 20
IDS = (0, 1, 127, 128, 16_383, 16_384, 2**21 - 1, 2**28, 2**56 - 1, 2**63 - 2)
NUMBERS = (0, 7, -1, 2**63 - 1, -(2**63))
NOT_NUMBERS = (2**63, -(2**63) - 1, None, 1.5, "7", b"7")
DIGESTS = [EntryDigest(one, b"secret") for one in DigestType]
ADD: Add = (3, 2, 9, 7, (b"pay", b"load"))


@given(
    st.sampled_from(IDS),
    st.sampled_from(IDS),
    st.lists(st.tuples(st.sampled_from(IDS), st.lists(st.binary(max_size=200), max_size=3)), min_size=1, max_size=5),
    st.sampled_from(DIGESTS),
    st.booleans(),
    st.booleans(),
)
def test_a_run_has_the_bytes_of_its_messages(
    txn_id: int,
    ledger_id: int,
    entries: list[tuple[int, list[bytes]]],
    digest: EntryDigest,
    recovery: bool,
    deferred: bool,
) -> None:
    template = AddTemplate(ledger_id, KEY, recovery=recovery, deferred_sync=deferred)
    adds: list[Add] = [(n, n - 1, n, sum(map(len, pieces)), tuple(pieces)) for n, pieces in entries]
    frames = answers = headers = b""
    sizes = set()
    for number, (entry_id, lac, length, size, pieces) in enumerate(adds, txn_id):
        header = digest.package(ledger_id, entry_id, lac, length, *pieces)
        head, tail = encode_add_request(
            number,
            ledger_id,
            entry_id,
            KEY,
            len(header) + size,
            recovery=recovery,
            deferred_sync=deferred,
            priority=RECOVERY_PRIORITY if recovery else 0,
        )
        answer = encode_add_response(number, 0, ledger_id, entry_id)
        frames += b"".join((head, header, *pieces, tail))
        answers += answer
        headers += header
        sizes.add(len(answer))
    expected = (frames, answers, headers, sizes.pop() if len(sizes) == 1 else 0)
    for used in (None, compiled.core):
        with running_on(used):
            assert template.run(digest, txn_id, adds) == expected


def requesting(draw: random.Random) -> Callable[[], object]:
    template = AddTemplate(draw.choice(IDS), KEY, recovery=draw.random() < 0.5, deferred_sync=draw.random() < 0.5)
    digest = draw.choice(DIGESTS)
    adds: list[Add] = []
    for _ in range(draw.choice((1, 2, 9))):
        ids = [draw.choice(NUMBERS) if draw.random() < 0.99 else draw.choice(NOT_NUMBERS) for _ in range(2)]
        data = [draw.randbytes(draw.choice((0, 1, 15, 300))) for _ in range(draw.randrange(4))]
        size = sum(map(len, data)) + (draw.random() < 0.01)
        pieces: list[object] = [draw.choice((bytes, bytearray, memoryview))(one) for one in data]
        if pieces and draw.random() < 0.01:
            pieces[-1] = draw.choice((None, 7, "text"))
        adds.append((draw.choice(IDS), *ids, size, tuple(pieces)))  # type: ignore[arg-type]
    txn_id = draw.choice(IDS)
    return lambda: template.run(digest, txn_id, adds)


def test_runs_good_and_bad(core: CompiledCore, draws: Draws) -> None:
    good = alike(core, draws, requesting)
    assert 0.6 * len(draws) < good < len(draws)


def test_no_argument_is_too_much_for_a_run(core: CompiledCore, draws: Draws) -> None:
    good = (8, (7, 1), (KEY, b"", b""), [ADD])
    assert answered_of(core, "encode_adds", good, draws) > len(draws) // 20


def test_a_size_that_no_payload_has_takes_no_memory(core: CompiledCore) -> None:
    assert core.encode_adds(8, (7, 1), (KEY, b"", b""), [(3, 2, 9, 2**62, (b"x",))]) is None


@pytest.mark.parametrize(("ledger_id", "txn_id"), [(7, 2**63), (7, 2**64 - 1), (2**63, 1), (2**64, 1)])
def test_ids_that_the_core_has_no_room_for_are_left_to_the_twin(
    core: CompiledCore, ledger_id: int, txn_id: int
) -> None:
    assert core.encode_adds(8, (ledger_id, txn_id), (KEY, b"", b""), [ADD]) is None
    template = AddTemplate(ledger_id, KEY)
    found = []
    for used in (None, core):
        with running_on(used):
            found.append(outcome(lambda: template.run(DIGESTS[0], txn_id, [ADD])))
    assert found[0] == found[1]
    assert (found[0][0] == "result") is (ledger_id == 7)
