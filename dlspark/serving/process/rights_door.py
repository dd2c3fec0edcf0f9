"""`RightsDoor`: may this caller ask that? It stands before a proxy's service, for frames and gRPC alike.

Every operation has its verbs (`VERBS_OF`); who may do one of them to the log is handed on:

| operation | verb |
|---|---|
| ReadBatch | read |
| WriteRecords, BeginEpoch, SetFencingToken, Heartbeat | write; and create, where the log is not there yet |
| TruncateStream, CreateStream, DeleteStream | truncate, create, delete |
| ReleaseStream, MoveStream, TakeStream | administer |
| AcceptStreams | administer, on the pattern `*`: it concerns the whole proxy |
| FindOwner | any verb on the log |
| Handshake, ListProxies | none; but only those of a proxy's logs are listed on which the caller has a verb |

A proxy, known by its certificate's role, may hand a log over without a verb on it: TakeStream, and the Heartbeat that
asks whether it has been taken and writes nothing.

What is refused is answered with 403, which clients do not try again; the reason that the caller gets names no rule, the
audit trail's does. What upstream's access control denies stays denied behind this door.

A right that is withdrawn ends what is under way: the next request is refused; a read that waits is refused as soon as
the rules say so, and what it would have brought is thrown away, however it was asked for. So is one whose proof has
expired. A write that was begun is finished: it was allowed.

Fault model: rules that cannot be read allow nothing but to super users (`RightsWatch`). An operation without verbs is
refused. Where the audit trail cannot be written, and is to be complete, nothing is allowed.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from dlspark.errors import ServiceUnavailableError
from dlspark.serving.bindings.service import Caller, ProxyService, Reply, RunReply, RunTaker
from dlspark.serving.protocol.failures import refusal_of
from dlspark.serving.protocol.operations import (
    AcceptStreams,
    Answer,
    BeginEpoch,
    CreateStream,
    DeleteStream,
    Delivery,
    FindOwner,
    Handshake,
    Heartbeat,
    ListProxies,
    MoveStream,
    ProxyInfo,
    ReadBatch,
    ReleaseStream,
    Request,
    SetFencingToken,
    TakeStream,
    TruncateStream,
    WriteRecords,
)
from dlspark.serving.protocol.write_runs import WriteRun
from dlspark.serving.security.authentication import PROXY_ROLE
from metadata.distributedlog.permissions import RequestDeniedError
from metadata.foundation.errors import DistributedLogError
from metadata.foundation.pacing import Slices
from metadata.security.audit import Noted
from metadata.security.principals import Principal, Scheme
from metadata.security.proofs import NotAuthenticatedError
from metadata.security.restrictions import UNRESTRICTED, Restrictions
from metadata.security.rights import MAX_LOG_CHARS, VISIBLE, Decision, RuleBook, Verb

MAX_KNOWN: Final = 64
"""Logs that are remembered of one caller: with the longest names, and of all connections, some hundred MB."""
PROVED: Final[tuple[Verb, ...]] = ()
"""Whoever has proved who they are may ask this."""

VERBS_OF: Final[Mapping[type[Request], tuple[Verb, ...]]] = MappingProxyType(
    {
        Handshake: PROVED,
        ListProxies: PROVED,
        FindOwner: VISIBLE,
        ReadBatch: (Verb.READ,),
        WriteRecords: (Verb.WRITE,),
        BeginEpoch: (Verb.WRITE,),
        SetFencingToken: (Verb.WRITE,),
        Heartbeat: (Verb.WRITE,),
        TruncateStream: (Verb.TRUNCATE,),
        CreateStream: (Verb.CREATE,),
        DeleteStream: (Verb.DELETE,),
        ReleaseStream: (Verb.ADMINISTER,),
        MoveStream: (Verb.ADMINISTER,),
        TakeStream: (Verb.ADMINISTER,),
        AcceptStreams: (Verb.ADMINISTER,),
    }
)
"""Any of an operation's verbs is enough."""

_ALLOWED_UNPROVED: Final = Decision(True, "nothing is proved, and security=optional does not demand it")
_ALLOWED_PROVED: Final = Decision(True, "whoever has proved who they are may ask this")
_ALLOWED_PROXY: Final = Decision(True, "a proxy asks it")


