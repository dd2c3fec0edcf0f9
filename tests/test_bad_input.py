"""Bad input, as a table: what is done, which error it gives, what that says; and nothing is lost, everything serves.

After every case each node must answer, the canary log must hold each of its records, and a new record must be
acknowledged (`Rig.check`).
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

import pytest
from helpers.bad_input import CANARY, VICTIM, Rig
from helpers.bookie.wire_bytes import block, frame, number, request, send

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.sync.namespace import Namespace
from dlspark.errors import InvalidRecordError, RecordTooLongError, SettingsError, TransactionIdOutOfOrderError
from dlspark.sandbox.processes import SandboxError
from dlspark.spark.errors import OffsetError, OptionError
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.source.offsets import Offsets
from dlspark.spark.source.selection import SourceQuery
from metadata.bookkeeper.ledger_metadata import DigestType
from metadata.distributedlog.locks import OwnershipAcquireFailedError
from metadata.distributedlog.log_names import InvalidLogNameError, LogNotFoundError
from metadata.distributedlog.namespaces import NotBoundError
from metadata.foundation.errors import CallerError, CorruptDataError, DistributedLogError, MetadataUnavailableError
from storage_node.errors import (
    BadRequestError,
    BookieConfigurationError,
    BookieIOError,
    ConnectionClosedError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    ProtocolVersionError,
    UnauthorizedAccessError,
)
from storage_node.protocol.digests import EntryDigest
from storage_node.protocol.encoding import (
    encode_add_request,
    encode_read_lac_request,
    encode_read_request,
    encode_write_lac_request,
)
from storage_node.settings.files import NodeFile

pytestmark = pytest.mark.processes

MAX_TXID = 2**63 - 1
ADD, READ, RANGE_READ, AUTH, WRITE_LAC, START_TLS, BATCH_READ = 2, 1, 3, 5, 6, 9, 12
ADD_FIELD, READ_FIELD = 101, 100
GARBAGE = bytes(range(256)) * 4
_HEADER = Struct(">qqqq")


@dataclass(frozen=True)
class Case:
    """`do` must raise `error`, whose text matches `says` (a regular expression, searched)."""

    what: str
    do: Callable[[Rig], object]
    error: type[BaseException]
    says: str


# ---- options and offsets of a query ----------------------------------------------------------------------------------


def query(**options: str) -> Callable[[Rig], object]:
    """The driver's first step with these options, before anything is contacted."""
    return lambda rig: SourceQuery.of(Options({"uri": rig.uri, **options}, Scope.SOURCE_BATCH))


def starting(offsets: str) -> Callable[[Rig], object]:
    return query(subscribe=CANARY, startingOffsets=offsets)


OPTION_CASES = [
    Case("an unknown option", query(subscribe=CANARY, startingOffset="earliest"), OptionError, "mean startingOffsets"),
    Case("an option of the sink", query(subscribe=CANARY, txnAppId="a"), OptionError, "txnAppId has no meaning here"),
    Case("no log named", query(), OptionError, "No log to read"),
    Case("logs named two ways", query(subscribe="a", subscribePattern="b"), OptionError, "named 2 ways"),
    Case("a log named twice", query(subscribe="a,a"), OptionError, "twice"),
    Case("a pattern that is none", query(subscribePattern="("), OptionError, "subscribePattern"),
    Case("a limit of 0", query(subscribe=CANARY, minPartitions="0"), OptionError, "minPartitions=0 is outside 1"),
    Case(
        "a number that is none",
        query(subscribe=CANARY, maxBytesPerPartition="1k"),
        OptionError,
        "'1k' is not a whole number",
    ),
    Case("a flag that is none", query(subscribe=CANARY, failOnDataLoss="maybe"), OptionError, "true or false"),
    Case("a time that is none", query(subscribe=CANARY, startingTimestamp="July"), OptionError, "ISO-8601"),
    Case("a time before 1970", query(subscribe=CANARY, startingTimestamp="-5"), OptionError, "-5 is outside 0"),
    Case("offsets that are not JSON", starting("first"), OffsetError, "earliest, latest nor JSON"),
    Case("offsets that are a list", starting("[1]"), OffsetError, "JSON object"),
    Case("offsets of no log", starting("{}"), OffsetError, "JSON object"),
    Case("a log's offset twice", starting('{"canary": "1:0:0", "canary": "2:0:0"}'), OffsetError, "canary"),
    Case("a position of two numbers", starting('{"canary": "1:0"}'), OffsetError, "not a position"),
    Case("a negative position", starting('{"canary": "1:-1:0"}'), OffsetError, "not a position"),
    Case("segment 0", starting('{"canary": "0:0:0"}'), OffsetError, "not a position"),
    Case("a position beyond 64 bits", starting('{"canary": "9223372036854775808:0:0"}'), OffsetError, "not a position"),
    Case("a number as position", starting('{"canary": 5}'), OffsetError, "not a position"),
    Case("a checkpoint of a later release", lambda rig: Offsets.from_stored({"v": 9, "logs": {}}), OffsetError, "9"),
    Case("a checkpoint of something else", lambda rig: Offsets.from_stored(json.loads("[]")), OffsetError, "offset"),
]

