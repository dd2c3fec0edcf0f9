"""The tables of docs/reference/wire.md say what the codecs do."""

from __future__ import annotations

import re

import pytest
from helpers.documents.pages import broken_links, table_rows
from helpers.reference_vectors import REFERENCE

from storage_node.errors import ERROR_OF_STATUS
from storage_node.protocol import schema, v2
from storage_node.protocol.schema import Operation, ReadFlag, Status, Version
from storage_node.protocol.wire import Message

PAGE = REFERENCE / "wire.md"
FIELD = re.compile(r"(\d+) (\w+)(?: (\w+))?(\\\*)?(?: \(.*\))?")


def rows_under(heading: str) -> dict[str, list[str]]:
    """The table under a heading: its rows' first cells, and what stands behind each."""
    rows = {cells[0]: cells[1:] for under, cells in table_rows(PAGE) if under == heading}
    assert rows, f"no table under {heading!r}"
    return rows


def numbered(text: str) -> dict[str, int]:
    return {name: int(number) for name, number in re.findall(r"(\w+) (\d+)", text)}


def test_the_enums_have_the_numbers_of_the_schema() -> None:
    rows = rows_under("Version 3 enums")
    assert numbered(rows["status"][0]) == {status.name: status.value for status in Status}
    assert numbered(rows["version"][0]) == {version.name: version.value for version in Version}
    assert set(numbered(rows["operation"][0]).values()) == {operation.value for operation in Operation}
    assert numbered(rows["flag of a read"][0]) == {flag.name: flag.value for flag in ReadFlag}


def messages() -> dict[str, Message]:
    """Every message of the schema by its name."""
    found: dict[str, Message] = {}
    left = [schema.REQUEST, schema.RESPONSE]
    while left:
        message = left.pop()
        found[message.name] = message
        left += [field.message for field in message.fields.values() if field.message is not None]
    return found


def _field(text: str) -> tuple[int, str, str, bool]:
    """(number, name, type, required) of a field as the page has it."""
    found = FIELD.fullmatch(text)
    assert found is not None, f"not a field: {text!r}"
    return int(found[1]), found[2], found[3] or "message", found[4] is not None


def test_the_fields_are_those_of_the_schema() -> None:
    described = {
        name: {_field(part) for part in text.split(". ")[0].split(", ")} if text != "none" else set()
        for names, (text,) in rows_under("Version 3 fields").items()
        for name in names.split(", ")
    }
    expected = {
        name: {
            (number, field.name, field.kind.name.lower(), field.required) for number, field in message.fields.items()
        }
        for name, message in messages().items()
    }
    assert described == expected


def test_every_status_has_its_error() -> None:
    rows = rows_under("Meanings")
    errors = {Status[name].value: cells[1].strip("`") for name, cells in rows.items() if name != "EOK"}
    assert errors == {status: error.__name__ for status, error in ERROR_OF_STATUS.items()}


def test_the_codes_of_version_2_are_those_that_are_sent() -> None:
    pairs: dict[str, int] = {}
    for code, (name, other_code, other_name) in rows_under("Version 2 codes").items():
        pairs |= {name: int(code), other_name: int(other_code)}
    sent = {status: int.from_bytes(v2.encode_add_response(status, 1, 2)[8:12], "big") for status in Status}
    assert sent.pop(Status.EUNKNOWNLEDGERSTATE) == pairs["EIO"]
    assert pairs == {status.name: code for status, code in sent.items()}


@pytest.mark.parametrize(
    "flag", [("FENCE", v2.FENCE), ("RECOVERY_ADD", v2.RECOVERY_ADD), ("HIGH_PRIORITY", v2.HIGH_PRIORITY)]
)
def test_the_header_of_version_2_names_the_flags(flag: tuple[str, int]) -> None:
    name, value = flag
    assert numbered(rows_under("Version 2 header")["15 to 0"][0])[name] == value


def test_links_within_the_page_lead_to_headings() -> None:
    assert [link for link in broken_links(PAGE) if link.startswith("wire.md: #")] == []
