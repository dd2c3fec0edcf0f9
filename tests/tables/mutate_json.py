"""Read changed JSON records both ways, in a process of its own: `python mutate_json.py SEED HOW_MANY [FILE]`.

Blocks of a few records go the fast way and the slow one (`json_decoding`), and whatever the fast one gives must be what
the slow one gives. What was read last before a crash is in the file. The answer is how many records there were, and how
many of them the fast way has read.
"""

from __future__ import annotations

import faulthandler
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow as pa
from random_rows import NAMES, random_row, random_schema, random_type

from dlspark.tables.arrow_types import arrow_schema
from dlspark.tables.json_decoding import JsonReader
from dlspark.tables.json_encoding import encode_rows
from dlspark.tables.types import (
    BOOLEAN,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    STRING,
    Decimal,
    Field,
    ListOf,
    Schema,
    Struct,
    Type,
    walk,
)

NUMBERS = (
    '0', '-0', '1', '-1', '01', '1.', '.5', '+1', '1.0', '1.50', '-0.0', '0.10', '1e3', '1E+3', '1e-3', '1e400',
    '-1e400', '1e-400', '1e39', '5e-324', '0e0', '0E-5', '10e-1', '1.5e1', '12e-2', '100e-2', '2147483647',
    '2147483648', '-2147483648', '-2147483649', '9223372036854775807', '9223372036854775808', '-9223372036854775808',
    '18446744073709551616', '9007199254740993', '0.1', '0.30000000000000004', '3.4028235e38', '3.4028236e38',
    '1.7976931348623157e308', '1.7976931348623159e308', '123456789012345678901234567890', '1e1000000000',
    '1e-1000000000', '1e99999999999999999999', '0x1', '1_0', '1e', '1e+', '-', 'NaN', 'Infinity', '-Infinity', 'nan',
    'inf', '-inf', '1f', '1d', '00', '-00', '-01', '0.0000001', '99999999999999999999999999999999999999',
    '100000000000000000000000000000000000000', '0.00000000000000000000000000000000000001',
    '0.000000000000000000000000000000000000001',
)  # fmt: skip
BIG = ("0" * 500, "1" + "0" * 500, "0." + "0" * 500, "1." + "0" * 500, "0." + "0" * 500 + "1", "1" * 39 + "e-39")
TEXTS = (
    '""', '"a"', '"1"', '"1.5"', '" 1"', '"1 "', '"+1"', '"-1"', '"1e2"', '"1_0"', '"0x1"', '"NaN"', '"nan"',
    '"Infinity"', '"-Infinity"', '"inf"', '"true"', '"null"', '"\\u0000"', '"\\u0061"', '"\\ud83d\\ude00"',
    '"\\ud800"', '"\\udc00"', '"\\ud800\\ud800"', '"\\ud83d"', '"\\udc00\\ud800"', '"\\/"', '"\\x"', '"\\u12"',
    '"\\u00e9"', '"\\uFFFF"', '"\t"', '"\x00"', '"\x1f"', '"\x7f"', '"\u2028"', '"AP8="', '"AP8"', '"AP8=="',
    '"A P8="', '"AP8=\\n"', '"====" ', '"AA=A"', '"YQ=="', '"YR=="', '"_-8="', '"2026-11-01"', '"2026-11-1"',
    '"0000-01-01"', '"10000-01-01"', '"0001-01-01"', '"9999-12-31"', '"2026-02-29"', '"2024-02-29"',
    '"2026-11-01T12:00:00Z"', '"2026-11-01T12:00:00"', '"2026-11-01 12:00"', '"2026-11-01T12"', '"2026-11-01T12Z"',
    '"2026-11-01T12:00:00.1234567Z"', '"2026-11-01T12:00:00.123456+01:30"', '"2026-11-01T12:00:00+01"',
    '"2026-11-01T12:00:00+0130"', '"2026-11-01T12:00:00-99:99"', '"2026-11-01T24:00:00Z"', '"2026-11-01T23:59:60Z"',
    '"2026-11-01T12:00:00z"', '"2026-11-01t12:00:00Z"', '"2026-11-01T12:00:00 Z"', '" 2026-11-01T12:00:00Z"',
    '"2026-11-01T12:00:00Z "', '"0001-01-01T00:00:00+01:00"', '"9999-12-31T23:59:59.999999-01:00"',
    '"0000-12-31T23:59:59"', '"20261101"', '"2026-11-01T12:00:00,5"', '"1793534400"', '"now"', '"\uff11"',
    '"-2026-11-01"', '"+2026-11-01"',
)  # fmt: skip
VALUES = (
    *NUMBERS,
    *TEXTS,
    "true",
    "false",
    "null",
    "True",
    "[]",
    "{}",
    "[null]",
    "[[]]",
    "[{}]",
    "[1,]",
    "{,}",
    "[1 2]",
    "nul",
    "",
    '{"x":[{"y":null}]}',
    '{"x":1,"x":2}',
    '[{"y":1,"y":1}]',
)
TOKENS = (
    '"', '{', '}', '[', ']', ':', ',', '\\', ' ', '\t', '\n', '\r', '/', '\x0b', '\x0c', '\xa0', '\u2028', '\ufeff',
    '\x00', 'null', '}null', '{}', '}{', '}\n{', '//c', '/*c*/', '#', "'", '\\u0061', '\\u0000', '\\', '\\\\', '\\"',
    'e5', '1', '-', '.', '0', '"x":1,', ',"x":1', ',"x":null', ',"x":[{"y":{}}]', '"":1,',
)  # fmt: skip
SPACES = (" ", "\t", "  \t ", "\n", "\r", "\r\n", "\x0b", "\x0c", "\xa0", "\u3000", "\ufeff", "\x00")