# ---- namespaces, logs, records ---------------------------------------------------------------------------------------


def write(txid: int, payload: object) -> Callable[[Rig], object]:
    """One record into a log of its own that already holds transaction id 100."""

    def do(rig: Rig) -> object:
        name = f"written-{abs(hash((txid, str(payload)[:20])))}"
        rig.namespace.create_log(name)
        with rig.log(name) as log, log.open_writer() as writer:
            writer.write(100, b"first").result(60)
            return writer.write(txid, payload).result(60)  # type: ignore[arg-type]

    return do


def second_writer(rig: Rig) -> object:
    with rig.log("pulse") as log:
        return log.open_writer()


def opened(uri: str, **settings: object) -> Callable[[Rig], object]:
    def do(rig: Rig) -> object:
        with Namespace.open(uri.format(zk=rig.sandbox.zookeeper_address), settings) as namespace:
            return list(namespace.logs())

    return do


def create_log(name: str) -> Callable[[Rig], object]:
    return lambda rig: rig.namespace.create_log(name)


def read_from(start: object) -> Callable[[Rig], object]:
    def do(rig: Rig) -> object:
        with rig.log() as log, log.open_reader(start) as reader:  # type: ignore[arg-type]
            return reader.read_bulk(1)

    return do


def create_ledger(**options: object) -> Callable[[Rig], object]:
    return lambda rig: rig.with_ledgers(lambda client: client.create(**options))  # type: ignore[arg-type]


def open_with_another_password(rig: Rig) -> object:
    ledger_id = rig.canary_ledger
    return rig.with_ledgers(lambda client: client.open(ledger_id, password=b"guess", recover=False))


