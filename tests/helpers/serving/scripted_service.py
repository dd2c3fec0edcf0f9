"""`ScriptedService`: a `ProxyService` that answers at once, holds its answers, or fails, as a test wants it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from dlspark.core.codec.dlsn import DLSN
from dlspark.serving.bindings.service import Caller, Reply, RunReply
from dlspark.serving.protocol.operations import (
    Answer,
    BulkReceipt,
    Delivery,
    Done,
    EpochBegun,
    FindOwner,
    Handshake,
    ListedProxy,
    ListProxies,
    OwnerFound,
    ProxyInfo,
    ProxyKind,
    ProxyList,
    ProxyStatus,
    ReadBatch,
    ReadForm,
    Request,
    WriteReceipt,
    WriteRecords,
)
from dlspark.serving.protocol.write_runs import WriteRun


class NoRuns:
    """A `RunTaker` that wants all writes one by one: a frames server looks at what came together, and begins each."""

    def submit_run(self, run: WriteRun, caller: Caller, reply: RunReply) -> bool:
        """Do nothing."""
        return False


def answer_to(request: Request, number: int = 0) -> Answer:
    """Return the answer of a proxy for which all goes well."""
    if isinstance(request, WriteRecords):
        if len(request.payloads) == 1 or request.is_whole:
            return WriteReceipt(DLSN(1, number, 0), len(request.payloads))
        return BulkReceipt(tuple(DLSN(1, number, slot) for slot in range(len(request.payloads))))
    if isinstance(request, ReadBatch):
        return Delivery(ReadForm.RECORDS, DLSN(1, number + 1, 0))
    if isinstance(request, Handshake):
        return ProxyInfo("1;-1;127.0.0.1:1", ProxyStatus.WRITE_AND_ACCEPT)
    if isinstance(request, FindOwner):
        return OwnerFound("1;-1;127.0.0.1:1")
    if isinstance(request, ListProxies):
        return ProxyList((ListedProxy(ProxyKind.WRITE, "1;-1;127.0.0.1:1"),))
    return EpochBegun(0) if "Epoch" in type(request).__name__ else Done()


class ScriptedService:
    """What came, and what is answered."""

    def __init__(self, answer: Callable[[Request, int], Answer] = answer_to) -> None:
        self.answer = answer
        self.requests: list[Request] = []
        self.callers: list[Caller] = []
        """Who asked each of them."""
        self.gone: list[Caller] = []
        self.hold = False
        self.served_anyway: tuple[type, ...] = ()
        """Requests that are answered at once while others are held."""
        self.held: deque[Callable[[], None]] = deque()
        self.failing: Exception | None = None
        self.keep = True
        """Whether requests are kept to be looked at."""
        self.count = 0
        self.most_held = 0

    def submit(self, request: Request, caller: Caller, reply: Reply) -> None:
        """Answer at once, or hold the answer."""
        number, self.count = self.count, self.count + 1
        if self.keep:
            self.requests.append(request)
            self.callers.append(caller)
        if self.failing is not None:
            raise self.failing
        if self.hold and not isinstance(request, self.served_anyway):
            self.held.append(lambda: reply(self.answer(request, number)))
            self.most_held = max(self.most_held, len(self.held))
        else:
            reply(self.answer(request, number))

    def caller_gone(self, caller: Caller) -> None:
        """Remember it."""
        self.gone.append(caller)

    def release(self, count: int | None = None) -> None:
        """Answer what was held: all of it and hold no more, or only the oldest ones."""
        if count is None:
            self.hold = False
        for _ in range(len(self.held) if count is None else count):
            self.held.popleft()()
