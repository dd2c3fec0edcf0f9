"""Control records of producers: what is written is read back, and what is damaged is refused."""

from __future__ import annotations

import pytest
from helpers.reference_vectors import vectors
from hypothesis import given
from hypothesis import strategies as st

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.producer_records import (
    KEPT,
    MAX_NAME_BYTES,
    MAX_TOKEN_BYTES,
    FencingToken,
    Kept,
    ProducerRequest,
    ProducerState,
    SnapshotPart,
    decode_control,
    encode_snapshot,
    seen_ms,
)
from dlspark.core.codec.records import CONTROL_PAYLOAD, KEEPALIVE_PAYLOAD
from dlspark.errors import InvalidEntryError, InvalidRecordError

LONG = st.integers(0, 2**63 - 1)
COUNT = st.integers(1, 2**31)
LEFT_OUT = st.one_of(st.just(-1), LONG)
NAMES = st.text(min_size=1, max_size=20)
KEPTS = st.builds(Kept, LONG, st.builds(DLSN, LONG, LONG, st.integers(0, 2**31)), COUNT)
STATES = st.builds(ProducerState, LONG, st.integers(-1, 2**63 - 1), LONG, st.lists(KEPTS, max_size=KEPT).map(tuple))


@given(NAMES, LONG, LONG, COUNT)
def test_a_request_is_read_back(name: str, epoch: int, sequence: int, count: int) -> None:
    request = ProducerRequest(name, epoch, sequence, count)
    assert decode_control(request.encode()) == request


def test_the_bytes_are_those_of_the_reference() -> None:
    told = vectors("records.md")
    assert ProducerRequest("sensor-7", 2, 41, 100).encode() == told["producers request"]
    assert FencingToken(b"mine").encode() == told["producers token"]
    state = ProducerState(1, 0, 7, (Kept(0, DLSN(1, 2, 3), 4),))
    assert encode_snapshot([state.encode("p")], b"t", 1000) == [told["producers snapshot"]]
    assert encode_snapshot([], b"", 1000, 9) == [told["producers remembered"]]


@given(st.dictionaries(NAMES, STATES, max_size=30), st.binary(max_size=MAX_TOKEN_BYTES), st.integers(1, 3000), LEFT_OUT)
def test_a_snapshot_is_read_back_whatever_its_parts(
    states: dict[str, ProducerState], token: bytes, part_bytes: int, forgotten: int
) -> None:
    encoded = [state.encode(name) for name, state in states.items()]
    payloads = encode_snapshot(encoded, token, part_bytes, forgotten)
    read: dict[str, ProducerState] = {}
    for number, payload in enumerate(payloads):
        part = decode_control(payload)
        assert isinstance(part, SnapshotPart)
        assert (part.number, part.parts, part.token) == (number, len(payloads), token)
        assert part.forgotten == forgotten
        assert len(part.states) == 1 or len(payload) < part_bytes + 100 + len(token)
        read |= {name: ProducerState.decode(state) for name, state in part.states.items()}
    assert read == states
    assert all(seen_ms(state.encode(name)) == state.seen_ms for name, state in states.items())
    newest = [decode_control(payload).newest_ms for payload in payloads]  # type: ignore[union-attr]
    assert max((one for one in newest if one is not None), default=None) == max(
        (state.seen_ms for state in states.values()), default=None
    )


def test_the_token_is_read_back_and_has_a_limit() -> None:
    assert decode_control(FencingToken(b"mine").encode()) == FencingToken(b"mine")
    assert decode_control(FencingToken(b"").encode()) == FencingToken(b"")
    with pytest.raises(InvalidRecordError, match="longer than 36"):
        FencingToken(bytes(37)).encode()


@pytest.mark.parametrize(
    "payload", [CONTROL_PAYLOAD, KEEPALIVE_PAYLOAD, b"", b"\x00", b"dlp", b"dlp:", b"dlpx:", b"heartbeat"]
)
def test_other_control_records_say_nothing_of_producers(payload: bytes) -> None:
    assert decode_control(payload) is None


@pytest.mark.parametrize("name", ["", "n" * (MAX_NAME_BYTES + 1), "ü" * 129])
def test_a_name_has_limits(name: str) -> None:
    with pytest.raises(InvalidRecordError, match="name"):
        ProducerRequest(name, 0, 0, 1).encode()


@pytest.mark.parametrize(("epoch", "sequence"), [(-1, 0), (0, -2), (2**63, 0), (0, 2**63)])
def test_numbers_have_limits(epoch: int, sequence: int) -> None:
    with pytest.raises(InvalidRecordError, match="out of range"):
        ProducerRequest("p", epoch, sequence, 1).encode()


@pytest.mark.parametrize("sequence", [0, -1, 41])
def test_a_request_that_is_not_whole_is_refused_with_its_place(sequence: int) -> None:
    place = DLSN(3, 1, 4)
    whole = ProducerRequest("p", 1, sequence, 3 if sequence >= 0 else 0).encode()
    for end in range(len(b"dlp1:"), len(whole)):
        with pytest.raises(InvalidEntryError, match=r"damaged|not known") as caught:
            decode_control(whole[:end], place)
        assert caught.value.dlsn == place


def test_a_snapshot_that_is_cut_off_or_too_long_is_refused() -> None:
    whole = encode_snapshot([ProducerState(1, 0, 0, (Kept(0, DLSN(1, 2, 3), 4),)).encode("p")], b"t", 1000)[0]
    for end in range(len(b"dlp1:"), len(whole)):
        with pytest.raises(InvalidEntryError, match=r"damaged|not known"):
            decode_control(whole[:end])
    with pytest.raises(InvalidEntryError, match="left over"):
        decode_control(whole + b"x")


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b"dlp2:request:0:0:1:p", "version dlp2"),
        (b"dlp10:request:0:0:1:p", "version dlp10"),
        (b"dlp1:other:", "kind b'other'"),
        (b"dlp1:fence", "kind b'fence'"),
        (b"dlp1:request:-1:0:1:p", "damaged"),
        (b"dlp1:request:0:-2:1:p", "damaged"),
        (b"dlp1:request:0:-1:1:p", "damaged"),
        (b"dlp1:request:0:0:0:p", "damaged"),
        (b"dlp1:request:0:9223372036854775808:1:p", "damaged"),
        (b"dlp1:request:0:0:1:\xff", "damaged"),
        (b"dlp1:request: 0:0:1:p", "damaged"),
    ],
)
def test_what_is_not_understood_is_refused_and_not_passed_over(payload: bytes, said: str) -> None:
    with pytest.raises(InvalidEntryError, match=said):
        decode_control(payload)


@given(st.sampled_from([b"", b"dlp1:", b"dlp1:request:", b"dlp1:producers:", b"dlp1:fence:"]), st.binary(max_size=200))
def test_whatever_follows_is_read_or_refused(head: bytes, rest: bytes) -> None:
    try:
        decode_control(head + rest)
    except InvalidEntryError:
        pass