API_CASES = [
    Case("a URI of another scheme", opened("kafka://{zk}/distributedlog"), CallerError, "kafka"),
    Case("a URI without a path", opened("distributedlog://{zk}"), CallerError, "path"),
    Case("a URI without a server", opened("distributedlog:///distributedlog"), CallerError, "server"),
    Case("a path that is not bound", opened("distributedlog://{zk}/ledgers"), NotBoundError, "/ledgers"),
    Case(
        "a server that is not there",
        opened("distributedlog://127.0.0.1:9/distributedlog"),
        MetadataUnavailableError,
        "127.0.0.1:9",
    ),
    Case("an unknown setting", opened("distributedlog://{zk}/distributedlog", ackQuorum=2), SettingsError, "ackQuorum"),
    Case(
        "a setting of a wrong type",
        opened("distributedlog://{zk}/distributedlog", bkcEnsembleSize="three"),
        SettingsError,
        "bkcEnsembleSize",
    ),
    Case(
        "a compression that is none",
        opened("distributedlog://{zk}/distributedlog", compressionType="zip"),
        SettingsError,
        "compressionType",
    ),
    Case("a log that is not there", lambda rig: rig.log("nowhere").segments(), LogNotFoundError, "nowhere"),
    Case("a reserved log name", create_log(".hidden"), InvalidLogNameError, "hidden"),
    Case("a log name with a space", create_log("two words"), InvalidLogNameError, "two words"),
    Case("a log name that climbs", create_log("a/../b"), InvalidLogNameError, "a/../b"),
    Case("an empty log name", create_log(""), InvalidLogNameError, "name"),
    Case("a negative transaction id", write(-1, b"x"), TransactionIdOutOfOrderError, "-1"),
    Case("the reserved transaction id", write(MAX_TXID, b"x"), TransactionIdOutOfOrderError, str(MAX_TXID)),
    Case("a transaction id that goes back", write(99, b"x"), TransactionIdOutOfOrderError, "99"),
    Case("a record that is too long", write(101, b"x" * (1 << 20)), RecordTooLongError, "1048576"),
    Case("a record that is none", write(101, None), InvalidRecordError, "None"),
    Case("a record that is text", write(101, "text"), InvalidRecordError, "str"),
    Case("a second writer", second_writer, OwnershipAcquireFailedError, "pulse"),
    Case("a reader's position that is none", read_from("somewhere"), CallerError, "somewhere"),
    Case("a DLSN of two numbers", lambda rig: DLSN.parse("3:1200"), CallerError, "3:1200"),
    Case("an ensemble below the write quorum", create_ledger(ensemble_size=2, write_quorum=3), CallerError, "quorum"),
    Case("an ack quorum of 0", create_ledger(ack_quorum=0), CallerError, "quorum"),
    Case("more nodes than there are", create_ledger(ensemble_size=5), NotEnoughBookiesError, "5"),
    Case(
        "a wrong password",
        open_with_another_password,
        UnauthorizedAccessError,
        "password",
    ),
]

# ---- bytes to a node's port ------------------------------------------------------------------------------------------


def raw(data: bytes, *, half_close: bool = False) -> Callable[[Rig], object]:
    return lambda rig: send(rig.port, data, half_close=half_close)


def bytes_for(make: Callable[[Rig], bytes]) -> Callable[[Rig], object]:
    return lambda rig: send(rig.port, make(rig))


def add(rig: Rig, *, ledger_id: int | None = None, key: bytes | None = None, body: bytes | None = None) -> bytes:
    """An add to the canary's ledger (which would be entry 10000 of it), with one thing wrong."""
    ledger = rig.canary_ledger if ledger_id is None else ledger_id
    if body is None:
        body = EntryDigest(DigestType.CRC32, b"").package(ledger, 10_000, 9_999, 5, b"wrong") + b"wrong"
    head, tail = encode_add_request(5, ledger, 10_000, rig.key if key is None else key, len(body))
    return head + body + tail


UNKNOWN_LEDGER = 999_999_999

