"""`BatchConnection`: batch reads, which only version 2 of the protocol has, on a connection of their own.

A bookie may not know them: it drops the connection, or refuses. Then `refused` is set for good, and entries are read
one by one. A connection that is lost after a batch was answered is an ordinary loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from metadata.foundation.errors import DistributedLogError
from storage_node.client.channels import Channel, Surroundings
from storage_node.errors import ConnectionClosedError, ProtocolError, RequestTimeoutError
from storage_node.protocol.messages import Status
from storage_node.protocol.v2 import decode_response, encode_batch_read_request
from storage_node.protocol.values import BatchReadResponse

BatchAnswer: TypeAlias = BatchReadResponse | DistributedLogError

_UNKNOWN_THERE = (Status.EBADREQ, Status.EBADVERSION)


class BatchConnection(Channel):
    """All batch reads of one client from one bookie."""

    def __init__(self, surroundings: Surroundings, bookie: str) -> None:
        super().__init__(surroundings, bookie)
        self.refused = False
        """The bookie does not serve batch reads."""
        self._served = False
        self._requests: dict[int, tuple[float, Callable[[BatchAnswer], None], int]] = {}

    def read(
        self,
        request_id: int,
        ledger_id: int,
        first: int,
        *,
        max_count: int,
        max_bytes: int,
        timeout_ms: int,
        answer: Callable[[BatchAnswer], None],
    ) -> None:
        """Ask for entries from `first` on; `answer` is called once, with the response or an error."""
        around = self._around
        if not self._requests:
            around.sweeper.join(self._sweep)
        self._requests[request_id] = (around.loop.time() + timeout_ms / 1000, answer, timeout_ms)
        frame = encode_batch_read_request(ledger_id, first, request_id, max_count=max_count, max_bytes=max_bytes)
        if self._link is not None:
            self._link.send(frame)
        else:
            self._send_later((frame,))

    def forget(self, request_id: int) -> None:
        """Nobody waits for this request any more."""
        self._requests.pop(request_id, None)

    def frame_received(self, frame: memoryview) -> None:
        """One response; only batches are asked for here."""
        response = decode_response(frame)
        if not isinstance(response, BatchReadResponse):
            raise ProtocolError(f"an answer to {response.operation.name} where batches were asked for")
        self._served = True
        if response.status in _UNKNOWN_THERE:
            self.refused = True
        request = self._requests.pop(response.request_id, None)
        if request is not None:
            request[1](response)

    def _sweep(self, now: float) -> bool:
        for request_id, (deadline, answer, limit_ms) in list(self._requests.items()):
            if deadline <= now and self._requests.pop(request_id, None) is not None:
                answer(RequestTimeoutError(f"no batch of entries within {limit_ms} ms", node=self.bookie))
        return bool(self._requests)

    def _end_all(self, error: DistributedLogError) -> None:
        requests, self._requests = self._requests, {}
        if requests and not self._served and isinstance(error, ConnectionClosedError) and not self._around.closed:
            self.refused = True
            self._around.health.answered(self.bookie)  # it did what such a bookie does: nothing is wrong with it
        for _, answer, _ in requests.values():
            answer(error)