def values_in(text: str) -> list[tuple[int, int]]:
    """Return where values of members and elements stand in an object."""
    found: list[tuple[int, int]] = []
    start, quoted, escaped = None, False, False
    for at, one in enumerate(text):
        if quoted:
            quoted = escaped or one != '"'
            escaped = not escaped and one == "\\"
        elif one == '"':
            quoted, escaped = True, False
        if not quoted and one in ":,[{}]":
            if start is not None and one in ",}]":
                found.append((start, at))
            start = at + 1 if one in ":,[" else None
    return found


def renamed(rng: Random, text: str, schema: Schema) -> str:
    """Return an object in which a name is written another way, or is another one's."""
    names = [one.name for one in walk(schema.fields)]
    old, new = json.dumps(rng.choice(names), ensure_ascii=False), rng.choice(names)
    ways = (
        "".join(f"\\u{ord(one):04x}" if ord(one) < 1 << 16 else json.dumps(one)[1:-1] for one in new),
        json.dumps(new)[1:-1],
        json.dumps(new, ensure_ascii=False)[1:-1],
        json.dumps(new)[1:-1] + "\\u0000",
        new.upper(),
    )
    return text.replace(f"{old}:", f'"{rng.choice(ways)}":', 1)


def mutated(rng: Random, payload: bytes, other: bytes, schema: Schema) -> bytes:
    """Return a record that was changed a little, or in one of its values or names."""
    text = payload.decode()
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        what, at = rng.randrange(12), rng.randrange(len(text) + 1)
        if what <= 3:
            places = values_in(text)
            if places:
                start, end = rng.choice(places)
                text = text[:start] + rng.choice(VALUES) + text[end:]
        elif what == 4:
            text = text[:at] + text[at + rng.randint(1, 4) :]
        elif what == 5:
            text = text[:at] + rng.choice(TOKENS) + text[at:]
        elif what == 6:
            text = renamed(rng, text, schema)
        elif what == 7:  # a member again, of this object or another
            source = rng.choice((text, other.decode()))
            text = text[:-1] + "," + source[1:]
        elif what == 8:
            places = [at for at, one in enumerate(text) if one in "{}[]:,"]
            at = rng.choice(places) if places else 0
            text = text[: at + 1] + rng.choice(SPACES) + text[at + 1 :]
        elif what == 9:
            text = rng.choice(SPACES) + text if rng.random() < 0.5 else text + rng.choice(SPACES)
        elif what == 10:
            depth = rng.choice((1, 30, 190, 200, 250))
            text = text[:-1] + f',"deep":{"[" * depth}{"]" * depth}' + "}"
        else:
            text = text + other.decode()
    made = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.03 and made:
        at = rng.randrange(len(made))
        made = made[:at] + bytes([rng.randrange(256)]) + made[at + 1 :]
    return made


def block(rng: Random, payloads: list[bytes], schema: Schema) -> list[bytes]:
    """Return a few records, of which one or more were changed; some are one that was cut in two."""
    made = [rng.choice(payloads) for _ in range(rng.choice((1, 1, 2, 3, 5)))]
    for at in range(len(made)):
        if at == 0 or rng.random() < 0.3:
            made[at] = mutated(rng, made[at], rng.choice(payloads), schema)
    if rng.random() < 0.1 and len(made) > 1:
        joined = b"".join(made)
        ends = sorted(rng.randrange(len(joined) + 1) for _ in range(len(made) - 1))
        made = [joined[start:end] for start, end in zip([0, *ends], [*ends, len(joined)], strict=True)]
    return made


def flat(rng: Random) -> Schema:
    """Return a schema of one or two columns that are not nested, or are lists or structs of such ones."""
    fields = []
    for at, name in enumerate(rng.sample(NAMES, rng.randint(1, 2))):
        type_ = random_type(rng, 0)
        inner = Field(10 * at + 2, "element", type_, required=rng.random() < 0.3)
        nested: tuple[Type, ...] = (
            type_,
            type_,
            type_,
            ListOf(inner),
            Struct((replace(inner, name=rng.choice(NAMES)),)),
        )
        fields.append(Field(10 * at + 1, name, rng.choice(nested), required=rng.random() < 0.3))
    return Schema(0, tuple(fields))


