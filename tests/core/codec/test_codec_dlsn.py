"""DLSN: the vectors of docs/reference/records.md#record-vectors, and what is refused."""

from __future__ import annotations

import pickle

import pytest
from helpers.reference_vectors import vectors
from hypothesis import given
from hypothesis import strategies as st

from dlspark.core.codec.dlsn import DLSN
from metadata.foundation.errors import CallerError

MAX = 2**63 - 1
VECTORS = vectors("records.md")
V0_OF_3_17_2 = VECTORS["DLSN 3 17 2, version 0, base64"].decode()
NAMES = [
    ((1, 0, 0), "DLSN 1 0 0"),
    ((0, -1, -1), "DLSN 0 -1 -1"),
    ((1, 0, -1), "DLSN 1 0 -1"),
    ((3, 17, 2), "DLSN 3 17 2"),
    ((MAX, MAX, MAX), "DLSN max max max"),
]
i64 = st.integers(-(2**63), MAX)


@pytest.mark.parametrize(("fields", "name"), NAMES)
def test_a_dlsn_of_version_1_has_the_bytes_of_its_vector(fields: tuple[int, int, int], name: str) -> None:
    dlsn = DLSN(*fields)
    data, text = VECTORS[name], VECTORS[f"{name}, base64"].decode()
    assert dlsn.to_bytes() == data
    assert dlsn.to_base64() == text
    assert DLSN.from_bytes(data) == dlsn
    assert DLSN.from_base64(text) == dlsn


def test_a_dlsn_of_version_0_has_200_bytes_as_its_vector() -> None:
    assert len(V0_OF_3_17_2) == 268
    assert DLSN(3, 17, 2).to_base64(0) == V0_OF_3_17_2
    assert DLSN.from_base64(V0_OF_3_17_2) == DLSN(3, 17, 2)


@given(i64, i64, i64, st.sampled_from([0, 1]))
def test_every_form_comes_back_as_it_was(lssn: int, entry_id: int, slot_id: int, version: int) -> None:
    dlsn = DLSN(lssn, entry_id, slot_id)
    assert DLSN.parse(str(dlsn)) == dlsn
    assert DLSN.from_bytes(dlsn.to_bytes(version)) == dlsn
    assert DLSN.from_base64(dlsn.to_base64(version)) == dlsn


def test_dlsns_sort_by_segment_then_entry_then_slot() -> None:
    ordered = [DLSN(0, -1, -1), DLSN(1, 0, -1), DLSN(1, 0, 0), DLSN(1, 0, 10), DLSN(1, 2, 0), DLSN(2, 0, 0)]
    shuffled = [ordered[i] for i in (3, 0, 5, 1, 4, 2)]
    assert sorted(shuffled) == ordered


def test_shadowed_packages_of_a_position_keep_the_type() -> None:
    dlsn = DLSN(3, 17, 2)
    assert (str(dlsn.next), str(dlsn.next_entry), str(dlsn.next_segment)) == ("3:17:3", "3:18:0", "4:0:0")
    assert isinstance(dlsn.next, DLSN)


def test_a_pickled_dlsn_is_a_dlsn() -> None:
    assert pickle.loads(pickle.dumps(DLSN(3, 17, 2))) == DLSN(3, 17, 2)
    assert type(pickle.loads(pickle.dumps(DLSN.INITIAL))) is DLSN


@pytest.mark.parametrize(
    "text",
    ["", "3", "3:17", "3:17:2:1", " 3:17:2", "3:17:2\n", "a:b:c", "3:17:2.0", "٣:1:2", "+3:1:2", f"{MAX + 1}:0:0"],
)
def test_text_that_is_no_dlsn_is_the_callers_error(text: str) -> None:
    with pytest.raises(CallerError, match="DLSN"):
        DLSN.parse(text)


@pytest.mark.parametrize(
    "data", [b"", b"\x01", b"\x01" + bytes(23), b"\x01" + bytes(25), b"\0" + bytes(24), b"\x02" + bytes(24)]
)
def test_bytes_of_another_length_or_version_are_refused(data: bytes) -> None:
    with pytest.raises(CallerError, match="not a serialised DLSN"):
        DLSN.from_bytes(data)


@pytest.mark.parametrize("text", ["!", "AQAA", "AQAAAAAAAAABAAAAAAAAAAAAAAAAAAAAAA", "é"])
def test_base64_of_something_else_is_refused(text: str) -> None:
    with pytest.raises(CallerError):
        DLSN.from_base64(text)


def test_a_part_over_64_bits_or_an_unknown_version_is_not_serialised() -> None:
    with pytest.raises(CallerError, match="64 bits"):
        DLSN(MAX + 1, 0, 0).to_bytes()
    with pytest.raises(CallerError, match="version 2"):
        DLSN(1, 0, 0).to_bytes(2)
