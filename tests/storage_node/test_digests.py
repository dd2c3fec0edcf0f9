"""Entry digests and keys against the wire specification's section 11.3."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.ledger_metadata import DigestType
from storage_node.errors import DigestError
from storage_node.protocol.digests import EntryDigest, crc32, crc32c, mac_key, master_key

PAYLOAD = b"hello-bookkeeper"
KEYS = [
    (master_key, b"", "850bf1071c5e3d8c24235676f8816ae0cbe2f14f"),
    (master_key, b"secret", "e793cbc379107648537183605cd361d3bb789a39"),
    (mac_key, b"", "347ead6348e936507920c15d2ae8266ac6ce9b49"),
    (mac_key, b"secret", "190c685bae851574f5ab47c960a00c0466f96603"),
]
HEADER = "0000000000003039000000000000000700000000000000060000000000000080"
DIGESTS = {
    "S digest CRC32": (DigestType.CRC32, b"", "00000000b9bb6b9a"),
    "S digest CRC32C": (DigestType.CRC32C, b"", "11c9ba0f"),
    'S digest HMAC ""': (DigestType.HMAC, b"", "e8e6f607f10e2a2cd070e6c9c34299fce82d1a48"),
    'S digest HMAC "secret"': (DigestType.HMAC, b"secret", "c48205b5776158246a2ef6491744856f64bc42ec"),
    "S digest DUMMY": (DigestType.DUMMY, b"", ""),
}
ENTRIES = {
    "S CRC32": (
        DigestType.CRC32,
        b"",
        "000000000000303900000000000000070000000000000006000000000000008000000000b9bb6b9a68656c6c6f2d626f6f6b6b6565706572",
    ),
    "S CRC32C": (
        DigestType.CRC32C,
        b"",
        "000000000000303900000000000000070000000000000006000000000000008011c9ba0f68656c6c6f2d626f6f6b6b6565706572",
    ),
    "S HMAC/secret": (
        DigestType.HMAC,
        b"secret",
        "0000000000003039000000000000000700000000000000060000000000000080"
        "c48205b5776158246a2ef6491744856f64bc42ec68656c6c6f2d626f6f6b6b6565706572",
    ),
    "S DUMMY": (
        DigestType.DUMMY,
        b"",
        "000000000000303900000000000000070000000000000006000000000000008068656c6c6f2d626f6f6b6b6565706572",
    ),
}
EMPTY = {
    "ledger 0 entry 0 CRC32": (
        DigestType.CRC32,
        "00000000000000000000000000000000ffffffffffffffff0000000000000000000000008e64d897",
    ),
    "ledger 0 entry 0 CRC32C": (
        DigestType.CRC32C,
        "00000000000000000000000000000000ffffffffffffffff0000000000000000e381191d",
    ),
}
LACS = {
    "explicit LAC CRC32": (DigestType.CRC32, b"", "0000000000003039000000000000000600000000efb91ad1"),
    "explicit LAC CRC32C": (DigestType.CRC32C, b"", "0000000000003039000000000000000624b2e169"),
    "explicit LAC HMAC": (
        DigestType.HMAC,
        b"",
        "00000000000030390000000000000006c4d967261b1e3348a91bf0a7ff74655150d72f0b",
    ),
    "explicit LAC HMAC secret": (
        DigestType.HMAC,
        b"secret",
        "000000000000303900000000000000068516b105f8f16ecec4ac5e2322ec6cdd25179be6",
    ),
    "explicit LAC DUMMY": (DigestType.DUMMY, b"", "00000000000030390000000000000006"),
}


@pytest.mark.parametrize(("key", "password", "expected"), KEYS)
def test_the_keys_of_section_11_3(key: object, password: bytes, expected: str) -> None:
    assert callable(key)
    assert key(password).hex() == expected


@pytest.mark.parametrize("name", DIGESTS)
def test_the_digests_of_section_11_3(name: str) -> None:
    digest_type, password, expected = DIGESTS[name]
    assert EntryDigest(digest_type, password).package(12345, 7, 6, 128, PAYLOAD).hex() == HEADER + expected


def test_crc32c_passes_its_self_check_of_section_11_3() -> None:
    assert crc32c(b"123456789", 0) == 0xE3069283


@pytest.mark.parametrize("name", ENTRIES)
def test_the_entries_of_section_11_3_verify_and_package(name: str) -> None:
    digest_type, password, expected = ENTRIES[name]
    digest = EntryDigest(digest_type, password)
    assert (digest.package(12345, 7, 6, 128, PAYLOAD[:5], memoryview(PAYLOAD)[5:]) + PAYLOAD).hex() == expected
    entry = digest.verify(12345, 7, memoryview(bytes.fromhex(expected)))
    assert (entry.ledger_id, entry.entry_id, entry.last_add_confirmed, entry.length) == (12345, 7, 6, 128)
    assert entry.payload == PAYLOAD


@pytest.mark.parametrize("name", EMPTY)
def test_the_empty_entries_of_section_11_3(name: str) -> None:
    digest_type, expected = EMPTY[name]
    digest = EntryDigest(digest_type, b"")
    assert digest.package(0, 0, -1, 0).hex() == expected
    assert digest.verify(0, None, memoryview(bytes.fromhex(expected))).payload == b""


@pytest.mark.parametrize("name", LACS)
def test_the_explicit_lac_packets_of_section_11_3(name: str) -> None:
    digest_type, password, expected = LACS[name]
    digest = EntryDigest(digest_type, password)
    assert digest.package_lac(12345, 6).hex() == expected
    assert digest.verify_lac(12345, memoryview(bytes.fromhex(expected))) == 6


@pytest.mark.parametrize("digest_type", [DigestType.CRC32, DigestType.CRC32C, DigestType.HMAC])
@given(data=st.data(), payload=st.binary(max_size=200))
def test_a_flipped_bit_anywhere_is_a_digest_error(digest_type: DigestType, data: st.DataObject, payload: bytes) -> None:
    digest = EntryDigest(digest_type, b"pw")
    entry = bytearray(digest.package(1, 2, 1, 3, payload) + payload)
    bit = data.draw(st.integers(0, len(entry) * 8 - 1))
    entry[bit // 8] ^= 1 << bit % 8
    with pytest.raises(DigestError):
        digest.verify(1, 2, memoryview(entry))


def test_another_ledger_another_entry_and_too_few_bytes_are_digest_errors() -> None:
    digest = EntryDigest(DigestType.CRC32, b"")
    entry = memoryview(digest.package(1, 2, 1, 3, b"abc") + b"abc")
    for ledger, number, data in ((9, 2, entry), (1, 9, entry), (1, 2, entry[:39]), (1, 2, entry[:0])):
        with pytest.raises(DigestError):
            digest.verify(ledger, number, data)
    assert digest.verify(1, None, entry).entry_id == 2


def test_an_explicit_lac_of_another_ledger_or_cut_or_spoiled_is_a_digest_error() -> None:
    digest = EntryDigest(DigestType.CRC32C, b"")
    packet = bytearray(digest.package_lac(5, 17))
    with pytest.raises(DigestError, match="ledger 5"):
        digest.verify_lac(6, packet)
    with pytest.raises(DigestError, match="shorter"):
        digest.verify_lac(5, packet[:-1])
    packet[3] ^= 1
    with pytest.raises(DigestError, match="fails"):
        digest.verify_lac(5, packet)


@given(st.lists(st.binary(max_size=100), max_size=5))
def test_checksums_continue_from_piece_to_piece(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    one = two = 0
    for piece in pieces:
        one = crc32(memoryview(piece), one)
        two = crc32c(memoryview(piece), two)
    assert one == zlib.crc32(whole)
    assert two == crc32c(whole, 0)