WIRE_CASES = [
    Case("a frame of no bytes", raw(frame(b"")), ConnectionClosedError, "closed"),
    Case("a frame of negative length", raw(b"\xff\xff\xff\xff" + GARBAGE), ConnectionClosedError, "closed"),
    Case("a frame over 5 MiB", raw(b"\x00\x50\x00\x00" + GARBAGE), ConnectionClosedError, "closed"),
    Case("a frame of 2 GiB", raw(b"\x7f\xff\xff\xff"), ConnectionClosedError, "closed"),
    Case("a frame that ends early", raw(frame(GARBAGE)[:100], half_close=True), ConnectionClosedError, "closed"),
    Case("half a length", raw(b"\x00\x00", half_close=True), ConnectionClosedError, "closed"),
    Case("garbage in a whole frame", raw(frame(GARBAGE)), ConnectionClosedError, "closed"),
    Case("zeros", raw(bytes(10_000)), ConnectionClosedError, "closed"),
    Case("an HTTP request", raw(b"GET / HTTP/1.1\r\nHost: node\r\n\r\n"), ConnectionClosedError, "closed"),
    Case(
        "a TLS greeting",
        raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + GARBAGE),
        ConnectionClosedError,
        "closed",
    ),
    Case("an opcode that is none", raw(frame(b"\x02\x09\x00\x00" + bytes(16))), ConnectionClosedError, "closed"),
    Case(
        "a number of eleven bytes",
        raw(frame(b"\x0a\x0e\x08\x03\x10\x01\x18" + b"\xff" * 10 + b"\x01")),
        ConnectionClosedError,
        "closed",
    ),
    Case("a length inside that is too long", raw(frame(b"\x0a\x7f\x08\x03")), ConnectionClosedError, "closed"),
    Case(
        "a header of another version",
        raw(request(READ, block(READ_FIELD, number(1, 1) + number(2, 0)), version=2)),
        ProtocolVersionError,
        "EBADVERSION",
    ),
    Case("a batch read", raw(request(BATCH_READ)), BadRequestError, "EBADREQ"),
    Case("a range read", raw(request(RANGE_READ)), BadRequestError, "EBADREQ"),
    Case("TLS where there is none", raw(request(START_TLS, block(106, b""))), BadRequestError, "EBADREQ"),
    Case("an add without its part", raw(request(ADD)), BadRequestError, "EBADREQ"),
    Case("an add of 10 bytes", bytes_for(lambda rig: add(rig, body=bytes(10))), BadRequestError, "EBADREQ"),
    Case("an add of no bytes", bytes_for(lambda rig: add(rig, body=b"")), BadRequestError, "EBADREQ"),
    Case(
        "an add with a negative ledger",
        bytes_for(lambda rig: add(rig, body=_HEADER.pack(-1, 0, -1, 0) + bytes(8))),
        BadRequestError,
        "EBADREQ",
    ),
    Case(
        "an add with a negative entry",
        bytes_for(lambda rig: add(rig, body=_HEADER.pack(rig.canary_ledger, -5, -1, 0) + bytes(8))),
        BadRequestError,
        "EBADREQ",
    ),
    Case("an add with another key", bytes_for(lambda rig: add(rig, key=b"k" * 20)), UnauthorizedAccessError, "EUA"),
    Case("a read of an unknown ledger", raw(encode_read_request(1, UNKNOWN_LEDGER, 0)), NoSuchLedgerError, "ENOLEDGER"),
    Case(
        "a read of an unknown entry",
        bytes_for(lambda rig: encode_read_request(1, rig.canary_ledger, 10**9)),
        NoSuchEntryError,
        "ENOENTRY",
    ),
    Case(
        "a fence without a key",
        bytes_for(lambda rig: encode_read_request(1, rig.canary_ledger, -1, fence=True)),
        UnauthorizedAccessError,
        "EUA",
    ),
    Case(
        "a fence with another key",
        bytes_for(lambda rig: encode_read_request(1, rig.canary_ledger, -1, fence=True, master_key=b"k" * 20)),
        UnauthorizedAccessError,
        "EUA",
    ),
    Case(
        "a long poll for a chosen entry",
        bytes_for(
            lambda rig: encode_read_request(1, rig.canary_ledger, 3, previous_lac=-1, timeout_ms=10, piggyback=True)
        ),
        BadRequestError,
        "EBADREQ",
    ),
    Case("the LAC of an unknown ledger", raw(encode_read_lac_request(1, UNKNOWN_LEDGER)), NoSuchEntryError, "ENOENTRY"),
    Case(
        "an explicit LAC with another key",
        bytes_for(lambda rig: encode_write_lac_request(1, rig.canary_ledger, 5, b"k" * 20, bytes(20))),
        UnauthorizedAccessError,
        "EUA",
    ),
    Case(
        "an explicit LAC of 3 bytes",
        bytes_for(lambda rig: encode_write_lac_request(1, rig.canary_ledger, 5, rig.key, b"abc")),
        BadRequestError,
        "EBADREQ",
    ),
]

# ---- files of a node -------------------------------------------------------------------------------------------------


def start_with(damage: Callable[[Path], None]) -> Callable[[Rig], object]:
    """Kill a node, damage its files, start it."""

    def do(rig: Rig) -> object:
        rig.fill_journals()
        with rig.node_down() as place:
            damage(place)
            return rig.sandbox.start_node(VICTIM)

    return do


def newest_journal_file(place: Path) -> Path:
    return max((place / "journal" / "current").glob("journal-*.log"))


