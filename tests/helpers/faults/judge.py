"""What a history of faults is judged by. Knows events, and nothing of the code that made them.

A history is a list of events, JSON objects in the style of Jepsen: `at` (nanoseconds, one clock for all processes),
`who` (a process), `what` was done to which `stream` (a ledger or a log), and how it `is`:

    invoke     it is about to be asked for           ok        it happened, and this is what came of it
    failed     it definitely did not happen          unknown   it may have happened or not

An operation that is never heard of again is unknown. `what` is one of

    create                                           ok: `stream`
    add        a `value`, unlike every other         ok: its `position`
    close, recover                                   ok: the `last` position (-1: empty); recovery fences the writer
    lac        a reader was told how far is certain  ok: `lac`
    read       a reader was given a value            ok: `position`, `value` (null: not what anybody wrote)
    contents   somebody read everything at the end   ok: `values`, a list of [position, value], and the `last` position

Positions are compared and nothing else: integers from 0 without a gap in a ledger, triples in a log.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Event = Mapping[str, Any]
Place = tuple[int, ...]


@dataclass(frozen=True)
class Violation:
    """One thing that must not be: its kind in few words, and where."""

    kind: str
    text: str


@dataclass
class Add:
    """One add over its life."""

    stream: Any
    invoked_at: int
    is_: str = "unknown"
    place: Place | None = None


@dataclass
class Stream:
    """Everything that was said about one ledger or log."""

    adds: dict[str, Add] = field(default_factory=dict)
    ends: list[tuple[str, int]] = field(default_factory=list)
    fenced_at: int | None = None
    reads: dict[str, list[tuple[Place, str | None]]] = field(default_factory=lambda: defaultdict(list))
    lacs: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    audits: list[tuple[str, list[tuple[Place, str | None]]]] = field(default_factory=list)


def judge(events: Iterable[Event]) -> list[Violation]:
    """Return everything that is wrong with a history."""
    streams, found = _sorted_out(events)
    everywhere: dict[str, Any] = {}
    for name, stream in streams.items():
        if not stream.audits:
            found.append(Violation("not audited", f"nobody has read {name} at the end"))
            continue
        contents = stream.audits[0][1]
        for check in (_audits, _ends, _adds, _values, _reads, _lacs, _fence):
            found += [Violation(kind, f"{name}: {text}") for kind, text in check(stream, contents)]
        for _, value in contents:
            if value is not None and value in everywhere and everywhere[value] != name:
                found.append(Violation("twice", f"{value} is in {everywhere[value]} and in {name}"))
            everywhere.setdefault(str(value), name)
    return found


def _sorted_out(events: Iterable[Event]) -> tuple[dict[Any, Stream], list[Violation]]:
    """Sort events by stream; returns them, and what is wrong with them as such."""
    streams: dict[Any, Stream] = defaultdict(Stream)
    found: list[Violation] = []
    for event in events:
        what, is_, who = event["what"], event["is"], event["who"]
        if "stream" not in event or (what != "add" and is_ != "ok"):
            continue
        stream = streams[event["stream"]]
        if what == "add":
            found += _take_add(stream, event)
        elif what in ("close", "recover"):
            stream.ends.append((f"{what} by {who}", event["last"]))
            if what == "recover":
                stream.fenced_at = min(event["at"], stream.fenced_at or event["at"])
        elif what == "lac":
            stream.lacs[who].append(event["lac"])
        elif what == "read":
            stream.reads[who].append((_place(event["position"]), event["value"]))
        elif what == "contents":
            stream.audits.append((who, [(_place(position), value) for position, value in event["values"]]))
            if "last" in event:
                stream.ends.append((f"contents by {who}", event["last"]))
    return streams, found


def _take_add(stream: Stream, event: Event) -> list[Violation]:
    value, is_ = event["value"], event["is"]
    if is_ == "invoke":
        stream.adds[value] = Add(event["stream"], event["at"])
        return []
    add = stream.adds.get(value)
    if add is None:
        return [Violation("bad history", f"{value} was never invoked, yet it {is_}")]
    if add.is_ != "unknown":
        return [Violation("bad history", f"{value} ended as {add.is_} and again as {is_}")]
    add.is_ = is_
    add.place = _place(event["position"]) if is_ == "ok" else None
    return []


Contents = Sequence[tuple[Place, "str | None"]]
Found = Iterable[tuple[str, str]]


def _audits(stream: Stream, contents: Contents) -> Found:
    """Check that all that read everything in the end read the same."""
    for who, values in stream.audits[1:]:
        if list(values) != list(contents):
            yield "disagree", f"{who} has read something else than {stream.audits[0][0]} in the end"


def _ends(stream: Stream, contents: Contents) -> Found:
    """Check that there is one end, the same for all (I2)."""
    if len({last for _, last in stream.ends}) > 1:
        yield "two ends", ", ".join(f"{who}: {last}" for who, last in stream.ends)
    places = [place for place, _ in contents]
    if places != sorted(set(places)):
        yield "order", "positions do not ascend"
    if all(len(place) == 1 for place in places) and places != [(n,) for n in range(len(places))]:
        yield "gap", "positions have a gap"


def _adds(stream: Stream, contents: Contents) -> Found:
    """Check adds. Acknowledged: there, where it should be, once (I1, I3). Failed: absent. Unknown: once at most."""
    places = dict(contents)
    there = defaultdict(list)
    for place, value in contents:
        there[value].append(place)
    for value, add in stream.adds.items():
        if len(there[value]) > 1:
            yield "twice", f"{value} is at {there[value]}"
        if add.is_ == "failed" and there[value]:
            yield "resurrected", f"{value} was said not to be added, yet it is at {there[value]}"
        if add.is_ == "ok" and add.place is not None and places.get(add.place) != value:
            yield "lost", f"{value} was acknowledged at {add.place}, where {places.get(add.place, 'nothing')} is"


def _values(stream: Stream, contents: Contents) -> Found:
    """Check that only what was written is there, whole, in the order in which each process wrote it (I4, I12)."""
    last: dict[str, int] = {}
    for place, value in contents:
        if value is None:
            yield "damaged", f"what is at {place} is not what anybody wrote"
        elif value not in stream.adds:
            yield "invented", f"{value} is at {place}, and nobody wrote it here"
        else:
            who, _, number = value.rpartition(".")
            if int(number) <= last.get(who, -1):
                yield "order", f"{value} is behind number {last[who]} of the same process"
            last[who] = int(number)


def _reads(stream: Stream, contents: Contents) -> Found:
    """Check that what a reader was given early is there in the end, with nothing left out (I3, I4, I17)."""
    places = [place for place, _ in contents]
    values = dict(contents)
    index = {place: n for n, place in enumerate(places)}
    for who, reads in stream.reads.items():
        before: int | None = None
        for place, value in reads:
            if place not in index:
                yield "past the end", f"{who} was given {value} at {place}, where nothing is in the end"
                continue
            if values[place] != value:
                yield "changed", f"{who} was given {value} at {place}, where {values[place]} is in the end"
            if before is not None and index[place] != before + 1:
                yield "skipped", f"{who} was given {place} after {places[before]}"
            before = index[place]


def _lacs(stream: Stream, contents: Contents) -> Found:
    """Check that what a reader knows to be certain never shrinks, nor exceeds what is there in the end (I6)."""
    end = len(contents) - 1
    for who, lacs in stream.lacs.items():
        if lacs != sorted(lacs):
            yield "LAC back", f"{who} was told {lacs}"
        if lacs and max(lacs) > end:
            yield "LAC beyond the end", f"{who} was told {max(lacs)}, and {end} is the last in the end"


def _fence(stream: Stream, contents: Contents) -> Found:
    """Check that nothing begun after a recovery ended is acknowledged (I5)."""
    for value, add in stream.adds.items():
        if stream.fenced_at is not None and add.is_ == "ok" and add.invoked_at > stream.fenced_at:
            yield "late acknowledgement", f"{value} was begun and acknowledged after a recovery had closed the ledger"


def _place(position: Any) -> Place:
    return tuple(position) if isinstance(position, list) else (position,)
