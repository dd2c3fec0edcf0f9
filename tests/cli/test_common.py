"""Tables are never wider than the terminal, and lose nothing."""

from __future__ import annotations

import json
import sys

import pytest

from dlspark.cli.common import Table, json_text, name_near_ones, name_what_is_below
from metadata.distributedlog.log_names import LogNotFoundError

COLUMNS = ("segment", "state", "first txid", "completed")
ROWS = [(1, "completed", 1372651200000, "2013-07-01T04:00:00"), (12, "in progress", None, None)]


def test_a_table_that_fits_has_a_line_a_row_with_numbers_to_the_right() -> None:
    assert list(Table(COLUMNS, ROWS).lines(60)) == [
        "segment  state           first txid  completed",
        "      1  completed    1372651200000  2013-07-01T04:00:00",
        "     12  in progress",
    ]


def test_one_that_does_not_is_folded_between_columns() -> None:
    lines = list(Table(COLUMNS, ROWS).lines(40))
    assert lines == [
        "segment  state           first txid",
        "    completed",
        "      1  completed    1372651200000",
        "    2013-07-01T04:00:00",
        "     12  in progress",
    ]


def test_every_width_keeps_every_cell_and_its_bound() -> None:
    for width in range(25, 80):
        lines = list(Table(COLUMNS, ROWS).lines(width))
        assert max(map(len, lines)) <= width
        words = " ".join(lines).split()
        assert {"1", "12", "1372651200000", "2013-07-01T04:00:00"} <= set(words)


def test_a_cell_wider_than_the_terminal_is_left_whole() -> None:
    assert list(Table(("log",), [("x" * 50,)]).lines(20)) == ["log", "x" * 50]


def test_a_table_without_rows_is_its_head() -> None:
    assert list(Table(COLUMNS, []).lines(80)) == ["segment  state  first txid  completed"]


def test_a_narrow_terminal_goes_without_spare_columns_first_and_is_told_which() -> None:
    wide = Table(COLUMNS, ROWS, ("first txid", "state"))
    assert list(wide.lines(60)) == list(Table(COLUMNS, ROWS).lines(60))
    assert list(wide.lines(50))[:2] == [
        "segment     first txid  completed",
        "      1  1372651200000  2013-07-01T04:00:00",
    ]
    assert list(wide.lines(40)) == [
        "segment  completed",
        "      1  2013-07-01T04:00:00",
        "     12",
        "(left out, for 40 columns are too few:",
        "first txid, state; --output json has",
        "all)",
    ]
    assert list(Table(COLUMNS, [], ("state",)).lines(20)) == ["segment  first txid", "    completed"]


@pytest.mark.parametrize(
    ("encoding", "text"), [("utf-8", '"é€"'), ("latin-1", '"\\u00e9\\u20ac"'), (None, '"\\u00e9\\u20ac"')]
)
def test_json_is_json_in_every_encoding(encoding: str | None, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Out:
        pass

    out = Out()
    out.encoding = encoding  # type: ignore[attr-defined]
    monkeypatch.setattr(sys, "stdout", out)
    assert json_text("é€") == text
    assert json.loads(text) == "é€"


def test_a_missing_log_is_said_to_be_a_folder_or_to_have_near_names() -> None:
    error = LogNotFoundError("no such log", log="a/events")
    name_near_ones(error, ["event", "events", "other"])
    assert error.advice == "Did you mean a/event?"
    name_what_is_below(error, ["one", "two"])
    assert error.message == "that is a folder of 2 names, and not a log itself"
    assert error.advice is not None
    assert "a/events/one or a/events/two" in error.advice
