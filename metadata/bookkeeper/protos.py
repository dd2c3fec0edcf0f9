"""The protobuf messages that BookKeeper keeps in znodes, with descriptors built here (no protoc, no generated code).

The tables below are the schema: name, number, label and type of every field. All messages are proto2: a field is
present or absent, required ones must be there. Binary and text format both come from the protobuf runtime; this module
only turns its many ways to fail into `CorruptDataError`.

A private descriptor pool keeps these names apart from any other copy of the same messages in the process.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError, Message

from metadata.foundation.errors import CorruptDataError

_PACKAGE: Final = "dlspark.metadata"
_FIELD = descriptor_pb2.FieldDescriptorProto
_REQUIRED, _OPTIONAL, _REPEATED = _FIELD.LABEL_REQUIRED, _FIELD.LABEL_OPTIONAL, _FIELD.LABEL_REPEATED
_INT32, _INT64, _STRING, _BYTES = _FIELD.TYPE_INT32, _FIELD.TYPE_INT64, _FIELD.TYPE_STRING, _FIELD.TYPE_BYTES


class _Spec(NamedTuple):
    """One field. `kind` is a scalar type, or the full name of a message or enum inside this file."""

    name: str
    number: int
    label: descriptor_pb2.FieldDescriptorProto.Label.ValueType
    kind: descriptor_pb2.FieldDescriptorProto.Type.ValueType | str


_ENUMS: Final[dict[str, dict[str, int]]] = {
    "LedgerMetadataFormat.State": {"OPEN": 1, "IN_RECOVERY": 2, "CLOSED": 3},
    "LedgerMetadataFormat.DigestType": {"CRC32": 1, "HMAC": 2, "CRC32C": 3, "DUMMY": 4},
}

# A nested message is listed under its parent's name, after the parent.
_MESSAGES: Final[dict[str, tuple[_Spec, ...]]] = {
    "LedgerMetadataFormat": (
        _Spec("quorumSize", 1, _REQUIRED, _INT32),
        _Spec("ensembleSize", 2, _REQUIRED, _INT32),
        _Spec("length", 3, _REQUIRED, _INT64),
        _Spec("lastEntryId", 4, _OPTIONAL, _INT64),
        _Spec("state", 5, _REQUIRED, "LedgerMetadataFormat.State"),
        _Spec("segment", 6, _REPEATED, "LedgerMetadataFormat.Segment"),
        _Spec("digestType", 7, _OPTIONAL, "LedgerMetadataFormat.DigestType"),
        _Spec("password", 8, _OPTIONAL, _BYTES),
        _Spec("ackQuorumSize", 9, _OPTIONAL, _INT32),
        _Spec("ctime", 10, _OPTIONAL, _INT64),
        _Spec("customMetadata", 11, _REPEATED, "LedgerMetadataFormat.cMetadataMapEntry"),
        _Spec("cToken", 12, _OPTIONAL, _INT64),
    ),
    "LedgerMetadataFormat.Segment": (
        _Spec("ensembleMember", 1, _REPEATED, _STRING),
        _Spec("firstEntryId", 2, _REQUIRED, _INT64),
    ),
    "LedgerMetadataFormat.cMetadataMapEntry": (
        _Spec("key", 1, _OPTIONAL, _STRING),
        _Spec("value", 2, _OPTIONAL, _BYTES),
    ),
    "BookieServiceInfoFormat": (
        _Spec("endpoints", 6, _REPEATED, "BookieServiceInfoFormat.Endpoint"),
        _Spec("properties", 7, _REPEATED, "BookieServiceInfoFormat.PropertiesEntry"),
    ),
    "BookieServiceInfoFormat.Endpoint": (
        _Spec("id", 1, _REQUIRED, _STRING),
        _Spec("port", 2, _REQUIRED, _INT32),
        _Spec("host", 3, _REQUIRED, _STRING),
        _Spec("protocol", 4, _REQUIRED, _STRING),
        _Spec("auth", 5, _REPEATED, _STRING),
        _Spec("extensions", 6, _REPEATED, _STRING),
    ),
    # A protobuf map on the wire is a repeated message with key 1 and value 2.
    "BookieServiceInfoFormat.PropertiesEntry": (
        _Spec("key", 1, _OPTIONAL, _STRING),
        _Spec("value", 2, _OPTIONAL, _STRING),
    ),
    "CookieFormat": (
        _Spec("bookieHost", 1, _REQUIRED, _STRING),
        _Spec("journalDir", 2, _REQUIRED, _STRING),
        _Spec("ledgerDirs", 3, _REQUIRED, _STRING),
        _Spec("instanceId", 4, _OPTIONAL, _STRING),
        _Spec("indexDirs", 5, _OPTIONAL, _STRING),
    ),
    "UnderreplicatedLedgerFormat": (
        _Spec("replica", 1, _REPEATED, _STRING),
        _Spec("ctime", 2, _OPTIONAL, _INT64),
    ),
    "LedgerRereplicationLayoutFormat": (
        _Spec("type", 1, _REQUIRED, _STRING),
        _Spec("version", 2, _REQUIRED, _INT32),
    ),
    "LockDataFormat": (_Spec("bookieId", 1, _OPTIONAL, _STRING),),
    "AuditorVoteFormat": (_Spec("bookieId", 1, _OPTIONAL, _STRING),),
    # One message for three znodes: each holds the time of the last run of one kind of check.
    "CheckTimeFormat": (_Spec("ctime", 1, _OPTIONAL, _INT64),),
}


def _add_field(message: descriptor_pb2.DescriptorProto, spec: _Spec) -> None:
    field = message.field.add(name=spec.name, number=spec.number, label=spec.label)
    if isinstance(spec.kind, str):
        field.type = _FIELD.TYPE_ENUM if spec.kind in _ENUMS else _FIELD.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{spec.kind}"
    else:
        field.type = spec.kind


def _build_pool() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(name="dlspark/metadata.proto", package=_PACKAGE, syntax="proto2")
    built: dict[str, descriptor_pb2.DescriptorProto] = {}
    for name, specs in _MESSAGES.items():
        parent, _, leaf = name.rpartition(".")
        message = built[parent].nested_type.add(name=leaf) if parent else file.message_type.add(name=leaf)
        for spec in specs:
            _add_field(message, spec)
        built[name] = message
    for name, values in _ENUMS.items():
        parent, _, leaf = name.rpartition(".")
        enum = built[parent].enum_type.add(name=leaf)
        for value, number in values.items():
            enum.value.add(name=value, number=number)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool


_POOL: Final = _build_pool()


def _message(name: str) -> type[Message]:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


LEDGER_METADATA: Final = _message("LedgerMetadataFormat")
BOOKIE_SERVICE_INFO: Final = _message("BookieServiceInfoFormat")
COOKIE: Final = _message("CookieFormat")
UNDERREPLICATED_LEDGER: Final = _message("UnderreplicatedLedgerFormat")
REREPLICATION_LAYOUT: Final = _message("LedgerRereplicationLayoutFormat")
LOCK_DATA: Final = _message("LockDataFormat")
AUDITOR_VOTE: Final = _message("AuditorVoteFormat")
CHECK_TIME: Final = _message("CheckTimeFormat")


def parse_binary(kind: type[Message], data: bytes, path: str) -> Message:
    """Decode the binary format. Raises CorruptDataError naming `path`."""
    message = kind()
    try:
        message.ParseFromString(data)
    except (DecodeError, ValueError) as error:  # ValueError: a string that is not UTF-8
        raise CorruptDataError(f"not a {kind.DESCRIPTOR.name}: {error}", path=path) from error
    return _complete(message, path)


def parse_text(kind: type[Message], data: bytes, path: str) -> Message:
    """Decode the text format leniently: any order and white space, unknown fields skipped. Raises CorruptDataError."""
    message = kind()
    try:
        text_format.Parse(data.decode("utf-8"), message, allow_unknown_field=True)
    except (text_format.ParseError, ValueError) as error:
        raise CorruptDataError(f"not a {kind.DESCRIPTOR.name} in text format: {error}", path=path) from error
    return _complete(message, path)


def _complete(message: Message, path: str) -> Message:
    missing = message.FindInitializationErrors()  # type: ignore[attr-defined]  # absent from the stubs only
    if missing:
        raise CorruptDataError(f"{message.DESCRIPTOR.name} lacks {', '.join(missing)}", path=path)
    if not _strings_are_text(message):
        raise CorruptDataError(f"{message.DESCRIPTOR.name} has a string that is not UTF-8", path=path)
    return message


def _strings_are_text(message: Message) -> bool:
    """Return False for a string that is not UTF-8: of proto2 the runtime lets it pass, as bytes."""
    for field, value in message.ListFields():
        parts = [value] if isinstance(value, str | bytes | int | Message) else value
        for part in parts:
            if isinstance(part, Message) and not _strings_are_text(part):
                return False
            if field.type == field.TYPE_STRING and not isinstance(part, str):
                return False
    return True


def format_text(message: Message) -> bytes:
    """Encode the text format as Java's printer does: one field a line, non-ASCII bytes escaped."""
    return text_format.MessageToString(message, as_utf8=False).encode("ascii")
