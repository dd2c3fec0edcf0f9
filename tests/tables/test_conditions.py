"""Conditions in SQL: which rows they want, with null neither true nor false, and what they refuse."""

from __future__ import annotations

import sqlite3
from datetime import date, datetime, timezone
from decimal import Decimal
from random import Random

import pyarrow as pa
import pytest

from dlspark.tables.conditions import MAX_NESTED, condition
from dlspark.tables.errors import SqlTextError

ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3, None], pa.int64()),
        "small": pa.array([1, 2, None, 4], pa.int32()),
        "item": ["nut", "bolt", None, "it's"],
        "price": pa.array([Decimal("9.99"), Decimal("10.00"), Decimal("10.01"), None], pa.decimal128(9, 2)),
        "weight": [1.5, float("nan"), None, -2.0],
        "ok": [True, False, None, True],
        "day": [date(2026, 11, 1), date(2026, 11, 2), None, None],
        "at": pa.array([datetime(2026, 11, 1, 12, tzinfo=timezone.utc), None, None, None], pa.timestamp("us", "UTC")),
        "local": pa.array([datetime(2026, 11, 1, 12), None, None, None], pa.timestamp("us")),
        "raw": pa.array([b"x", b"\xff", None, b""], pa.binary()),
        "place": [{"city": "A", "Zip": 1}, {"city": None, "Zip": 2}, None, None],
        "tags": [["a"], [], None, None],
        "not it": [1, 2, 3, 4],
    }
)


def rows(text: str) -> list[int]:
    """Return which rows are wanted, from 0."""
    numbered = ROWS.append_column("#", pa.array(range(len(ROWS))))
    return numbered.filter(condition(text, ROWS.schema)).column("#").to_pylist()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("id = 1", [0]),
        ("ID == 1", [0]),
        ("id <> 1", [1, 2]),
        ("id != 1 and small = 2", [1]),
        ("not id = 1", [1, 2]),
        ("id is null", [3]),
        ("id is not null and not (id > 1)", [0]),
        ("id = null or id is null", [3]),
        ("not (id = null)", []),
        ("id in (1, 3, 99)", [0, 2]),
        ("id not in (1, 3)", [1]),
        ("id not in (1, null)", []),
        ("id in (1, null)", [0]),
        ("id between 2 and 3", [1, 2]),
        ("id not between 2 and 3", [0]),
        ("2 < id", [2]),
        ("id > 1.5", [1, 2]),
        ("id > -9223372036854775809", [0, 1, 2]),
        ("id < 99999999999999999999", [0, 1, 2]),
        ("small = id", [0, 1]),
        ("small >= 2 or item = 'nut'", [0, 1, 3]),
        ("item = 'it''s'", [3]),
        ("item > 'c'", [0, 3]),
        ("price > 10", [2]),
        ("price >= 10.000", [1, 2]),
        ("price = 9.99", [0]),
        ("price < 10.005 and price > 9", [0, 1]),
        ("weight < 0", [3]),
        ("weight > id", [0]),
        ("weight = 1.5", [0]),
        ("ok", [0, 3]),
        ("not ok", [1]),
        ("ok = false", [1]),
        ("ok is null", [2]),
        ("true and not false", [0, 1, 2, 3]),
        ("null", []),
        ("day >= '2026-11-02'", [1]),
        ("at > '2026-11-01'", [0]),
        ("at = '2026-11-01 12:00'", [0]),
        ("at = '2026-11-01T14:00:00+02:00'", [0]),
        ("local < '2026-11-01 12:00:01'", [0]),
        ("raw = 'x'", [0]),
        ("place.city = 'A'", [0]),
        ("place.city is null", [1, 2, 3]),
        ("PLACE.zip > 1", [1]),
        ("tags is null", [2, 3]),
        ("`not it` > 3", [3]),
        ("(id = 1 or id = 2) and item = 'bolt'", [1]),
        ("id = 1 or id = 2 and item = 'none'", [0]),
    ],
)
def test_rows_for_which_a_condition_is_true_are_wanted(text: str, wanted: list[int]) -> None:
    assert rows(text) == wanted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Character 1: a column or a literal is missing"),
        ("id =", "Character 5: a column or a literal is missing"),
        ("id > 1 and", "Character 11: a column or a literal is missing"),
        ("nothing = 1", "Character 1: there is no column nothing; there are id, small, item"),
        ("id = 1 item", "Character 8: 'item' is one word too many"),
        ("id", "Character 1: column id, which is int64 is no condition"),
        ("id = 'one'", "Character 6: column id is int64, and cannot be compared with 'one'"),
        ("item > 3", "Character 8: column item is string, and cannot be compared with '3'"),
        ("day = 'tomorrow'", "Character 7: column day is date32[day], and cannot be compared with 'tomorrow'"),
        ("tags = 'a'", "Character 8: column tags is list<"),
        ("item = id", "Character 8: column item is string, and cannot be compared with column id"),
        ("1 = 1", "Character 1: a comparison needs a column"),
        ("id in ()", "Character 8: a column or a literal is missing, before ')'"),
        ("id in (small)", "Character 8: a literal is missing, there is column small"),
        ("id not 3", "Character 8: IN or BETWEEN is missing"),
        ("1 is null", "Character 1: a column is missing, there is a literal"),
        ("(id = 1", "Character 8: ) is missing"),
        ("item.__class__ = 1", "Character 6: column item is string, which has no fields"),
        ("place.street = 1", "Character 7: there is no column place.street; there are city, Zip"),
        ("__import__('os') = 1", "Character 1: there is no column __import__"),
        ("id = 1; drop", "Character 7: there is ';'"),
        ("id = 'x", "Character 6: there is a quote that is not closed"),
        ("- item = 1", "Character 3: a number is missing"),
        ("id = 1e400", "Character 6: column id is int64, and cannot be compared with"),
        ("(" * (MAX_NESTED + 2) + "id = 1" + ")" * (MAX_NESTED + 2), "conditions are within each other"),
        ("not " * (MAX_NESTED + 2) + "ok", "conditions are within each other"),
    ],
)
def test_what_is_no_condition_is_refused_with_its_place(text: str, said: str) -> None:
    with pytest.raises(SqlTextError) as caught:
        condition(text, ROWS.schema)
    assert said in str(caught.value)


