"""Which changes make one schema of another: those that evolution takes back to it."""

from __future__ import annotations

from random import Random

import pytest
from random_evolution import random_life

from dlspark.tables.comparison import change_text, changes_between
from dlspark.tables.ddl import ddl_of, schema_from_ddl
from dlspark.tables.declaration import Declaration, RecordFormat
from dlspark.tables.evolution import DropColumn, EvolutionError, RenameColumn, evolve
from dlspark.tables.types import Schema


def changed(old: str, new: str) -> list[str]:
    before, after = schema_from_ddl(old), schema_from_ddl(new)
    changes = changes_between(before, after, by_ids=False)
    made = evolve(before, changes, highest_id=before.highest_id) if changes else before
    assert ddl_of(made) == ddl_of(after)
    return [change_text(one) for one in changes]


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ("id INT", "id INT", []),
        ("id INT, b INT", "ID INT", ["DROP COLUMN b", "RENAME COLUMN id TO ID"]),
        (
            "id INT",
            "id BIGINT, note STRING COMMENT 'x'",
            ["ALTER COLUMN id TYPE BIGINT", "ADD COLUMN note STRING COMMENT 'x'"],
        ),
        (
            "a INT, b INT",
            "z DATE, a INT, y INT NOT NULL DEFAULT 3, b INT",
            ["ADD COLUMN z DATE FIRST", "ADD COLUMN y INT NOT NULL DEFAULT 3 AFTER a"],
        ),
        ("a INT, b INT, c INT", "c INT, a INT, b INT", ["ALTER COLUMN c FIRST"]),
        ("a INT, b INT, c INT", "b INT, c INT, a INT", ["ALTER COLUMN b FIRST", "ALTER COLUMN c AFTER b"]),
        ("a INT NOT NULL COMMENT 'x'", "a INT", ["ALTER COLUMN a DROP NOT NULL", "ALTER COLUMN a COMMENT ''"]),
        ("p DECIMAL(9, 2)", "p DECIMAL(12, 2)", ["ALTER COLUMN p TYPE DECIMAL(12, 2)"]),
        (
            "s STRUCT<a: INT, b: INT>",
            "s STRUCT<b: INT, `c d`: STRING>",
            ["DROP COLUMN s.a", "ADD COLUMN s.`c d` STRING"],
        ),
        (
            "m MAP<STRING, INT>, l ARRAY<STRUCT<a: INT>>",
            "m MAP<STRING, BIGINT>, l ARRAY<STRUCT<a: INT, b: INT>>",
            ["ALTER COLUMN m.value TYPE BIGINT", "ADD COLUMN l.element.b INT"],
        ),
    ],
)
def test_the_changes_to_a_schema_that_a_person_wrote_are_found_by_names(old: str, new: str, changes: list[str]) -> None:
    assert changed(old, new) == changes


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("a INT, b INT", "a INT, b INT NOT NULL", "cannot become NOT NULL"),
        ("a INT", "a INT DEFAULT 3", "has the default None, and would get 3"),
        ("a BIGINT", "a INT", "cannot become int"),
        ("a INT", "a ARRAY<INT>", "cannot become"),
        ("a INT", "a INT, b INT NOT NULL", "cannot be NOT NULL"),
        ("a INT", "b INT", "is the last one"),
    ],
)
def test_what_cannot_become_of_a_schema_is_refused(old: str, new: str, said: str) -> None:
    with pytest.raises(EvolutionError, match=said):
        changed(old, new)


def test_versions_of_a_log_are_compared_by_ids() -> None:
    first = Declaration.of(RecordFormat.AVRO, schema_from_ddl("a INT, b INT"))
    later = first.evolved([RenameColumn(("a",), "x"), DropColumn(("b",))])
    assert changes_between(first.current, later.current, by_ids=True) == [DropColumn(("b",)), RenameColumn(("a",), "x")]


def test_between_any_two_versions_of_random_lives_the_changes_lead_from_one_to_the_other() -> None:
    rng = Random(30)
    compared = refused = 0
    for _ in range(60):
        life = random_life(rng, RecordFormat.AVRO)
        for old in life.schemas:
            for new in life.schemas[old.id + 1 :]:
                changes = changes_between(old, new, by_ids=True)
                try:
                    found = evolve(old, changes, highest_id=life.highest_id) if changes else old
                except EvolutionError:
                    refused += 1  # no column was kept, or names were swapped
                    continue
                compared += 1
                assert ddl_of(Schema(0, found.fields)) == ddl_of(Schema(0, new.fields))
    assert compared > 10 * refused
