"""How a schema may become another one, and what a declaration keeps of all of them."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest

from dlspark.tables.declaration import Declaration, RecordFormat
from dlspark.tables.evolution import (
    AddColumn,
    AllowNull,
    Change,
    DocumentColumn,
    DropColumn,
    EvolutionError,
    MoveColumn,
    Place,
    RenameColumn,
    WidenColumn,
    widened,
)
from dlspark.tables.types import (
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    PRIMITIVES,
    STRING,
    TIMESTAMP,
    Decimal,
    Field,
    InvalidSchemaError,
    ListOf,
    MapOf,
    Schema,
    Struct,
    Type,
)
from metadata.foundation.errors import CorruptDataError

ORDERS = Schema(
    0,
    (
        Field(1, "id", INT, required=True),
        Field(2, "price", Decimal(9, 2)),
        Field(3, "at", TIMESTAMP, required=True),
        Field(4, "to", Struct((Field(5, "street", STRING, required=True), Field(6, "zip", INT)))),
        Field(7, "tags", ListOf(Field(8, "element", Struct((Field(9, "w", FLOAT),))))),
        Field(10, "m", MapOf(Field(11, "key", INT, required=True), Field(12, "value", INT, required=True))),
    ),
)


def declared(format_: RecordFormat = RecordFormat.JSON) -> Declaration:
    return Declaration.of(format_, ORDERS, timestamp="at")


def after(*changes: Change, of: Declaration | None = None) -> Declaration:
    return (of or declared()).evolved(changes)


def test_each_change_makes_a_version_that_keeps_ids() -> None:
    made = after(
        AddColumn(("note",), STRING, doc="free text", place=Place("id")),
        AddColumn(("to", "country"), STRING, default="DE", required=True, place=Place()),
        AddColumn(("lines",), ListOf(Field(1, "element", Struct((Field(1, "sku", STRING),))))),
        RenameColumn(("price",), "total"),
        MoveColumn(("at",), Place()),
        WidenColumn(("id",), LONG),
        WidenColumn(("total",), Decimal(18, 2)),
        WidenColumn(("tags", "element", "w"), DOUBLE),
        WidenColumn(("m", "value"), LONG),
        AllowNull(("m", "value")),
        AllowNull(("to", "street")),
        DropColumn(("to", "zip")),
        DocumentColumn(("ID",), "the number"),
    )
    assert str(made.current) == (
        "at timestamptz not null, id long not null, note string, total decimal(18, 2), "
        "to struct<country: string, street: string>, tags list<struct<w: double>>, m map<int, long>, "
        "lines list<struct<sku: string>>"
    )
    assert [one.id for one in made.current.fields] == [3, 1, 13, 2, 4, 7, 10, 15]
    assert sorted(set(made.current.by_id()) - set(ORDERS.by_id())) == [13, 14, 15, 16, 17]
    assert (made.current.id, made.highest_id, len(made.schemas)) == (1, 17, 2)
    assert made.version(0) == ORDERS
    assert Declaration.decode(made.encode(), "/p") == made


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (AddColumn(("id",), INT), "There is a column id"),
        (AddColumn(("TO", "ZIP"), INT), "There is a column"),
        (AddColumn(("no", "where"), INT), "no column no.where"),
        (AddColumn(("new",), INT, required=True), "Give it a default"),
        (AddColumn(("new",), INT, place=Place("gone")), "no column gone"),
        (AddColumn(("tags", "other"), INT), "has no other fields"),
        (AddColumn(("id", "part"), INT), "id.part is part of int"),
        (DropColumn(("gone",)), "There are: id, price"),
        (DropColumn(("at",)), "transaction id"),
        (AllowNull(("at",)), "gives each record its transaction id, and cannot be null"),
        (DropColumn(("tags", "element")), "is the last one"),
        (DropColumn(("m", "value")), "has no other fields"),
        (RenameColumn(("id",), "PRICE"), "There is a column"),
        (RenameColumn(("m", "key"), "k"), "has no other fields"),
        (WidenColumn(("id",), STRING), "cannot become string: it is int"),
        (WidenColumn(("price",), Decimal(18, 3)), "cannot become"),
        (WidenColumn(("price",), Decimal(8, 2)), "cannot become"),
        (WidenColumn(("m", "key"), LONG), "key of a map does not change"),
        (WidenColumn(("to",), STRING), "cannot become"),
    ],
)
def test_what_records_would_contradict_is_refused(change: Change, says: str) -> None:
    with pytest.raises(EvolutionError, match=says) as caught:
        after(change)
    assert "nothing was changed" in str(caught.value)
    assert caught.value.advice


def test_a_name_that_records_say_stays_with_its_column() -> None:
    renamed = after(RenameColumn(("price",), "total"))
    for taken in (AddColumn(("Price",), INT), RenameColumn(("id",), "price")):
        with pytest.raises(EvolutionError, match="Another column was named"):
            after(taken, of=renamed)
    assert after(RenameColumn(("total",), "price"), of=renamed).current.fields[1].id == 2, "its own"
    dropped = after(DropColumn(("to", "zip")))
    with pytest.raises(EvolutionError, match="Another column was named"):
        after(AddColumn(("to", "zip"), STRING), of=dropped)
    with pytest.raises(EvolutionError, match="Another column was named"):
        after(DropColumn(("price",)), AddColumn(("price",), STRING))
    avro = after(DropColumn(("price",)), of=declared(RecordFormat.AVRO))
    assert after(AddColumn(("price",), STRING), of=avro).current.fields[-1].id == 13


def test_a_name_stays_taken_within_a_struct_that_has_another_name_by_now() -> None:
    city = after(RenameColumn(("to", "zip"), "code"))
    renamed = after(RenameColumn(("to",), "dest"), of=city)
    for given in (after(AddColumn(("x",), INT), of=renamed), renamed):
        with pytest.raises(EvolutionError, match=r"Another column was named dest\.zip before"):
            after(AddColumn(("dest", "zip"), STRING), of=given)
    with pytest.raises(EvolutionError, match="Another column was named"):
        city.evolved([RenameColumn(("to",), "dest"), AddColumn(("dest", "zip"), STRING)])


def test_a_default_that_its_column_cannot_have_is_refused() -> None:
    for type_, default in ((INT, "x"), (INT, 2**31), (DOUBLE, float("nan")), (INT, {1, 2}), (STRING, "\ud800")):
        with pytest.raises(InvalidSchemaError, match="The default of column new does not fit"):
            after(AddColumn(("new",), type_, default=default))
        with pytest.raises(InvalidSchemaError, match="The default of column new does not fit"):
            Declaration.of(RecordFormat.AVRO, Schema(0, (Field(1, "new", type_, default=default),)))
    with pytest.raises(InvalidSchemaError, match="comment of column new"):
        after(AddColumn(("new",), INT, doc="\ud800"))
    assert after(AddColumn(("new",), DOUBLE, default="NaN")).encode()


def test_a_type_is_widened_only_where_every_value_stays() -> None:
    types: list[Type] = [*PRIMITIVES.values(), Decimal(9, 2), Decimal(10, 2), Decimal(10, 3)]
    allowed = {(str(a), str(b)) for a in types for b in types if a != b and widened(a, b)}
    assert allowed == {("int", "long"), ("float", "double"), ("decimal(9, 2)", "decimal(10, 2)")}


def test_the_column_of_transaction_ids_is_a_required_time() -> None:
    assert declared().timestamp_id == 3
    fields = (Field(1, "a", TIMESTAMP), Field(2, "b", STRING, required=True), Field(3, "c", DATE, required=True))
    assert Declaration.of(RecordFormat.JSON, Schema(9, fields), timestamp="C").timestamp_id == 3
    for name in ("a", "b", "d"):
        with pytest.raises(InvalidSchemaError):
            Declaration.of(RecordFormat.JSON, Schema(9, fields), timestamp=name)
    with pytest.raises(EvolutionError, match="cannot become"):
        after(WidenColumn(("at",), STRING))


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"more": 1},
        {"format": "xml"},
        {"highest-id": 3},
        {"highest-id": "12"},
        {"timestamp-id": "3"},
        {"timestamp-id": 1},
        {"timestamp-id": 5},
        {"timestamp-id": 99},
        {"strict": 1},
        {"schemas": []},
        {"schemas": [{"type": "struct", "schema-id": 1, "fields": []}]},
    ],
)
def test_a_declaration_that_cannot_be_used_is_refused_and_never_read_in_part(change: dict[str, object]) -> None:
    data = json.dumps({**json.loads(declared().encode()), **change}).encode()
    with pytest.raises(CorruptDataError, match="declares"):
        Declaration.decode(data, "/p")
    columns = [{"id": 1, "name": "n", "required": False, "type": "int", "initial-default": "x", "write-default": "x"}]
    bad = {"schemas": [{"type": "struct", "schema-id": 0, "fields": columns}], "timestamp-id": None}
    with pytest.raises(CorruptDataError, match="The default of column n does not fit"):
        Declaration.decode(json.dumps({**json.loads(declared().encode()), **bad}).encode(), "/p")
    for other in (b"", b"\xff", b"[" * 100_000, b"[]"):
        with pytest.raises(CorruptDataError):
            Declaration.decode(other, "/p")


def test_a_declaration_is_as_large_as_a_znode_may_be() -> None:
    large = after(DocumentColumn(("id",), "x" * (600 << 10)))
    with pytest.raises(InvalidSchemaError, match="Up to 524288 are kept"):
        large.encode()


@pytest.mark.parametrize("seed", range(30))
def test_random_lives_give_no_id_twice_and_travel(seed: int) -> None:
    rng = random.Random(seed)
    added: list[Type] = [INT, STRING, ORDERS.fields[3].type, ORDERS.fields[5].type]
    wider: list[Type] = [LONG, DOUBLE, Decimal(20, 2)]
    made = declared(rng.choice(list(RecordFormat)))
    named: dict[int, set[str]] = {}
    for step in range(40):
        names = [one.name for one in made.current.fields]
        name = rng.choice(names)
        changes: list[Change] = [
            AddColumn((f"c{step}",), rng.choice(added)),
            DropColumn((name,)),
            RenameColumn((name,), rng.choice([f"r{step}", *names])),
            MoveColumn((name,), Place(rng.choice([None, *names]))),
            WidenColumn((name,), rng.choice(wider)),
            AllowNull((name,)),
        ]
        before = made
        try:
            made = made.evolved([rng.choice(changes)])
        except InvalidSchemaError:
            assert made is before
            continue
        if made is before:
            continue  # it changed nothing
        assert made.schemas[:-1] == before.schemas
        assert set(made.current.by_id()) - set(before.current.by_id()) <= set(
            range(before.highest_id + 1, made.highest_id + 1)
        )
        assert Declaration.decode(made.encode(), "/p") == made
        for one in made.current.fields:
            named.setdefault(one.id, set()).add(one.name)
    if made.format is RecordFormat.JSON:
        names_of = [name for names_ in named.values() for name in names_]
        assert len(names_of) == len(set(names_of)), "a name is one column's"


def test_what_is_not_a_type_or_a_path_of_ours_is_refused() -> None:
    given = Declaration.of(RecordFormat.JSON, Schema(0, (Field(1, "a", INT),)))
    wrong: list[Any] = [pa.int64(), "bigint", None]
    for type_ in wrong:
        with pytest.raises(InvalidSchemaError, match="not a type of a column"):
            given.evolved([AddColumn(("b",), type_)])
    note: Any = "note"
    with pytest.raises(EvolutionError, match="a tuple of names"):
        given.evolved([AddColumn(note, INT)])
