"""Tables are never wider than the terminal, and lose nothing."""

from __future__ import annotations

from dlspark.cli.common import Table

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
