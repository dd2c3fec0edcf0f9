"""Rules of write proxies, thin clients and read proxies: runs of fleets notice what is missing (`runs.fleets`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dlspark.core.writing.acknowledgements import LateAcknowledgements
from dlspark.core.writing.conditional_appends import RequestLog
from dlspark.core.writing.producers import Producers
from dlspark.core.writing.segment_ends import Following, SegmentEnd
from dlspark.serving.client import requests
from dlspark.serving.client.producers import OpenRequest, ProducerSession
from dlspark.serving.protocol.operations import WriteReceipt, WriteRecords
from dlspark.serving.read_proxy.ring import EntryRing
from dlspark.serving.write_proxy.streams.stream import ProxyStream
from dlspark.serving.write_proxy.streams.taken_requests import TakenRequest
from simulation.mutations.mutation import Method, Mutation, edited


def _believe_what_waited(_watch: Method) -> Method:
    def mutated(
        _: LateAcknowledgements,
        added: asyncio.Future[int],
        _sent_at: float,
        answered: Callable[[asyncio.Future[int]], None],
    ) -> None:
        added.add_done_callback(answered)

    return mutated


def _send_again_whatever_it_is(_is_repeatable: Method) -> Method:
    return lambda request, *, resend_writes=False: True


def _answer_what_was_begun(begin: Method) -> Method:
    def mutated(self: ProxyStream, taken: TakenRequest) -> None:
        begin(self, taken)
        if isinstance(taken.request, WriteRecords):
            taken.answer(WriteReceipt(None, len(taken.request.payloads)))

    return mutated


def _read_nothing(read: Method) -> Method:
    async def mutated(self: SegmentEnd, producers: Producers | None, *, find_last: bool) -> list[Following] | None:
        await read(self, None, find_last=find_last)
        return [] if producers is not None else None

    return mutated


def _meet_any_condition(_check: Method) -> Method:
    return lambda *_: None


def _send_as_a_new_one(send: Method) -> Method:
    def mutated(self: ProducerSession, pending: OpenRequest, now: float) -> object:
        if pending.doubtful:
            self._window.remove(pending)
            pending.sequence, pending.doubtful = self._next_number(), False
            self._window.append(pending)
        return send(self, pending, now)

    return mutated


def _yes(_method: Method) -> Method:
    return lambda *_: True


PROXIES = {
    "late-answers": Mutation(
        "a proxy that was stopped believes no answer from before (I5)",
        LateAcknowledgements,
        "watch",
        _believe_what_waited,
    ),
    "stored-first": Mutation(
        "a write is answered once the log has stored it", ProxyStream, "_begin", _answer_what_was_begun
    ),
    "move-finishes": Mutation(
        "a stream that moves finishes what it has begun",
        ProxyStream,
        "_do",
        edited(("self._end_writer(abort=False)", "self._end_writer(abort=True)")),
    ),
    "begun-waits": Mutation(
        "what was begun is answered by its writer, not by where the stream goes",
        ProxyStream,
        "_do",
        edited(
            (
                "self._host.run(self._end_writer(abort=False))",
                "[*map(lambda one: one.answer(self._refusal), [*self.under_way])], "
                "self._host.run(self._end_writer(abort=False))",
            )
        ),
    ),
    "waiting-order": Mutation(
        "what waits for a log is begun in its order", ProxyStream, "_run_waiting", edited(("popleft()", "pop()"))
    ),
}

OWNED_LOGS = {
    "take-over-reads": Mutation(
        "a new owner reads what the log says of producers (I19)", SegmentEnd, "read", _read_nothing
    ),
    "known-requests": Mutation(
        "a request that was written is not written again (I19)",
        Producers,
        "judge",
        edited(("return self._repetition(request, known.kept if known is not None else ())", "return None")),
    ),
    "ended-epochs": Mutation(
        "nothing of an epoch is written once a later one has begun (I19)",
        Producers,
        "judge",
        edited(("request.epoch < known.epoch", "request.epoch < 0")),
    ),
    "conditions": Mutation(
        "what a write requires holds when it is written", RequestLog, "_check_condition", _meet_any_condition
    ),
}

CLIENTS = {
    "plain-once": Mutation(
        "a plain write in doubt is not sent again", requests, "is_repeatable", _send_again_whatever_it_is
    ),
    "window": Mutation(
        "a producer has no more requests open than the log remembers (I19)",
        ProducerSession,
        "_may_number",
        edited(("< self._limits.max_in_flight", "< 8 * self._limits.max_in_flight")),
    ),
    "doubtful-number": Mutation(
        "a request in doubt keeps its number (I19)",
        ProducerSession,
        "_written",
        edited(("elif not pending.doubtful:", "elif finished.answer is answer:")),
    ),
    "doubt-as-new": Mutation(
        "a request in doubt is not sent as a new one (I19)",
        ProducerSession,
        "_send",
        _send_as_a_new_one,
    ),
    "named-epoch": Mutation(
        "an epoch is begun by its number (I19)",
        ProducerSession,
        "_begin",
        edited(("self.name, self._wanted_epoch)", "self.name, None)")),
    ),
}

READING = {
    "ring-begins": Mutation("a ring has nothing for readers before it", EntryRing, "covers", _yes),
    "ring-evicts": Mutation(
        "a ring begins behind what it has given up",
        EntryRing,
        "evict_one",
        edited(("self.begin = entry.after", "pass")),
    ),
}

FLEETS = {**PROXIES, **OWNED_LOGS, **CLIENTS, **READING}
