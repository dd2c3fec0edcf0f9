"""Entry digests and keys against the vectors of docs/reference/wire.md#key-and-digest-vectors."""

from __future__ import annotations

import zlib

import pytest
from helpers.reference_vectors import vectors
from helpers.twins import twin as twin
from hypothesis import given
from hypothesis import strategies as st

from metadata.bookkeeper.ledger_metadata import DigestType
from storage_node.errors import DigestError
from storage_node.protocol.digests import EntryDigest, crc32, crc32c, mac_key, master_key

pytestmark = pytest.mark.usefixtures("twin")
PAYLOAD = b"hello-bookkeeper"
VECTORS = vectors("wire.md")
KEYS = [
    (master_key, b"", VECTORS['master key ""'].hex()),
    (master_key, b"secret", VECTORS['master key "secret"'].hex()),
    (mac_key, b"", VECTORS['MAC key ""'].hex()),
    (mac_key, b"secret", VECTORS['MAC key "secret"'].hex()),
]
DIGESTS = {
    "S digest CRC32": (DigestType.CRC32, b""),
    "S digest CRC32C": (DigestType.CRC32C, b""),
    'S digest HMAC ""': (DigestType.HMAC, b""),
    'S digest HMAC "secret"': (DigestType.HMAC, b"secret"),
    "S digest DUMMY": (DigestType.DUMMY, b""),
}
ENTRIES = {
    "S CRC32": (DigestType.CRC32, b""),
    "S CRC32C": (DigestType.CRC32C, b""),
    "S HMAC/secret": (DigestType.HMAC, b"secret"),
    "S DUMMY": (DigestType.DUMMY, b""),
}
EMPTY = {"ledger 0 entry 0 CRC32": DigestType.CRC32, "ledger 0 entry 0 CRC32C": DigestType.CRC32C}
LACS = {
    "explicit LAC CRC32": (DigestType.CRC32, b""),
    "explicit LAC CRC32C": (DigestType.CRC32C, b""),
    "explicit LAC HMAC": (DigestType.HMAC, b""),
    "explicit LAC HMAC secret": (DigestType.HMAC, b"secret"),
    "explicit LAC DUMMY": (DigestType.DUMMY, b""),
}


def test_every_vector_of_the_page_is_tested() -> None:
    of_entries = {name for name in VECTORS if name.startswith(("S ", "ledger ", "explicit LAC "))}
    assert of_entries | {"S digest DUMMY"} == {"S header", *DIGESTS, *ENTRIES, *EMPTY, *LACS}
    assert sum(name.startswith(("master key ", "MAC key ")) for name in VECTORS) == len(KEYS)


@pytest.mark.parametrize(("key", "password", "expected"), KEYS)
def test_keys_are_those_of_the_vectors(key: object, password: bytes, expected: str) -> None:
    assert callable(key)
    assert key(password).hex() == expected


@pytest.mark.parametrize("name", DIGESTS)
def test_digests_are_those_of_the_vectors(name: str) -> None:
    digest_type, password = DIGESTS[name]
    expected = b"" if digest_type is DigestType.DUMMY else VECTORS[name]
    packaged = EntryDigest(digest_type, password).package(12345, 7, 6, 128, PAYLOAD)
    assert packaged.hex() == (VECTORS["S header"] + expected).hex()


def test_crc32c_passes_its_self_check() -> None:
    assert crc32c(b"123456789", 0).to_bytes(4, "big") == VECTORS["CRC32C of 123456789"]


@pytest.mark.parametrize("name", ENTRIES)
def test_the_entries_of_the_vectors_verify_and_package(name: str) -> None:
    digest_type, password = ENTRIES[name]
    digest = EntryDigest(digest_type, password)
    packaged = digest.package(12345, 7, 6, 128, PAYLOAD[:5], memoryview(PAYLOAD)[5:]) + PAYLOAD
    assert packaged.hex() == VECTORS[name].hex()
    entry = digest.verify(12345, 7, memoryview(VECTORS[name]))
    assert (entry.ledger_id, entry.entry_id, entry.last_add_confirmed, entry.length) == (12345, 7, 6, 128)
    assert entry.payload == PAYLOAD


@pytest.mark.parametrize("name", EMPTY)
def test_the_empty_entries_of_the_vectors_verify_and_package(name: str) -> None:
    digest = EntryDigest(EMPTY[name], b"")
    assert digest.package(0, 0, -1, 0).hex() == VECTORS[name].hex()
    assert digest.verify(0, None, memoryview(VECTORS[name])).payload == b""


@pytest.mark.parametrize("name", LACS)
def test_explicit_lac_packets_are_those_of_the_vectors(name: str) -> None:
    digest_type, password = LACS[name]
    digest = EntryDigest(digest_type, password)
    assert digest.package_lac(12345, 6).hex() == VECTORS[name].hex()
    assert digest.verify_lac(12345, memoryview(VECTORS[name])) == 6


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