@dataclass(slots=True)
class _Known:
    """What was allowed to one caller, as long as the same rules and the same proof hold."""

    book: RuleBook
    principal: Principal
    restrictions: Restrictions | None
    allowed: set[tuple[type[Request], str | None]] = field(default_factory=set)


class RightsDoor:
    """May this caller ask that? A `ProxyService` before another one; all calls come from one event loop.

    Args:
        service: gets what is allowed.
        book: returns the rules that hold now.
        demands_proof: whether a caller who has proved nothing is refused everything; else such a one is let through, as
            without security, and only who has proved something is held to the rules.
        noted: where it is noted.
        notes_all: whether reads and writes are noted as well that were allowed.
        now_s: the time, seconds since the epoch.
    """

    def __init__(
        self,
        service: ProxyService,
        book: Callable[[], RuleBook],
        *,
        demands_proof: bool,
        noted: Noted,
        notes_all: bool = False,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._service = service
        self.runs: RunTaker | None = None
        """Gets writes that came together and are allowed; set by a write proxy."""
        self._book = book
        self._demands_proof = demands_proof
        self._noted = noted
        self._notes_all = notes_all
        self._now_s = now_s
        self._known: dict[Caller, _Known] = {}
        """What was allowed to those who read and write."""
        self._reads: dict[Caller, dict[_WaitingRead, None]] = {}
        """Reads that were not answered yet."""
        self._rechecked: RuleBook | None = None
        """The rules at the last look at what waits, and what callers had proved then."""
        self._rechecked_as: dict[Caller, tuple[Principal | None, Restrictions | None]] = {}

    # ------------------------------------------------------------------ requests

    def submit(self, request: Request, caller: Caller, reply: Reply) -> None:
        """See `ProxyService`."""
        kind = type(request)
        known = isinstance(request, WriteRecords | ReadBatch) and self._is_known(kind, request.stream, caller)
        if not known:
            objection = self._objection(request, caller, first=True)
            if objection is not None:
                reply(refusal_of(objection))
                return
        if kind is ReadBatch:
            read = _WaitingRead(self, request, caller, reply)
            self._reads.setdefault(caller, {})[read] = None
            self._service.submit(request, caller, read)
        elif kind is Handshake:
            self._service.submit(request, caller, lambda answer: reply(self._shown(answer, caller)))
        else:
            self._service.submit(request, caller, reply)

    def submit_run(self, run: WriteRun, caller: Caller, reply: RunReply) -> bool:
        """See `RunTaker`: writes that came together are looked at once. Where just this was not allowed before, or each
        of them is to be noted, they are looked at one by one."""
        runs = self.runs
        if runs is None or not self._is_known(WriteRecords, run.stream, caller):
            return False
        return runs.submit_run(run, caller, reply)

    def caller_gone(self, caller: Caller) -> None:
        """See `ProxyService`."""
        self._known.pop(caller, None)
        for read in self._reads.pop(caller, {}):
            read.ended = True
        self._service.caller_gone(caller)

    def may_create(self, caller: Caller, stream: str, *, noted: bool) -> bool:
        """Return whether what this caller writes may make the log, which is not there. `noted`: this is the decision,
        and the trail has it."""
        decision, error = self._judge(caller, CreateStream, (Verb.CREATE,), stream, hands_over=False)
        if noted:
            self._note(caller, CreateStream, (Verb.CREATE,), stream, decision, allowed=error is None)
        return decision.allowed

    async def recheck(self) -> None:
        """Refuse the waiting reads that are not allowed any more: to be called when other rules hold, and every few
        seconds, for proofs expire. There may be a hundred thousand: others have their turn meanwhile, and what is
        delivered meanwhile is looked at as well. As long as the rules and a caller's proof are the same, nothing has
        changed for its reads: then only the proof's end is looked at, once a caller."""
        book, before, unwritten = self._book(), self._rechecked_as, self._noted.refuses is not None
        whole = unwritten or book is not self._rechecked
        self._rechecked, self._rechecked_as = book, {}
        slices = Slices()
        looked_at: list[_WaitingRead] = []
        for caller, reads in list(self._reads.items()):
            principal, restrictions = proof = caller.principal, caller.restrictions
            self._rechecked_as[caller] = proof
            known = before.get(caller)
            same = known is not None and known[0] is principal and known[1] is restrictions
            if whole or not same or (principal is not None and principal.expired(self._now_s())):
                looked_at += reads
            await slices.pause()
        for read in looked_at:
            if not read.ended:
                objection = self._objection(read.request, read.caller, first=False)
                if objection is not None:
                    read.end(refusal_of(objection))
            await slices.pause()

    # ------------------------------------------------------------------ deciding

    def _is_known(self, kind: type[Request], stream: str, caller: Caller) -> bool:
        """Return whether just this was allowed to this caller, by the rules and the proof that hold now: of the
        thousands of requests a second of a connection nearly all are."""
        principal, known = caller.principal, self._known.get(caller)
        if (
            known is None
            or known.book is not self._book()
            or known.principal is not principal
            or known.restrictions is not caller.restrictions
        ):
            if principal is not None and not self._notes_all:
                self._known[caller] = _Known(self._book(), principal, caller.restrictions)
            return False
        return (
            (kind, stream) in known.allowed
            and not known.principal.expired(self._now_s())
            and self._noted.refuses is None
        )

    def _objection(self, request: Request, caller: Caller, *, first: bool) -> DistributedLogError | None:
        """Return why a request is refused, None where it is allowed; note it. `first`: it begins with this, and what is
        allowed is noted, too."""
        kind = type(request)
        verbs = VERBS_OF.get(kind)
        stream: str | None = getattr(request, "stream", None)
        hands_over = kind is TakeStream or (isinstance(request, Heartbeat) and not request.to_readers)
        decision, error = self._judge(caller, kind, verbs, stream, hands_over=hands_over)
        known = self._known.get(caller)
        if known is not None and error is None and stream is not None and len(stream) <= MAX_LOG_CHARS:
            if len(known.allowed) >= MAX_KNOWN:
                known.allowed.clear()
            known.allowed.add((kind, stream))
        if error is not None or (first and verbs):
            self._note(caller, kind, verbs, stream, decision, allowed=error is None)
        return error

    def _note(
        self,
        caller: Caller,
        kind: type[Request],
        verbs: tuple[Verb, ...] | None,
        stream: str | None,
        decision: Decision,
        *,
        allowed: bool,
    ) -> None:
        principal = caller.principal
        self._noted.note(
            "request",
            allowed=allowed,
            reason=decision.reason,
            principal=principal.name if principal is not None else None,
            scheme=principal.scheme.value if principal is not None else None,
            peer=caller.address,
            session=caller.session,
            log=stream,
            verb=_verb_noted(verbs),
            request=kind.__name__,
        )

    def _judge(
        self,
        caller: Caller,
        kind: type[Request],
        verbs: tuple[Verb, ...] | None,
        stream: str | None,
        *,
        hands_over: bool,
    ) -> tuple[Decision, DistributedLogError | None]:
        """Return the decision, and the error where it is a refusal. `hands_over`: proxies ask it of each other."""
        unwritten = self._noted.refuses
        if unwritten is not None:
            return Decision(False, unwritten), ServiceUnavailableError(
                "the proxy's audit trail cannot be written, and nothing is done without it; nothing was done",
                log=stream,
                advice="Ask another proxy",
            )
        principal = caller.principal
        if principal is None:
            if not self._demands_proof:
                return _ALLOWED_UNPROVED, None
            return Decision(False, "the client has not proved who it is"), NotAuthenticatedError(
                "the proxy demands proof of who asks, and there is none; nothing was done",
                log=stream,
                advice="Connect with a certificate (DLSPARK_SECURITY) or a token",
            )
        if principal.expired(self._now_s()):
            return Decision(False, "the proof has expired"), NotAuthenticatedError(
                f"the proof of {principal.name} has expired; nothing was done",
                log=stream,
                advice="Connect anew, with a certificate or token that is valid",
            )
        decision = self._decide(principal, caller, kind, verbs, stream, hands_over=hands_over)
        if decision.allowed:
            return decision, None
        return decision, _denied_error(principal, verbs, stream) if decision.known else _unknown_error(stream)

    def _decide(
        self,
        principal: Principal,
        caller: Caller,
        kind: type[Request],
        verbs: tuple[Verb, ...] | None,
        stream: str | None,
        *,
        hands_over: bool,
    ) -> Decision:
        if verbs is None:
            return Decision(False, f"no verb is known for {kind.__name__}")
        if not verbs:
            return _ALLOWED_PROVED
        restrictions = caller.restrictions or UNRESTRICTED
        if (
            hands_over
            and PROXY_ROLE in principal.roles
            and principal.scheme is Scheme.TLS
            and restrictions is UNRESTRICTED
        ):
            return _ALLOWED_PROXY
        book = self._book()
        if len(verbs) == 1:
            return book.decide(principal, verbs[0], stream, restrictions)
        return book.decide_any(principal, verbs, stream, restrictions)

    def _shown(self, answer: Answer, caller: Caller) -> Answer:
        """Return a handshake's answer without the logs of which the caller is to know nothing."""
        principal = caller.principal
        if principal is None or not isinstance(answer, ProxyInfo) or not answer.ownerships:
            return answer
        seen = self._book().visible(principal, answer.ownerships, caller.restrictions or UNRESTRICTED)
        return replace(answer, ownerships={stream: answer.ownerships[stream] for stream in seen})

    def _checked(self, read: _WaitingRead, answer: Answer) -> Answer:
        """Return what a read is answered: what the service says, but no records that the caller may not have any
        more."""
        if not isinstance(answer, Delivery):
            return answer
        objection = self._objection(read.request, read.caller, first=False)
        return answer if objection is None else refusal_of(objection)

    def _forget(self, read: _WaitingRead) -> None:
        reads = self._reads.get(read.caller)
        if reads is not None:
            reads.pop(read, None)
            if not reads:
                del self._reads[read.caller]


class _WaitingRead:
    """Takes the answer to a read, once."""

    __slots__ = ("_door", "_reply", "caller", "ended", "request")

    def __init__(self, door: RightsDoor, request: Request, caller: Caller, reply: Reply) -> None:
        self._door = door
        self._reply = reply
        self.request = request
        self.caller = caller
        self.ended = False

    def __call__(self, answer: Answer) -> None:
        if not self.ended:
            self.end(self._door._checked(self, answer))

    def end(self, answer: Answer) -> None:
        """Answer it. What the service brings later is thrown away: the reader asks again from where it is."""
        self.ended = True
        self._door._forget(self)
        self._reply(answer)


def _verb_noted(verbs: tuple[Verb, ...] | None) -> str | None:
    """Return the verb that is noted; of those of which any is enough the first one."""
    return verbs[0].value if verbs else None


def _unknown_error(stream: str | None) -> DistributedLogError:
    # No denial: an outage of ZooKeeper would end programs for good that have every right. Another proxy may know.
    return ServiceUnavailableError(
        "the proxy cannot read the rules of access at present, and allows nothing without them; nothing was done",
        log=stream,
        advice="Ask another proxy, or later. An operator finds the reason in the proxy's log",
    )


def _denied_error(principal: Principal, verbs: tuple[Verb, ...] | None, stream: str | None) -> RequestDeniedError:
    # Not the rule: who is kept out need not learn what others may do. The audit trail has it, and `dlspark acl check`.
    verb = _verb_noted(verbs)
    if verb is None or verbs == VISIBLE:
        return RequestDeniedError(
            f"{principal.name} has no right on this log; nothing was done", log=stream, advice="Ask an operator for one"
        )
    where, log = ("this proxy", "--proxy") if stream is None else ("this log", stream)
    roles = [word for role in sorted(principal.roles) for word in ("--role", role)]
    asked = shlex.join(["dlspark", "acl", "check", principal.name, str(verb), log, *roles])
    return RequestDeniedError(
        f"{principal.name} may not {verb} {where}; nothing was done",
        log=stream,
        advice=f"Ask an operator for it; {asked} says which rule decides. A token may be restricted to less than that",
    )
