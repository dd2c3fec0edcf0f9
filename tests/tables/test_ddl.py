"""Columns as SQL declares them: read, written, and refused where they are something else."""

from __future__ import annotations

import random

import pytest
from random_rows import random_schema

from dlspark.tables.comparison import changes_between
from dlspark.tables.ddl import ddl_of, schema_from_ddl, type_text
from dlspark.tables.errors import SqlTextError
from dlspark.tables.json_decoding import value_of_default
from dlspark.tables.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Decimal,
    Field,
    InvalidSchemaError,
    ListOf,
    MapOf,
    Schema,
    Struct,
)


def test_every_type_is_read() -> None:
    found = schema_from_ddl(
        "a boolean, b TINYINT, c SmallInt, d INT, e INTEGER, f BIGINT, g LONG, h FLOAT, i REAL, j DOUBLE, k STRING, "
        "l VARCHAR(20), m CHAR(3), n BINARY, o DATE, p TIMESTAMP, q TIMESTAMP_LTZ, r TIMESTAMP_NTZ, s DECIMAL, "
        "t DECIMAL(5), u NUMERIC(9,2)"
    )
    assert [one.type for one in found.fields] == [
        *(BOOLEAN, INT, INT, INT, INT, LONG, LONG, FLOAT, FLOAT, DOUBLE, STRING),
        *(STRING, STRING, BINARY, DATE, TIMESTAMP, TIMESTAMP, TIMESTAMP_NTZ),
        *(Decimal(10, 0), Decimal(5, 0), Decimal(9, 2)),
    ]
    assert [one.id for one in found.fields] == list(range(1, 22))


def test_nested_types_names_in_quotes_comments_and_defaults_are_read() -> None:
    found = schema_from_ddl(
        "`the id` BIGINT NOT NULL COMMENT 'it''s one', tags ARRAY<MAP<STRING, ARRAY<INT NOT NULL>>>,\n"
        "place STRUCT<city: STRING NOT NULL, `z``ip` STRING> not null, price DECIMAL(9, 2) DEFAULT -1.50, "
        "n INT default -3, d DOUBLE DEFAULT 1.5e3, ok BOOLEAN DEFAULT true, s STRING DEFAULT 'x'"
    )
    one, tags, place, *defaults = found.fields
    assert (one.name, one.required, one.doc) == ("the id", True, "it's one")
    assert isinstance(tags.type, ListOf)
    assert isinstance(tags.type.element.type, MapOf)
    assert type_text(tags.type) == "ARRAY<MAP<STRING, ARRAY<INT NOT NULL>>>"
    assert isinstance(place.type, Struct)
    assert [(part.name, part.required) for part in place.type.fields] == [("city", True), ("z`ip", False)]
    assert place.required
    assert [part.default for part in defaults] == ["-1.50", -3, 1500.0, True, "x"]
    assert str(value_of_default(defaults[0])) == "-1.50"
    assert schema_from_ddl(ddl_of(found)) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Character 1: a column's name is missing"),
        ("id", "Character 3: a type is missing"),
        ("id BIGINT,", "Character 11: a column's name is missing"),
        ("id BIGINT item STRING", "Character 11: 'item' is one word too many"),
        ("id BOGUS", "Character 4: BOGUS is not a type"),
        ("id ARRAY<INT", "Character 13: > is missing"),
        ("id DECIMAL(9.5)", "Character 12: a whole number is missing"),
        ("id INT COMMENT two", "Character 16: a comment in quotes is missing"),
        ("id INT DEFAULT two", "Character 16: a default is missing"),
        ("id INT COMMENT 'two", "Character 16: there is a quote that is not closed"),
        ("id INT; drop", "Character 7: there is ';'"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(text: str, said: str) -> None:
    with pytest.raises(SqlTextError) as caught:
        schema_from_ddl(text)
    assert said in str(caught.value)
    assert "nothing was done" in str(caught.value)


@pytest.mark.parametrize("text", ["a INT, A STRING", "a DECIMAL(99, 2)", "a STRUCT<x: INT, X: INT>"])
def test_what_no_log_can_have_is_refused(text: str) -> None:
    with pytest.raises(InvalidSchemaError):
        schema_from_ddl(text)


def test_comments_are_passed_over() -> None:
    found = schema_from_ddl("-- version 3\n  -- of a log\nid INT -- the id, 'one'\n, b STRING --")
    assert ddl_of(found) == "id INT,\nb STRING"
    with pytest.raises(SqlTextError, match="Character 12: there is ';'"):
        schema_from_ddl("id INT --x\n;")


def test_random_texts_are_read_or_refused() -> None:
    rng = random.Random(30)
    words = ["id", "INT", "ARRAY", "<", ">", "(", ")", ",", ":", "'x'", "`y`", "9", "NOT", "NULL", "STRUCT", "\n", "é"]
    for _ in range(3_000):
        text = " ".join(rng.choices(words, k=rng.randrange(12)))
        try:
            found = schema_from_ddl(text)
        except (SqlTextError, InvalidSchemaError):
            continue
        assert schema_from_ddl(ddl_of(found)) == found


def test_random_schemas_are_the_same_as_texts() -> None:
    rng = random.Random(30)
    for _ in range(300):
        schema = random_schema(rng)
        text = ddl_of(schema)
        assert ddl_of(schema_from_ddl(text)) == text
        # Ids are given anew, in the order in which the text is read.
        assert changes_between(schema, schema_from_ddl(text), by_ids=False) == []


def test_a_name_that_needs_quotes_gets_them() -> None:
    assert ddl_of(Schema(0, (Field(1, "a b", INT), Field(2, "größe", INT), Field(3, "1a", INT)))) == (
        "`a b` INT,\ngröße INT,\n`1a` INT"
    )