def written(rng: Random, type_: Type) -> str:
    """Return JSON that a value may look like, or not."""
    space = rng.choice(("", "", "", " ", "\t"))
    if rng.random() < 0.05:
        return rng.choice(VALUES)
    if isinstance(type_, ListOf):
        return f"[{space}{','.join(written(rng, type_.element.type) for _ in range(rng.randint(0, 3)))}]"
    if isinstance(type_, Struct):
        return an_object(rng, type_.fields)
    if type_ == BOOLEAN:
        return rng.choice(("true", "false", "null"))
    numbers = isinstance(type_, Decimal) or type_ in (INT, LONG, FLOAT, DOUBLE)
    text = rng.choice((*NUMBERS, *BIG) if numbers and rng.random() < 0.9 else TEXTS)
    if numbers and rng.random() < 0.5:
        digits, behind, exponent = rng.randint(1, 40), rng.randint(0, 40), rng.randint(-50, 50)
        text = f"{rng.choice(('', '-'))}{rng.randrange(10**digits)}"
        text += f".{rng.randrange(10**behind):0{behind}}" if behind and rng.random() < 0.5 else ""
        text += (
            f"{rng.choice('eE')}{rng.choice(('', '+')) if exponent >= 0 else ''}{exponent}"
            if rng.random() < 0.3
            else ""
        )
        text = f'"{text}"' if rng.random() < 0.1 else text
    return f"{space}{text}{space}"


def an_object(rng: Random, fields: Sequence[Field]) -> str:
    """Return an object that may be one of these fields."""
    members = [f"{json.dumps(one.name)}:{written(rng, one.type)}" for one in fields if rng.random() < 0.95]
    if rng.random() < 0.2:
        members.insert(rng.randint(0, len(members)), f'"more":{rng.choice(VALUES)}')
    return "{" + ",".join(members) + "}"


def main(seed: int, how_many: int, last: Path | None) -> None:
    """Read so many records."""
    faulthandler.enable()
    rng = Random(seed)
    seen = fast_ones = 0
    while seen < how_many:
        targeted = rng.random() < 0.5
        schema = flat(rng) if targeted else random_schema(rng, maps=False, columns=rng.choice((1, 2, 4)))
        if rng.random() < 0.3:
            schema = with_defaults(rng, schema)
        others = names_before(rng, schema) if rng.random() < 0.3 else {}
        reader = JsonReader(schema, others)
        rows = pa.RecordBatch.from_pylist([random_row(rng, schema) for _ in range(10)], schema=arrow_schema(schema))
        payloads = encode_rows(rows, schema).to_pylist()
        for _ in range(50):
            made = block(rng, payloads, schema)
            if targeted:
                made = [an_object(rng, schema.fields).encode() for _ in range(rng.choice((1, 1, 1, 2)))]
            made = [by_other_names(rng, one, schema, others) for one in made]
            if last is not None:
                last.write_text(repr((schema, others, made)))
            array = pa.array(made, rng.choice((pa.binary(), pa.large_binary())))
            fast, slow = reader._by_block(array), reader._by_rows(made)
            slow.rows.validate(full=True)
            said = repr(slow.rows.to_pylist())
            seen += len(made)
            if fast is None:
                continue
            fast_ones += len(made)
            fast.validate(full=True)
            if slow.errors.null_count < len(made) or repr(fast.to_pylist()) != said:
                sys.exit(
                    f"{schema}\n{others}\n{made}\nfast: {fast.to_pylist()}\nslow: {said} {slow.errors.to_pylist()}"
                )
    print(seen, fast_ones)


def names_before(rng: Random, schema: Schema) -> dict[int, tuple[str, ...]]:
    """Return other names of some columns."""
    return {
        one.id: tuple(f"{one.name}{number}" for number in range(rng.choice((1, 1, 2))))
        for one in schema.fields
        if rng.random() < 0.6
    }


def by_other_names(rng: Random, payload: bytes, schema: Schema, others: dict[int, tuple[str, ...]]) -> bytes:
    """Return a record in which some columns have another name, or two."""
    for one in schema.fields:
        if one.id in others and rng.random() < 0.6:
            old = f"{json.dumps(one.name, ensure_ascii=rng.random() < 0.5)}:".encode()
            new = f"{json.dumps(rng.choice(others[one.id]), ensure_ascii=False)}:".encode()
            twice = rng.choice((b"", b"", b"", b"null,", b"1,", b'"a",'))
            payload = payload.replace(old, new + twice + old if twice else new, 1)
    return payload


def with_defaults(rng: Random, schema: Schema) -> Schema:
    """Return a schema whose columns that are not nested have defaults."""
    values: dict[Type, object] = {INT: 7, LONG: -1, STRING: "d", BOOLEAN: True}
    return Schema(schema.id, tuple(replace(one, default=values.get(one.type)) for one in schema.fields))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None)
