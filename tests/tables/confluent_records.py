"""Records that Confluent's serialiser wrote, with a registry of its own over HTTP: `python confluent_records.py`.

It needs `pip install "confluent-kafka[avro,schemaregistry]"`, which brings twenty packages, so it is run by hand, and
what it printed with version 2.16.1 is in `confluent_records.json`: the registered schemas and the records' bytes.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
import threading
from decimal import Decimal as Number
from http.server import BaseHTTPRequestHandler, HTTPServer

MOMENT = dt.datetime(2026, 11, 1, 12, 0, 0, 7_000, tzinfo=dt.timezone.utc)
MICROS = dt.datetime(2026, 11, 1, 12, 0, 0, 7, tzinfo=dt.timezone.utc)
COLUMNS: list[dict[str, object]] = [
    {"name": "id", "type": "long"},
    {"name": "n", "type": ["null", "int"], "default": None},
    {"name": "price", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}]},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "micros", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
    {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
    {"name": "x", "type": "double"},
    {"name": "f", "type": ["float", "null"]},
    {"name": "flag", "type": "boolean"},
    {"name": "item", "type": ["null", "string"]},
    {"name": "data", "type": "bytes"},
    {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["TEA", "COFFEE"]}},
    {"name": "tags", "type": {"type": "array", "items": "string"}},
    {"name": "by", "type": {"type": "map", "values": "int"}},
    {
        "name": "place",
        "type": ["null", {"type": "record", "name": "Place", "fields": [{"name": "town", "type": ["null", "string"]}]}],
    },
]
FIRST = {"type": "record", "name": "Order", "namespace": "com.example", "fields": COLUMNS}
SECOND = FIRST | {"fields": [*COLUMNS, {"name": "note", "type": "string", "default": "none"}]}
SCHEMAS: dict[int, dict[str, object]] = {7: FIRST, 100_001: SECOND}
"""By the numbers that the registry gives them."""
ROWS: list[dict[str, object]] = [
    {
        "id": 2**63 - 1,
        "n": -(2**31),
        "price": Number("-9999999.99"),
        "at": MOMENT,
        "micros": MICROS,
        "day": dt.date(2026, 11, 1),
        "x": 5e-324,
        "f": 0.5,
        "flag": True,
        "item": 'tea "é" \U0001f600',
        "data": b"\x00\xff",
        "kind": "COFFEE",
        "tags": ["", "a"],
        "by": {"k": 1},
        "place": {"town": "Bonn"},
    },
    {
        "id": -(2**63),
        "n": None,
        "price": None,
        "at": MOMENT,
        "micros": None,
        "day": None,
        "x": -0.0,
        "f": None,
        "flag": False,
        "item": None,
        "data": b"",
        "kind": "TEA",
        "tags": [],
        "by": {},
        "place": None,
    },
]


class Registry(BaseHTTPRequestHandler):
    """Registers each schema by the number that SCHEMAS has for it."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        number = next(one for one, schema in SCHEMAS.items() if schema == json.loads(asked["schema"]))
        self._answer(200, {"id": number, "version": 1, "subject": "orders-value", **asked})

    def do_GET(self) -> None:
        self._answer(404, {"error_code": 40_401, "message": "not here"})

    def _answer(self, status: int, said: dict[str, object]) -> None:
        body = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Print nothing."""


def main() -> None:
    """Print the schemas and the records."""
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    server = HTTPServer(("127.0.0.1", 0), Registry)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = SchemaRegistryClient({"url": f"http://127.0.0.1:{server.server_port}"})
    records = {}
    for number, schema in SCHEMAS.items():
        serialise = AvroSerializer(client, json.dumps(schema))
        context = SerializationContext("orders", MessageField.VALUE)
        rows = [row | {"note": "new"} if number != 7 else row for row in ROWS]
        records[str(number)] = [serialise(row, context).hex() for row in rows]
    json.dump(
        {"schemas": {str(one): schema for one, schema in SCHEMAS.items()}, "records": records}, sys.stdout, indent=1
    )
    print()


if __name__ == "__main__":
    main()
