"""Clients that write to one log on conditions, and contend for it: by its fencing token and by its last position.

Each takes the log over by a token of its own, in the place of the one that it last heard of, and then writes records
that require this token and a position: the DLSN of the log's last record, or the sequence id that comes next. It goes
on with what a refusal says (`ConditionError.actual`); now and then the other one takes over.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random

from dlspark.core.codec.dlsn import DLSN
from dlspark.errors import ConditionError
from dlspark.serving.client.client import AsyncClient
from metadata.foundation.errors import DistributedLogError, InvariantViolation
from simulation.checkers.history import OperationOutcome, outcome_of
from simulation.checkers.proxies import ClientWrites
from simulation.cluster import ClientMachine
from simulation.workloads.thin_clients import ATTEMPT_TIMEOUTS_MS, ProxyWorkload, Values, open_thin_client

LOG = "contended"
CONTENDERS = 2
TAKES_OVER_SHARE = 0.1
"""Of the writes of one that has the token: it takes the log over again."""
LOSES_PATIENCE_SHARE = 0.35
"""Of its tries, of one that has lost it."""
REQUEST_TIMEOUTS_MS = {"calm": 60_000, "failover": 60_000, "rough": 3_000}
PACE_S = 0.1


@dataclass(slots=True)
class KnownLog:
    """How far is the log, by what one contender has heard?"""

    token: bytes = b""
    own: bytes | None = None
    """The token that it asked for last."""
    position: DLSN | int | None = None


class ConditionalWriters:
    """Two clients and the log that they contend for."""

    def __init__(self, workload: ProxyWorkload) -> None:
        self._workload = workload
        self._world = workload.world
        workload.logs.append(LOG)

    def start_programs(self) -> None:
        """Start the contenders."""
        for number in range(CONTENDERS):
            self._workload.add_program(f"k{number}", self._contend)

    async def _contend(self, client: ClientMachine) -> None:
        workload, rng = self._workload, self._world.rng(f"contends/{client.name}/{client.runs}")
        idempotent = rng.random() < 0.6
        values: Values = {
            "requestTimeoutMs": REQUEST_TIMEOUTS_MS[workload.kind],
            "attemptTimeoutMs": rng.choice(ATTEMPT_TIMEOUTS_MS[workload.kind]),
            "idempotentProducer": idempotent,
        }
        thin = await open_thin_client(workload.tier, client, values)
        sender = workload.sender(client, LOG, ordered=idempotent)
        known = KnownLog(position=0 if rng.random() < 0.5 else None)
        while not workload.over:
            await asyncio.sleep(rng.uniform(0, 2 * PACE_S))
            has_token = known.own is not None and known.token == known.own
            if rng.random() < (TAKES_OVER_SHARE if has_token else LOSES_PATIENCE_SHARE):
                await self._take_over(thin, known, f"{client.name}/{client.runs}/{len(sender.records)}/{rng.random()}")
            elif known.own is not None:
                await self._append(thin, sender, known, rng)
        await workload.close(thin, [sender])

    async def _take_over(self, thin: AsyncClient, known: KnownLog, name: str) -> None:
        token, expected = name.encode(), known.token
        self._workload.conditions.token_sent(token, expected)
        known.own = token
        try:
            await thin.set_fencing_token(LOG, token, expected=expected)
        except DistributedLogError as error:
            self._heard(known, error)
        else:
            known.token = token
            self._world.reached("condition.token-set")

    async def _append(self, thin: AsyncClient, sender: ClientWrites, known: KnownLog, rng: Random) -> None:
        """Append one record, with the token that it asked for last: it may have lost it, or never had it."""
        checkers, position = self._workload.tier.checkers, known.position
        payload = self._workload.payload(sender, rng)
        record = checkers.sent(sender, payload)
        self._workload.conditions.append_sent(payload, position, known.own)
        operation = self._world.history.begin(sender.session.client, "conditional-write", LOG)
        try:
            dlsn = await thin.append(LOG, [payload], expected_position=position, fencing_token=known.own)
        except DistributedLogError as error:
            self._world.history.end(operation, error)
            checkers.refused(record, error)
            self._heard(known, error)
        else:
            self._world.history.end(operation)
            checkers.acknowledged(record, dlsn)
            known.token = known.own or b""
            if isinstance(position, int):
                known.position = position + 1
            elif dlsn != DLSN.INVALID:
                known.position = dlsn

    def _heard(self, known: KnownLog, error: DistributedLogError) -> None:
        """Go on with what a refusal says of the log."""
        if isinstance(error, InvariantViolation):
            raise error
        if not isinstance(error, ConditionError):
            self._no_error_is_due(error)
            doubtful = outcome_of(error) is OperationOutcome.UNKNOWN
            self._world.reached("condition.in-doubt" if doubtful else "condition.not-asked")
        elif isinstance(error.actual, bytes):
            self._world.reached("condition.fenced")
            known.token = error.actual
        elif isinstance(error.actual, DLSN | int | None):
            self._world.reached("condition.refused")
            known.position = error.actual

    def _no_error_is_due(self, error: DistributedLogError) -> None:
        if self._workload.tier.checkers.calm:
            self._world.ledger_checkers.fail(f"log {LOG}: nothing was wrong, and a client saw an error: {error!r}")
