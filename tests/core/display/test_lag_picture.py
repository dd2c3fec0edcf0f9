"""How a lag over time is drawn: what is drawn, bounds, and that nothing of a name reaches the page as it is."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from dlspark.core.display.lag_picture import MAX_LINES, MAX_ROWS, LagPicture, LagSample, lines


def sample(at_s: float, **records: int | None) -> LagSample:
    return LagSample(at_s, int(at_s), {log: (n, None if n is None else 10 * n, None) for log, n in records.items()})


def test_each_log_is_a_line_from_the_first_sample_to_the_last() -> None:
    samples = [sample(0, a=10, b=0), sample(5, a=5, b=2), sample(10, a=0, b=1)]
    assert lines(samples, "records") == {"a": [10, 5, 0], "b": [0, 2, 1]}
    assert lines(samples, "bytes")["a"] == [100, 50, 0]
    picture = LagPicture("query q", "running", samples)
    root = ElementTree.fromstring(picture.svg)
    paths = [one.get("d") or "" for one in root.iter("{http://www.w3.org/2000/svg}path")][1:]
    assert len(paths) == 2
    points = re.findall(r"([\d.]+) ([\d.]+)", paths[0])
    assert len(points) == 3
    assert float(points[0][1]) < float(points[1][1]) < float(points[2][1]), "a smaller lag is drawn lower"


def test_what_is_not_known_is_drawn_as_it_was_and_a_log_that_comes_later_begins_at_nothing() -> None:
    samples = [sample(0, a=7), sample(1, a=None, b=3), sample(2, a=4, b=None)]
    assert lines(samples, "records") == {"a": [7, 7, 4], "b": [0, 3, 3]}
    assert "not known" in LagPicture("q", "", samples)._repr_html_()


def test_many_logs_are_few_lines_and_few_rows() -> None:
    many = {f"log-{n:03}": n for n in range(200)}
    drawn = lines([sample(0, **many), sample(1, **many)], "records")
    assert len(drawn) == MAX_LINES
    assert list(drawn)[:2] == ["log-199", "log-198"]
    rest = 200 - (MAX_LINES - 1)
    assert drawn[f"{rest} other logs"] == [sum(range(rest))] * 2
    page = LagPicture("q", "", [sample(0, **many)])._repr_html_()
    assert page.count("<tr>") == MAX_ROWS + 1
    assert f"and {200 - MAX_ROWS} other logs" in page


def test_names_are_escaped_and_nothing_is_drawn_of_nothing() -> None:
    evil = '<script>alert("x")</script>'
    page = LagPicture(evil, evil, [LagSample(0, 0, {evil: (1, 2, 3)})])._repr_html_()
    assert "<script" not in page
    assert LagPicture("q", "no batch yet", ()).svg == ""
    assert "no batch yet" in LagPicture("q", "no batch yet", ())._repr_html_()
    assert str(LagPicture("q", "x", [sample(0, a=3)])) == "q: x\n  a: 3 records, 30 bytes, not known ms behind"
