"""A million records of random lengths, with all that stands between records, through a cold file and back."""

from __future__ import annotations

import random

import pytest
from helpers.cold_segments import LARGEST, MadeSegment, SegmentMaker, footer_of, rebuilt, verified, written

from dlspark.core.codec.entries import Compression
from dlspark.core.codec.vector_decoding import decode_entries
from dlspark.core.cold.files.digests import RecordColumns, RecordDigest
from dlspark.core.cold.files.footer import Footer

RECORDS = 1_000_000


def digest_of(segments: list[MadeSegment]) -> str:
    """Return the digest of all records, decoded from entries some at a time."""
    digest = RecordDigest()
    for one in segments:
        for first in range(0, len(one.entries), 200):
            digest.update(
                RecordColumns.of(
                    decode_entries(
                        one.entries[first : first + 200],
                        lssn=one.metadata.lssn,
                        start_sequence_id=one.metadata.effective_start_sequence_id,
                        enveloped=one.metadata.enveloped,
                    )
                )
            )
    return digest.hexdigest()


def large_segment(dice: random.Random, lssn: int, records: int, start: int) -> MadeSegment:
    """Return a segment of many records: short ones mostly, as runs, and here and there what is rare."""
    maker = SegmentMaker(lssn, start_sequence_id=start, first_txid=dice.randrange(1 << 40), version=dice.choice((4, 5)))
    noise = dice.randbytes(1 << 20)
    while maker.position < records:
        kind = dice.random()
        if kind < 0.05:
            maker.control(noise[: dice.randrange(200)])
        elif kind < 0.1:
            maker.record_set([noise[:n] for n in range(dice.randrange(40))], dice.choice(list(Compression)))
        elif kind < 0.3:
            maker.end_entry(dice.choice(list(Compression)))
        elif kind < 0.3005:
            maker.record(noise[: dice.choice((LARGEST, LARGEST - 1, dice.randrange(LARGEST)))])
        else:
            for _ in range(dice.randrange(100)):
                at = dice.randrange(1 << 19)
                maker.record(noise[at : at + int(300 * dice.random() ** 3)], maker.txid + dice.randrange(3))
    return maker.finish()


def check(seed: str, records: int) -> None:
    """Write segments of so many records, and check all of what comes back."""
    dice = random.Random(seed)
    segments: list[MadeSegment] = []
    made = 0
    while made < records:
        segments.append(
            large_segment(dice, len(segments) + 1, min(records - made, dice.randrange(1, records // 2)), made)
        )
        made += segments[-1].metadata.record_count
    data, done = written(segments, at_once=dice.choice((1, 17, 400)), row_group_bytes=dice.choice((1 << 20, 4 << 20)))
    assert done.records == made
    assert done.digest == digest_of(segments)
    assert verified(data, "").sha256 == done.sha256
    footer: Footer = footer_of(data)
    back = [
        MadeSegment(one.metadata, rebuilt(data, footer, one.metadata.lssn))  # each entry, its number as well
        for one in segments
    ]
    assert digest_of(back) == done.digest
    for one, other in zip(segments, back, strict=True):
        assert [number for number, _ in one.entries] == [number for number, _ in other.entries]


def test_fifty_thousand_records_come_back() -> None:
    check("first", 50_000)


@pytest.mark.long
@pytest.mark.torture
@pytest.mark.timeout(3_600)
def test_a_million_records_come_back(rounds: int | None, seed: int | None) -> None:
    for number in range(max(1, (rounds or 1) // 50)):
        check(f"{seed} {number}", RECORDS)
