"""Rules of write proxies and thin clients: runs of fleets notice what is missing (`runs.fleets`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dlspark.core.writing.acknowledgements import LateAcknowledgements
from dlspark.serving.client import requests
from dlspark.serving.client.producers import ProducerSession
from dlspark.serving.write_proxy.streams import ProxyStream
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


PROXIES = {
    "late-answers": Mutation(
        "a proxy that was stopped believes no answer from before (I5)",
        LateAcknowledgements,
        "watch",
        _believe_what_waited,
    ),
    "move-finishes": Mutation(
        "a stream that moves finishes what it has begun",
        ProxyStream,
        "_do",
        edited(("self._end_writer(abort=False)", "self._end_writer(abort=True)")),
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
    "named-epoch": Mutation(
        "an epoch is begun by its number (I19)",
        ProducerSession,
        "_begin",
        edited(("self.name, self._wanted_epoch)", "self.name, None)")),
    ),
}