def test_a_long_list_is_taken() -> None:
    assert rows(f"id in ({', '.join(map(str, range(2, 1_000)))})") == [1, 2]


def test_random_conditions_want_the_rows_that_a_database_gives() -> None:
    rng = Random(30)
    values = [None, -1, 0, 1, 2]
    table = [(at, rng.choice(values), rng.choice(values), rng.choice([None, "a", "b"])) for at in range(40)]
    columns = pa.table({name: [row[at] for row in table] for at, name in enumerate(("n", "x", "y", "s"))})
    database = sqlite3.connect(":memory:")
    database.execute("create table t (n integer, x integer, y integer, s text)")
    database.executemany("insert into t values (?, ?, ?, ?)", table)

    def made(depth: int) -> str:
        kind = rng.randrange(8) if depth else rng.randrange(5)
        if kind == 0:
            return (
                f"{rng.choice('xy')} {rng.choice(['=', '<>', '<', '<=', '>', '>='])} {rng.choice(['x', 'y', '1', '0'])}"
            )
        if kind == 1:
            return f"{rng.choice('xys')} is {rng.choice(['', 'not '])}null"
        if kind == 2:
            return f"x {rng.choice(['', 'not '])}in ({rng.choice(['1, 2', '0, null', '-1'])})"
        if kind == 3:
            return f"s {rng.choice(['=', '<', '>='])} {rng.choice(['null', chr(39) + 'a' + chr(39)])}"
        if kind == 4:
            return f"y {rng.choice(['', 'not '])}between {rng.choice(['null', '0'])} and 1"
        if kind == 5:
            return f"not ({made(depth - 1)})"
        return f"({made(depth - 1)}) {rng.choice(['and', 'or'])} ({made(depth - 1)})"

    for _ in range(400):
        text = made(3)
        expected = [row[0] for row in database.execute(f"select n from t where {text} order by n")]
        assert columns.filter(condition(text, columns.schema)).column("n").to_pylist() == expected, text


def test_random_words_are_a_condition_or_refused() -> None:
    rng = Random(31)
    words = [*ROWS.schema.names[:10], "place.city", "`not it`"]
    words += ["and", "or", "not", "in", "is", "null", "between", "true", "(", ")", ",", "=", "<>", "<=", ">", "-", "."]
    words += ["1", "1.5", "9" * 39, "1e9", "1e-30", "'x'", "'2026-11-01'"]
    taken = 0
    for _ in range(5_000):
        try:
            found = condition(" ".join(rng.choices(words, k=rng.randrange(1, 8))), ROWS.schema)
        except SqlTextError:
            continue
        ROWS.filter(found)
        taken += 1
    assert taken > 50
