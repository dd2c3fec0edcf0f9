"""Ledger metadata: the vectors of docs/reference/znodes.md#znode-vectors, and what is not ledger metadata."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.reference_vectors import vectors
from hypothesis import given
from hypothesis import strategies as st

from metadata.bookkeeper.ledger_metadata import DigestType, Ensemble, LedgerMetadata, LedgerState
from metadata.foundation.errors import CallerError, CorruptDataError, InvariantViolation

FIRST = ("10.0.0.1:3181", "10.0.0.2:3181", "10.0.0.3:3181")
SECOND = ("10.0.0.1:3181", "10.0.0.2:3181", "10.0.0.4:3181")

VECTORS = vectors("znodes.md")
OPEN_V3, CLOSED_V3 = VECTORS["ledger metadata 3, open"], VECTORS["ledger metadata 3, closed"]
CLOSED_V2, CLOSED_V1 = VECTORS["ledger metadata 2, closed"], VECTORS["ledger metadata 1, closed"]

OPEN = LedgerMetadata(
    ensemble_size=3,
    write_quorum=3,
    ack_quorum=2,
    ensembles=(Ensemble(0, FIRST),),
    digest_type=DigestType.CRC32C,
    password=b"secret",
    custom={"app": b"x"},
    creator_token=1234567890123456789,
)
CLOSED = LedgerMetadata(
    ensemble_size=3,
    write_quorum=3,
    ack_quorum=2,
    ensembles=(Ensemble(0, FIRST), Ensemble(50, SECOND)),
    state=LedgerState.CLOSED,
    last_entry=99,
    length=1600,
    creator_token=0,
)


@pytest.mark.parametrize(
    ("value", "data"),
    [
        pytest.param(OPEN, OPEN_V3, id="v3 OPEN, CRC32C, custom, token (131 B)"),
        pytest.param(CLOSED, CLOSED_V3, id="v3 CLOSED, two segments, empty password (148 B)"),
        pytest.param(
            replace(
                CLOSED,
                ensembles=(Ensemble(0, FIRST),),
                digest_type=DigestType.HMAC,
                password=b"secret",
                creator_token=None,
                format_version=2,
            ),
            CLOSED_V2,
            id="v2 CLOSED (text)",
        ),
        pytest.param(
            replace(
                CLOSED,
                write_quorum=2,
                digest_type=None,
                password=None,
                creator_token=None,
                format_version=1,
            ),
            CLOSED_V1,
            id="v1, two ensembles, closed at 99",
        ),
    ],
)
def test_ledger_metadata_has_the_bytes_of_the_vectors(value: LedgerMetadata, data: bytes) -> None:
    assert value.encode() == data
    assert LedgerMetadata.decode(data, "/ledgers/00/0001/L2345") == value


def test_the_vectors_of_version_3_have_their_lengths() -> None:
    assert (len(OPEN_V3), len(CLOSED_V3)) == (131, 148)


def test_version_1_in_recovery_is_entry_minus_102() -> None:
    data = CLOSED_V1.replace(b"99\tCLOSED", b"-102\tCLOSED")
    value = LedgerMetadata.decode(data, "p")
    assert (value.state, value.last_entry, value.length) == (LedgerState.IN_RECOVERY, -1, 0)
    assert LedgerMetadata.decode(value.encode(), "p") == value


def test_version_1_open_ends_after_its_ensembles() -> None:
    value = LedgerMetadata.decode(CLOSED_V1.removesuffix(b"99\tCLOSED"), "p")
    assert (value.state, value.last_ensemble.first_entry) == (LedgerState.OPEN, 50)


def test_last_entry_and_length_mean_nothing_unless_closed() -> None:
    odd = CLOSED_V2.replace(b"state: CLOSED", b"state: OPEN")
    value = LedgerMetadata.decode(odd, "p")
    assert (value.last_entry, value.length) == (-1, 0)
    assert b"lastEntryId: -1" in value.encode()
    assert b"length: 0" in value.encode()


def test_text_is_read_leniently() -> None:
    shuffled = CLOSED_V2.replace(b"quorumSize: 3\nensembleSize: 3\n", b"").replace(
        b"ackQuorumSize: 2\n", b"  ackQuorumSize : 2 ensembleSize:3\tquorumSize: 3 newField: 7\n"
    )
    assert LedgerMetadata.decode(shuffled, "p") == LedgerMetadata.decode(CLOSED_V2, "p")


def test_an_absent_ack_quorum_is_the_write_quorum() -> None:
    assert LedgerMetadata.decode(CLOSED_V2.replace(b"ackQuorumSize: 2\n", b""), "p").ack_quorum == 3


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        b"BookieMetadataFormatVersion\t3",
        b"BookieMetadataFormatVersion\t3\n",
        b"BookieMetadataFormatVersion\t4\n" + OPEN_V3[30:],
        b"BookieMetadataFormatVersion\t0\n",
        b"BookieMetadataFormatVersion\tx\n",
        b"BookieMetadataFormatVersion\t-1\n",
        OPEN_V3[:-1],
        OPEN_V3 + b"\0",
        OPEN_V3[:30] + b"\xff" * 11,
        OPEN_V3[:30] + b"\x00",
        OPEN_V3[:31] + b"\xff" * 100,
        OPEN_V3.replace(b"\x10\x03\x18", b"\x10\x04\x18"),
        CLOSED_V2[:-20],
        CLOSED_V2.replace(b"state: CLOSED", b"state: MELTED"),
        CLOSED_V2.replace(b"state: CLOSED\n", b""),
        CLOSED_V2.replace(b"lastEntryId: 99\n", b""),
        CLOSED_V2.replace(b'password: "secret"\n', b""),
        CLOSED_V2.replace(b"digestType: HMAC\n", b""),
        CLOSED_V2.replace(b"quorumSize: 3\n", b"quorumSize: 4\n", 1),
        CLOSED_V2.replace(b"ackQuorumSize: 2", b"ackQuorumSize: 0"),
        CLOSED_V2 + b"\xff\xfe",
        CLOSED_V1.replace(b"50\t", b"0\t"),
        CLOSED_V1.replace(b"50\t10.0.0.1:3181\t", b"50\t"),
        CLOSED_V1.replace(b"1600", b"many"),
        CLOSED_V1 + b"\n100\tCLOSED",
        b"BookieMetadataFormatVersion\t1\n2\n3\n0\n",
        b"BookieMetadataFormatVersion\t1\n2\n",
    ],
)
def test_what_is_not_ledger_metadata_is_corrupt_and_names_its_path(data: bytes) -> None:
    with pytest.raises(CorruptDataError) as caught:
        LedgerMetadata.decode(data, "/ledgers/00/0000/L0001")
    assert caught.value.path == "/ledgers/00/0000/L0001"


@given(st.binary(max_size=200))
def test_any_bytes_are_corrupt_or_decode_to_what_they_are_encoded_to_again(tail: bytes) -> None:
    for version in (1, 2, 3):
        try:
            found = LedgerMetadata.decode(b"BookieMetadataFormatVersion\t%d\n" % version + tail, "p")
        except CorruptDataError:
            continue
        assert LedgerMetadata.decode(found.encode(), "p") == found


@given(st.integers(0, 130), st.integers(0, 255))
def test_a_changed_byte_is_noticed_or_gives_valid_metadata(place: int, byte: int) -> None:
    data = bytearray(OPEN_V3)
    data[place] = byte
    try:
        found = LedgerMetadata.decode(bytes(data), "p")
    except CorruptDataError:
        return
    assert LedgerMetadata.decode(found.encode(), "p") == found


@given(
    sizes=st.tuples(st.integers(1, 5), st.integers(0, 4), st.integers(0, 4)),
    starts=st.lists(st.integers(0, 2**62), min_size=1, max_size=4, unique=True).map(sorted),
    state=st.sampled_from(LedgerState),
    last_entry=st.integers(-1, 2**63 - 1),
    length=st.integers(0, 2**63 - 1),
    digest=st.sampled_from(DigestType),
    password=st.binary(max_size=20),
    custom=st.dictionaries(st.text(max_size=8), st.binary(max_size=8), max_size=3),
    ctime=st.none() | st.integers(0, 2**62),
    version=st.sampled_from([2, 3]),
)
def test_every_valid_value_comes_back(
    sizes, starts, state, last_entry, length, digest, password, custom, ctime, version
) -> None:
    ensemble = sizes[0]
    write = max(1, ensemble - sizes[1])
    value = LedgerMetadata(
        ensemble_size=ensemble,
        write_quorum=write,
        ack_quorum=max(1, write - sizes[2]),
        ensembles=tuple(Ensemble(start, tuple(f"b{n}:{start % 7}" for n in range(ensemble))) for start in starts),
        state=state,
        last_entry=last_entry if state is LedgerState.CLOSED else -1,
        length=length if state is LedgerState.CLOSED else 0,
        digest_type=digest,
        password=password,
        custom=custom,
        ctime_ms=ctime,
        format_version=version,
    )
    assert LedgerMetadata.decode(value.encode(), "p") == value


# ---- changes ---------------------------------------------------------------------------------------------------------


def test_an_entry_lies_in_the_last_fragment_that_starts_at_or_before_it() -> None:
    assert [CLOSED.ensemble_for(entry).first_entry for entry in (0, 49, 50, 51, 10**9)] == [0, 0, 50, 50, 50]
    with pytest.raises(InvariantViolation):
        CLOSED.ensemble_for(-1)


@pytest.mark.parametrize(
    ("lac", "last_key", "starts"),
    [(41, 0, [0, 42]), (-1, 0, [0]), (41, 42, [0, 42])],
    ids=["LAC=41,lastKey=0 -> append 42", "LAC=-1,lastKey=0 -> replace 0", "LAC=41,lastKey=42 -> replace 42"],
)
def test_an_ensemble_change_appends_a_fragment_or_replaces_the_last_one(
    lac: int, last_key: int, starts: list[int]
) -> None:
    value = OPEN if last_key == 0 else OPEN.with_ensemble(last_key, FIRST)
    changed = value.with_ensemble(lac + 1, SECOND)
    assert [part.first_entry for part in changed.ensembles] == starts
    assert changed.last_ensemble == Ensemble(lac + 1, SECOND)


def test_an_update_zeroes_the_creator_token_and_keeps_everything_else() -> None:
    recovering = OPEN.with_state(LedgerState.IN_RECOVERY)
    assert recovering == replace(OPEN, state=LedgerState.IN_RECOVERY, creator_token=0)
    assert recovering.closed(9, 100) == replace(
        OPEN, state=LedgerState.CLOSED, last_entry=9, length=100, creator_token=0
    )


def test_a_closed_ledger_never_changes() -> None:
    for change in (
        lambda: CLOSED.closed(98, 1600),
        lambda: CLOSED.with_state(LedgerState.OPEN),
        lambda: CLOSED.with_ensemble(60, FIRST),
        lambda: OPEN.with_state(LedgerState.CLOSED),
        lambda: OPEN.with_ensemble(5, FIRST[:2]),
        lambda: OPEN.with_ensemble(5, FIRST).with_ensemble(4, SECOND),
    ):
        with pytest.raises(InvariantViolation):
            change()


@pytest.mark.parametrize(
    "change",
    [
        {"ack_quorum": 4},
        {"ensembles": ()},
        {"ensembles": (Ensemble(0, FIRST[:2]),)},
        {"password": None},
        {"format_version": 1},
        {"format_version": 4},
        {"state": LedgerState.CLOSED, "last_entry": -2},
    ],
)
def test_invalid_metadata_is_never_written(change: dict[str, object]) -> None:
    with pytest.raises(CallerError):
        replace(OPEN, **change).encode()