def batches_of(path: Path) -> list[int]:
    """Where the batches of a journal file begin."""
    return [found.start() for found in re.finditer(b"dlsBATCH", path.read_bytes())]


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def flip_a_bit_of_a_durable_batch(place: Path) -> None:
    path = newest_journal_file(place)
    flip(path, batches_of(path)[-6] + 70)


def lose_the_journal(place: Path) -> None:
    for path in (place / "journal" / "current").glob("journal-*.log"):
        path.unlink()


def another_cookie(place: Path) -> None:
    for path in place.rglob("VERSION"):
        path.write_text(path.read_text().replace("127.0.0.1", "127.0.0.9"))


def one_cookie_less(place: Path) -> None:
    (place / "ledgers" / "current" / "VERSION").unlink()


def a_cookie_of_garbage(place: Path) -> None:
    (place / "ledgers" / "current" / "VERSION").write_bytes(GARBAGE)


def all_files_gone(place: Path) -> None:
    shutil.rmtree(place / "journal")
    shutil.rmtree(place / "ledgers")


def read_a_flipped_bit(rig: Rig) -> object:
    """After an orderly end all entries lie in the entry logs; one bit of one canary record is turned there."""
    with rig.node_down(in_order=True) as place:
        for path in (place / "ledgers").rglob("*.log"):
            found = path.read_bytes().find(b"canary 0")
            if found >= 0:
                flip(path, found + 3)
                break
        else:
            raise AssertionError("the node's entry logs hold nothing of the canary")
        rig.sandbox.start_node(VICTIM)
        rig.check()  # the other replicas answer for it
        return rig.read_from_node(VICTIM)


def settings_of(text: str) -> Callable[[Rig], object]:
    def do(rig: Rig) -> object:
        path = rig.directory / "bad.conf"
        path.write_text(text)
        return NodeFile.read(path).bookie()

    return do


FILE_CASES = [
    Case(
        "a flipped bit in the journal",
        start_with(flip_a_bit_of_a_durable_batch),
        SandboxError,
        "JournalCorrupt|damaged|durable",
    ),
    Case("a journal file gone", start_with(lose_the_journal), SandboxError, "missing"),
    Case("another node's cookie", start_with(another_cookie), SandboxError, "ookie"),
    Case("a directory without its cookie", start_with(one_cookie_less), SandboxError, "ookie"),
    Case("a cookie of garbage", start_with(a_cookie_of_garbage), SandboxError, "ookie|layout"),
    Case("a node that lost its disk", start_with(all_files_gone), SandboxError, "ookie"),
    Case("a flipped bit in an entry log", read_a_flipped_bit, BookieIOError, "EIO"),
    Case("an unknown bookie setting", settings_of("bookiePrt=3181\n"), BookieConfigurationError, "bookiePort"),
    Case("a bookie port that is none", settings_of("bookiePort=70000\n"), BookieConfigurationError, "bookiePort"),
    Case("a bookie without directories", settings_of("bookiePort=3181\n"), BookieConfigurationError, "irector"),
]

# ---- znodes ----------------------------------------------------------------------------------------------------------


def with_znode(path: Callable[[Rig], str], data: bytes, then: Callable[[Rig], object]) -> Callable[[Rig], object]:
    def do(rig: Rig) -> object:
        with rig.overwritten(path(rig), data):
            return then(rig)

    return do


def read_canary(rig: Rig) -> object:
    with Namespace.open(rig.uri) as namespace, namespace.open_log(CANARY) as log, log.open_reader() as reader:
        while reader.read_bulk(1000):
            pass
    return None


def start_in_another_cluster(rig: Rig) -> object:
    with rig.node_down(), rig.overwritten("/ledgers/INSTANCEID", b"another"):
        return rig.sandbox.start_node(VICTIM)


def write_canary(rig: Rig) -> object:
    with Namespace.open(rig.uri) as namespace, namespace.open_log(CANARY) as log, log.open_writer() as writer:
        return writer.write(10**6, b"never").result(60)


def znode_of_log(suffix: str) -> Callable[[Rig], str]:
    return lambda rig: f"/distributedlog/{CANARY}/<default>/{suffix}"


def ledger_znode(rig: Rig) -> str:
    ledger_id = rig.canary_ledger
    text = f"{ledger_id:010d}"
    return f"/ledgers/{text[:2]}/{text[2:6]}/L{text[6:]}"


