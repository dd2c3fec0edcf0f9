"""Rules of the storage node: journal, checkpoints, fences, garbage collection, identity."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import wraps

from metadata.bookkeeper.bookies import BookieRegistry, Cookie
from simulation.mutations.mutation import Method, Mutation, edited
from storage_node.bookie.disk import cookies
from storage_node.bookie.journal import writer
from storage_node.bookie.journal.batches import Batch
from storage_node.bookie.journal.files import JournalFile, JournalFiles
from storage_node.bookie.journal.replay import JournalMark, JournalReader
from storage_node.bookie.journal.writer import Journal
from storage_node.bookie.node import bookie
from storage_node.bookie.requests import reads
from storage_node.bookie.requests.requester import Requester
from storage_node.bookie.store import collection
from storage_node.bookie.store import storage as storage_module
from storage_node.bookie.store.checkpoints import Checkpointer
from storage_node.bookie.store.entry_logs import EntryLogs
from storage_node.bookie.store.log_files import LogFile
from storage_node.bookie.store.placed import PlacedLogs
from storage_node.bookie.store.storage import Storage
from storage_node.edge import Disk
from storage_node.protocol.values import ReadRequest


def _do_not_sync(write: Method) -> Method:
    return lambda file, batch, slot, sync: write(file, batch, slot, False)


def _sync_again_after_a_failure(write: Method) -> Method:
    @wraps(write)
    def mutated(file: JournalFile, batch: Batch, slot: memoryview, sync: bool) -> None:
        try:
            write(file, batch, slot, sync)
        except OSError:
            file.file.sync_data()

    return mutated


def _answer_fences_at_once(_finish: Method) -> Method:
    async def mutated(requester: Requester, request: ReadRequest, pending: asyncio.Future[None]) -> None:
        found = requester.storage.find(request.ledger_id, request.entry_id)
        if not isinstance(found, tuple):
            reads.refuse(requester, request, found)
            return
        body = await reads.fetch(requester, *found, urgent=True)
        if body is None:
            reads.refuse(requester, request, reads.why_not(requester, request))
        else:
            reads.send_entry(requester, request, request.entry_id, body, None)

    return mutated


def _take_adds_after_a_fence(add: Method) -> Method:
    @wraps(add)
    def mutated(self: Storage, body: memoryview, key: bytes, recovery_add: bool, *others: object) -> object:
        return add(self, body, key, True, *others)

    return mutated


def _do_not_replay(_replay: Method) -> Method:
    async def mutated(self: Storage, reader: JournalReader, mark: JournalMark) -> None:
        reader.last_sequence = max(mark.sequence, 1_000_000)

    return mutated


def _sync_one_directory(sync: Method) -> Method:
    @wraps(sync)
    def mutated(self: Checkpointer, logs: list[LogFile], *others: object) -> None:
        sync(self, [log for log in logs if log.directory == self._directories[0]], *others)

    return mutated


def _list_before_the_snapshot(_collect: Method) -> Method:
    async def mutated(self: collection.GarbageCollector) -> int:
        listed = [ledger_id async for ledger_id in self._ledgers.ids()]
        gone = sorted(set(self._contents.ledgers).difference(listed))
        for ledger_id in gone:
            self._contents.delete(ledger_id, self._clock.now_ms())
        return len(gone)

    return mutated


def _admit_anybody(_check: Method) -> Method:
    async def mutated(
        registry: BookieRegistry, disk: Disk, cookie: Cookie, directories: Sequence[str], *, expansion: bool = False
    ) -> None:
        for directory in directories:
            disk.write_file(f"{directory}/{cookies.COOKIE_FILE}", cookie.encode())
        if await registry.read_cookie(cookie.bookie_id) is None:
            await registry.write_cookie(cookie)

    return mutated


def _forget_what_is_lost(index: Method) -> Method:
    @wraps(index)
    def mutated(*arguments: object, **options: object) -> object:
        opened = index(*arguments, **options)
        opened.lost = False
        return opened

    return mutated


JOURNAL = {
    "journal-first": Mutation("journal before ack", writer, "_write_batch", _do_not_sync),
    "sync-retry": Mutation("a failed sync is final", writer, "_write_batch", _sync_again_after_a_failure),
    "batch-order": Mutation(
        "a batch counts once all before it are durable",
        Journal,
        "_settle",
        edited(
            ("while self._flying and self._flying[0].synced:", "while batch in self._flying:"),
            ("done = self._flying.popleft()", "done = batch\n        self._flying.remove(batch)"),
        ),
    ),
    "answer-order": Mutation(
        "answers wait for earlier batches",
        Journal,
        "_settle",
        edited(
            (
                "while self._flying and",
                "answered, batch.answers = batch.answers, {}\n"
                "    for answers in answered.values():\n"
                "        answers.sink.durable(answers)\n"
                "    while self._flying and",
            )
        ),
    ),
    "durable-claim": Mutation(
        "a batch says what is durable, not what was sent off",
        Journal,
        "_launch",
        edited(("batch.durable_through = self._durable", "batch.durable_through = self._last_sequence - 1")),
    ),
    "journal-names": Mutation(
        "a journal file's name is durable before its batches",
        JournalFiles,
        "open_next",
        edited(("self._disk.sync_directory(self._directory)", "pass")),
    ),
    "replay": Mutation("journal replay", Storage, "_replay", _do_not_replay),
    "replay-fences": Mutation(
        "fences are replayed (D19)",
        Storage,
        "_replay_record",
        edited(("ledger.fenced = ledger.fenced or fenced", "pass")),
    ),
    "torn-batch": Mutation(
        "a batch's sum is checked in replay",
        JournalReader,
        "_read_here",
        edited((" or crc32(data, 0) != batch.records_sum", "")),
    ),
}

WRITTEN_ONCE = {
    "placed-records": Mutation(
        "a batch that is written once waits for its records in the log",
        EntryLogs,
        "_write",
        edited(("log.sync()", "pass")),
    ),
    "placed-block": Mutation(
        "a batch that is written once waits for its place in the journal",
        Journal,
        "_placed",
        edited(
            ("self._calls.discard(future)", "logged = future not in self._calls\n    self._calls.discard(future)"),
            ("if not missing or", "if logged or"),
        ),
    ),
    "placed-sum": Mutation(
        "records that a journal names have their sum, or are not replayed",
        PlacedLogs,
        "read",
        edited(("if len(data) != place.length or crc32(data, 0) != place.records_sum", "if False")),
    ),
    "placed-names": Mutation(
        "a log's name is durable before a place in it",
        LogFile,
        "name",
        edited(("disk.sync_directory(self.directory)", "pass")),
    ),
    "placed-logs": Mutation(
        "a log that a journal names stays until a checkpoint covers it",
        Checkpointer,
        "_begin",
        edited(("taken = await self.take()", "await self.remove_strays()\n    taken = await self.take()")),
    ),
}

CHECKPOINTS = {
    "all-directories": Mutation("mark after all directories (D7)", Checkpointer, "_sync_logs", _sync_one_directory),
    "log-sync": Mutation(
        "entry logs are synced before the mark",
        Checkpointer,
        "_sync_logs",
        edited(("log.sync()", "pass")),
    ),
    "log-names": Mutation(
        "names of entry logs are durable before the mark",
        Checkpointer,
        "_sync_logs",
        edited(("self._disk.sync_directory(directory)", "pass")),
    ),
    "early-marks": Mutation(
        "the marks are taken before the logs are written (D7)",
        Checkpointer,
        "_take",
        edited(("await written\n", "await written\n    marks = journal.mark()\n")),
    ),
}

NODES = {
    "fence-durable": Mutation("fence durable, then answer (D19)", reads, "_finish_fence", _answer_fences_at_once),
    "fence-key": Mutation(
        "a fence keeps the master key (D19)",
        Storage,
        "fence",
        edited(("ledger_body(master_key, True)", 'ledger_body(b"", True)')),
    ),
    "fenced-adds": Mutation("a fenced ledger takes no adds (I5)", Storage, "add", _take_adds_after_a_fence),
    "gc-snapshot": Mutation(
        "snapshot before listing (I13)", collection.GarbageCollector, "_collect", _list_before_the_snapshot
    ),
    "cookies": Mutation("cookie check (I11)", bookie, "check_cookies", _admit_anybody),
    "lossy": Mutation("what is lost is unknown (I11)", storage_module, "index_logs", _forget_what_is_lost),
}
