"""What a round of faults is judged by: the answers that writers had, against what the log holds in the end.

* acknowledged: in the log exactly once, at the DLSN that was told, with its own payload (I1, I3);
* failed: not in the log;
* unknown, or never heard of again: at most once;
* the order of the log is the order of writing, over all writers, with no gap in sequence ids (I4);
* what the reader had seen while things broke is the beginning of what is there in the end (I6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.records import LogRecord
from helpers.faults.record_writer import payload_of


@dataclass
class Outcomes:
    """The answers that the writers of a round had for each record."""

    acknowledged: dict[int, DLSN] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    unknown: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def take(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word not in ("ok", "failed", "unknown"):
            self.notes.append(line)
            return
        number, _, fate = rest.partition(" ")
        if word == "ok":
            self.acknowledged[int(number)] = DLSN.parse(fate)
        else:
            (self.failed if word == "failed" else self.unknown)[int(number)] = fate


def check_round(outcomes: Outcomes, records: Sequence[LogRecord], seen: Sequence[LogRecord]) -> None:
    """Raise AssertionError unless `records`, the whole log, and `seen`, what a reader followed, are as they must be."""
    numbers = [record.txid for record in records]
    for record in records:
        assert record.payload == payload_of(record.txid), f"record {record.txid} is not itself"
    assert numbers == sorted(numbers), "the order of the log is not the order of writing"
    assert len(numbers) == len(set(numbers)), "a record is there twice"
    dlsns = [record.dlsn for record in records]
    assert dlsns == sorted(set(dlsns)), "DLSNs are out of order"
    found = dict(zip(numbers, dlsns, strict=True))
    lost = {number: dlsn for number, dlsn in outcomes.acknowledged.items() if found.get(number) != dlsn}
    assert not lost, f"acknowledged but not there: {dict(list(lost.items())[:5])} ({len(lost)} in all)"
    risen = [number for number in outcomes.failed if number in found]
    assert not risen, f"said not to be applied, yet there: {risen[:5]}: {outcomes.failed[risen[0]]}"
    sequence_ids = [record.sequence_id for record in records]
    assert sequence_ids == list(range(len(records))), "sequence ids have a gap"
    followed = [(record.dlsn, record.txid, record.payload) for record in seen]
    there = [(r.dlsn, r.txid, r.payload) for r in records[: len(seen)]]
    assert followed == there, "the reader saw something else"