ZNODE_CASES = [
    Case(
        "a binding of garbage",
        with_znode(lambda rig: "/distributedlog", b"hello", read_canary),
        CorruptDataError,
        "/distributedlog",
    ),
    Case(
        "a segment of garbage",
        with_znode(znode_of_log("ledgers/logrecs_000000000000000001"), b"1;2;three", read_canary),
        CorruptDataError,
        "logrecs_000000000000000001",
    ),
    Case(
        "a segment of a later version",
        with_znode(znode_of_log("ledgers/logrecs_000000000000000001"), b"9;1;0;0", read_canary),
        DistributedLogError,
        "version",
    ),
    Case(
        "a highest segment that is no number",
        with_znode(znode_of_log("ledgers"), b"many", write_canary),
        CorruptDataError,
        "ledgers",
    ),
    Case(
        "a layout version that is none",
        with_znode(znode_of_log("version"), b"??", write_canary),
        CorruptDataError,
        "version",
    ),
    Case("ledger metadata of garbage", with_znode(ledger_znode, GARBAGE, read_canary), CorruptDataError, "/ledgers/"),
    Case(
        "ledger metadata cut short",
        with_znode(ledger_znode, b"BookieMetadataFormatVersion\t3\n\x50\x08\x03", read_canary),
        CorruptDataError,
        "/ledgers/",
    ),
    Case(
        "ledger metadata of a later version",
        with_znode(ledger_znode, b"BookieMetadataFormatVersion\t9\n", read_canary),
        CorruptDataError,
        "version",
    ),
    Case(
        "another instance's id",
        start_in_another_cluster,
        SandboxError,
        "ookie",
    ),
]

# ---- damage that gives no error: it is repaired or passed over -------------------------------------------------------


def garbage_behind_the_journal(place: Path) -> None:
    """A torn batch: its header begins, the rest is rubbish."""
    path = newest_journal_file(place)
    data = bytearray(path.read_bytes())
    last = batches_of(path)[-1]
    end = last + int.from_bytes(data[last + 32 : last + 36], "big")
    data[end : end + len(GARBAGE)] = data[last : last + 24] + GARBAGE[24:]
    path.write_bytes(data)


def no_sidecars(place: Path) -> None:
    for path in (place / "ledgers").rglob("*.idx"):
        path.unlink()


def sidecars_of_garbage(place: Path) -> None:
    for path in (place / "ledgers").rglob("*.idx"):
        path.write_bytes(GARBAGE)


SURVIVED = [
    ("a torn batch at the journal's end", garbage_behind_the_journal, False),
    ("entry logs without their index", no_sidecars, True),
    ("entry logs with an index of garbage", sidecars_of_garbage, True),
]

TABLE = OPTION_CASES + API_CASES + WIRE_CASES + FILE_CASES + ZNODE_CASES


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    opened_rig = Rig(tmp_path_factory.mktemp("bad-input"))
    try:
        opened_rig.check()
        yield opened_rig
    finally:
        opened_rig.close()


def test_the_table_has_at_least_forty_cases_of_distinct_names() -> None:
    assert len(TABLE) >= 40
    assert len({case.what for case in TABLE}) == len(TABLE)


@pytest.mark.parametrize("case", TABLE, ids=lambda case: case.what)
def test_bad_input_gives_its_error_and_nothing_is_lost(rig: Rig, case: Case) -> None:
    with pytest.raises(case.error) as raised:
        case.do(rig)
    assert re.search(case.says, str(raised.value)), f"{raised.value!s} does not say {case.says!r}"
    rig.check()


@pytest.mark.parametrize(("what", "damage", "in_order"), SURVIVED, ids=[case[0] for case in SURVIVED])
def test_damage_that_a_crash_can_leave_is_survived(
    rig: Rig, what: str, damage: Callable[[Path], None], in_order: bool
) -> None:
    rig.fill_journals()
    with rig.node_down(in_order=in_order) as place:
        damage(place)
        rig.sandbox.start_node(VICTIM)
        rig.check()
        rig.read_from_node(VICTIM)
