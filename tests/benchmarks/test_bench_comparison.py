"""Two revisions compared: rows matched, differences named only where rounds lie apart, turns taken in turn."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.comparison import (
    NEW,
    NO_DIFFERENCE,
    OLD,
    UNKNOWN,
    Figure,
    Turn,
    chance,
    compare_turns,
    comparison_json,
    comparison_table,
)
from benchmarks.costs import Costs
from benchmarks.results import Row, Target, as_json
from benchmarks.revisions import Revision, RevisionError, common_sections, take_turns


def turn(figure: float, *, unit: str = "k/s", limit: float = 10.0, cpu: float | None = None, key: str = "P5") -> Turn:
    """What one round wrote, as the benchmarks write it."""
    row = Row(key, "entries", unit, f"{unit}: limit", Target(1.0))
    row.add(figure, limit, costs=None if cpu is None else Costs("entry", {"nodes": {"processor us": cpu}}))
    written: Turn = json.loads(json.dumps(as_json([row])))
    return written


@pytest.mark.parametrize(
    ("unit", "old", "new", "verdict"),
    [
        ("k/s", [10.0, 11.0], [12.0, 13.0], "faster"),
        ("k/s", [12.0, 13.0], [10.0, 11.0], "slower"),
        ("us", [10.0, 11.0], [12.0, 13.0], "slower"),
        ("us", [12.0, 13.0], [10.0, 11.0], "faster"),
        ("MB", [12.0, 13.0], [10.0, 11.0], "less"),
        ("", [10.0, 11.0], [12.0, 13.0], "more"),
        ("k/s", [10.0, 12.0], [11.0, 13.0], NO_DIFFERENCE),
        ("k/s", [10.0, 14.0], [11.0, 13.0], NO_DIFFERENCE),
        ("k/s", [10.0, 11.0], [11.0, 13.0], NO_DIFFERENCE),
        ("k/s", [10.0], [20.0], UNKNOWN),
        ("k/s", [10.0, 11.0], [20.0], UNKNOWN),
    ],
)
def test_a_difference_is_named_only_where_all_rounds_lie_apart(
    unit: str, old: list[float], new: list[float], verdict: str
) -> None:
    assert Figure("measured", unit, old, new).verdict == verdict


def test_what_the_new_one_is_of_the_old_one_is_of_medians() -> None:
    assert Figure("measured", "us", [10.0, 20.0, 90.0], [5.0, 10.0, 11.0]).times == 0.5
    assert math.isnan(Figure("measured", "", [0.0], [1.0]).times)


def test_rounds_of_equal_revisions_lie_apart_less_often_the_more_there_are() -> None:
    assert [round(chance(rounds), 3) for rounds in (1, 2, 3, 5)] == [1.0, 0.333, 0.1, 0.008]


def test_rows_are_matched_and_their_rounds_put_together() -> None:
    old, new = [turn(10.0, cpu=50.0), turn(11.0, cpu=52.0)], [turn(20.0, cpu=30.0), turn(22.0, cpu=49.0)]
    (pair,) = compare_turns(old, new).pairs
    measured, ratio = pair.main
    assert (measured.old, measured.new, measured.verdict) == ([10.0, 11.0], [20.0, 22.0], "faster")
    assert (ratio.old, ratio.new, ratio.verdict) == ([1.0, 1.1], [2.0, 2.2], "faster")
    (cost,) = pair.costs
    assert (cost.what, cost.old, cost.new, cost.verdict) == ("nodes: processor us", [50.0, 52.0], [30.0, 49.0], "less")
    assert pair.remarks == []


def test_a_row_that_one_revision_lacks_is_said_and_is_no_error() -> None:
    found = compare_turns([turn(1.0), turn(1.0, key="P9")], [turn(1.0), turn(2.0, key="P8")])
    assert [pair.key for pair in found.pairs] == ["P5"]
    assert found.only == {OLD: ["P9 entries in k/s, over k/s: limit"], NEW: ["P8 entries in k/s, over k/s: limit"]}
    printed = comparison_table(found).splitlines()
    assert "Only the old revision has: P9 entries in k/s, over k/s: limit" in printed
    assert "Only the new revision has: P8 entries in k/s, over k/s: limit" in printed


def test_rows_of_different_units_are_not_compared() -> None:
    found = compare_turns([turn(1.0, unit="us")], [turn(900.0, unit="ns")])
    assert found.pairs == []
    assert found.only == {OLD: ["P5 entries in us, over us: limit"], NEW: ["P5 entries in ns, over ns: limit"]}


def test_a_revision_from_before_there_were_costs_is_compared_without_them() -> None:
    before: list[dict[str, Any]] = [dict(row) for row in turn(10.0)]
    for row in before:
        del row["costs"]
    (pair,) = compare_turns([before], [turn(12.0, cpu=5.0)]).pairs
    assert (pair.costs, pair.main[0].new) == ([], [12.0])


def test_a_row_that_was_not_measured_is_one_that_the_revision_lacks() -> None:
    empty = json.loads(json.dumps(as_json([Row("P5", "entries", "k/s", "k/s: limit", Target(1.0))])))
    found = compare_turns([empty], [turn(1.0)])
    assert (found.pairs, found.only[NEW]) == ([], ["P5 entries in k/s, over k/s: limit"])


def test_what_cannot_be_believed_and_rounds_that_differ_are_said_of_their_side() -> None:
    (pair,) = compare_turns([turn(-1.0), turn(5.0)], [turn(9.0), turn(10.0)]).pairs
    assert pair.remarks == ["old: -1 cannot be", "old: rounds differ by more than half"]


def test_the_tables_show_medians_spreads_and_differences() -> None:
    found = compare_turns([turn(10.0, cpu=4.0), turn(12.0, cpu=4.0)], [turn(20.0, cpu=4.0), turn(24.0, cpu=4.0)])
    tables = comparison_table(found).split("\n\n")
    rows, costs = ([cell.strip() for cell in table.splitlines()[2].strip("|").split("|")] for table in tables[:2])
    assert rows == [
        *("P5", "entries", "11 (10-12) k/s", "22 (20-24) k/s", "2", "faster"),
        *("k/s: limit", "1.1 (1-1.2)", "2.2 (2-2.4)", "2", "faster", ""),
    ]
    assert costs == ["P5", "entries", "nodes: processor us", "4 (4-4)", "4 (4-4)", "1", NO_DIFFERENCE]
    assert tables[2].startswith("Where nothing was changed, 33.3% of the figures lie so far apart by chance")
    written = comparison_json(found)
    assert json.loads(json.dumps(written)) == written


def some_revisions() -> dict[str, Revision]:
    return {side: Revision(side, Path()) for side in (OLD, NEW)}


def test_turns_go_old_new_new_old() -> None:
    order: list[str] = []
    said: list[str] = []

    def measure(revision: Revision) -> Turn:
        order.append(revision.name)
        return turn(float(len(order)))

    turns = take_turns(some_revisions(), 3, measure, said.append)
    assert order == [OLD, NEW, NEW, OLD, OLD, NEW]
    assert [one[0]["measured"] for one in turns[NEW]] == [[2.0], [3.0], [6.0]]
    assert len(said) == 6


def test_a_later_turn_that_fails_is_said_and_does_not_count() -> None:
    found = iter([turn(1.0), turn(2.0), None, turn(4.0)])
    said: list[str] = []
    turns = take_turns(some_revisions(), 2, lambda _: next(found), said.append)
    assert {side: len(taken) for side, taken in turns.items()} == {OLD: 2, NEW: 1}
    assert "this turn does not count" in said[2]


def test_where_a_first_turn_fails_there_is_nothing_to_compare() -> None:
    with pytest.raises(RevisionError, match=r"round 1 of 5, old.*was not measured"):
        take_turns(some_revisions(), 5, lambda _: None, lambda _: None)


class Sectioned(Revision):
    """A revision that has the sections that its name says."""

    def sections(self) -> list[str]:
        return self.name.split("+")


def test_a_section_that_one_revision_lacks_is_said_and_left_out() -> None:
    revisions = [Sectioned("codec+logs", Path()), Sectioned("codec", Path())]
    assert common_sections(["codec", "logs"], revisions) == (
        ["codec"],
        ["codec has no section logs: it is not measured"],
    )
