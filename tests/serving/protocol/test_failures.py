"""What a proxy raises is what its client raises: every error of the tree, there and back."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.parsing import parse
from helpers.paths import DOCS

import dlspark
import metadata
import storage_node
from dlspark import errors
from dlspark.core.codec.dlsn import DLSN
from dlspark.core.writing.ledger_allocators import AllocatorLostError
from dlspark.core.writing.transactions import DeposedInDoubtError
from dlspark.errors import (
    ChecksumFailedError,
    ConditionError,
    OperationNotServedError,
    OverCapacityError,
    ProducerError,
    ProducerFencedError,
    ProxyLostError,
    ProxyUnreachableError,
    RegionUnavailableError,
    SequenceGapError,
    ServiceUnavailableError,
    StreamUnavailableError,
    TooManyStreamsError,
    TransmitError,
    WriterDeposedError,
    __all__,
    status_code,
)
from dlspark.objects.errors import ObjectStoreError
from dlspark.serving.protocol.answer_frames import decode_answer, encode_answer
from dlspark.serving.protocol.failures import (
    ERROR_OF_CODE,
    ERROR_OF_NAME,
    MAX_MESSAGE_CHARS,
    applied_of,
    error_of,
    refusal_of,
)
from dlspark.serving.protocol.operations import REASON_OF_NAME, Applied, Reason, Refusal, StatusCode
from metadata.distributedlog.locks import LockingError, OwnershipAcquireFailedError
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.foundation.errors import (
    CallerError,
    DistributedLogError,
    InvariantViolation,
    NotAppliedError,
    OutcomeUnknownError,
)
from storage_node.errors import BookieError

NO_PROXYS = (
    "dlspark.spark",
    "dlspark.sandbox",
    "dlspark.cli",
    "dlspark.testing",
    "dlspark.serving",
    "dlspark.cold",
    "storage_node.bookie",
    "metadata.distributedlog.cold_rebuilds",
    "metadata.distributedlog.cold_returns",
    "metadata.distributedlog.execution_notes",
    "metadata.security.sasl",
    "metadata.security.rights",
)
"""Where errors are that no proxy meets."""
INTERNAL = {
    "AllocatorLostError",
    "ColdKeptError",
    "ColdMovedError",
    "ColdTakenError",
    "DeposedAfterwardsError",
    "DeposedInDoubtError",
    "NoAllocatorError",
    "SegmentVanishedError",
    "SegmentsMovedError",
    "UnknownBookieError",
}
"""What the core says to itself. They, too, travel as the nearest class above them."""
_NOT_IMPORTED = ("dlspark.testing", "dlspark.spark", "dlspark.cli", "dlspark.serving")


def tree() -> Iterator[type[DistributedLogError]]:
    """Every class of errors that the three floors define."""
    for package in (metadata, storage_node, dlspark):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__") and not found.name.startswith(_NOT_IMPORTED):
                importlib.import_module(found.name)
    importlib.import_module("dlspark.spark.errors")
    todo: list[type[DistributedLogError]] = [DistributedLogError]
    seen = set()
    while todo:
        kind = todo.pop()
        if kind not in seen and kind.__module__.partition(".")[0] in ("metadata", "storage_node", "dlspark"):
            seen.add(kind)
            todo += kind.__subclasses__()
    yield from sorted(seen, key=lambda kind: kind.__name__)


TREE = list(tree())
ROOTS = (DistributedLogError, BookieError, ObjectStoreError)
"""They do not say whether the thing was done."""


def is_sent(kind: type[DistributedLogError]) -> bool:
    return kind.__name__ not in INTERNAL and not kind.__module__.startswith(NO_PROXYS)


def made(kind: type[DistributedLogError]) -> DistributedLogError:
    """An error with a message and advice, however its class wants to be made."""
    error = kind.__new__(kind)
    DistributedLogError.__init__(error, "it failed", advice="try this")
    if isinstance(error, OwnershipAcquireFailedError):
        error.owner = "1;0;host:8000"
    if isinstance(error, ConditionError):
        error.actual = 17
    if isinstance(error, SequenceGapError):
        error.expected = 17
    return error


def there_and_back(error: BaseException) -> DistributedLogError:
    """Over the wire as well."""
    refusal = refusal_of(error)
    (_, travelled) = decode_answer(memoryview(b"".join(encode_answer(1, refusal)))[4:])
    assert travelled == refusal
    return error_of(travelled, stream="flights")


def test_the_tree_is_whole() -> None:
    assert {getattr(errors, name) for name in __all__ if name != "status_code"} <= set(TREE)
    assert len(TREE) > 100


@pytest.mark.parametrize("kind", [kind for kind in TREE if kind not in ROOTS])
def test_every_error_comes_back_as_what_it_was(kind: type[DistributedLogError]) -> None:
    error = made(kind)
    back = there_and_back(error)
    if is_sent(kind):
        assert type(back) is kind
    assert status_code(back) == status_code(error)
    assert applied_of(type(back)) is applied_of(kind)
    assert (back.message, back.advice, back.log) == ("it failed", "try this", "flights")
    for name in ("owner", "actual", "expected"):
        assert getattr(back, name, None) == getattr(error, name, None)


@pytest.mark.parametrize("root", ROOTS)
def test_an_error_that_does_not_say_whether_it_was_done_may_have_been(root: type[DistributedLogError]) -> None:
    assert type(there_and_back(made(root))) is OutcomeUnknownError


def test_an_error_that_only_the_core_knows_is_raised_as_the_nearest_that_clients_know() -> None:
    assert type(there_and_back(made(DeposedInDoubtError))) is WriterDeposedError
    assert type(there_and_back(made(AllocatorLostError))) is LockingError, "by its code"


def names_of_errors_in(source: str) -> set[str]:
    """Every name of an error that a module writes as a text."""
    return {
        one.value
        for one in ast.walk(parse(source))
        if isinstance(one, ast.Constant) and isinstance(one.value, str) and one.value in ERROR_OF_NAME
    }


def test_a_name_of_an_error_is_written_in_the_protocol_alone() -> None:
    assert names_of_errors_in('refusal.error == "ProducerFencedError"') == {"ProducerFencedError"}
    serving = Path(dlspark.__file__).parent / "serving"
    written = {
        path.relative_to(serving).as_posix(): found
        for path in sorted(serving.rglob("*.py"))
        if (found := names_of_errors_in(path.read_text("utf-8")))
    }
    assert written == {"protocol/operations.py": set(REASON_OF_NAME)}


def test_names_are_of_one_class_each() -> None:
    assert all(kind.__name__ == name for name, kind in ERROR_OF_NAME.items())
    sendable = {kind.__name__ for kind in TREE if is_sent(kind)}
    assert {kind.__name__ for kind in TREE} >= INTERNAL
    assert sendable - {root.__name__ for root in ROOTS} == ERROR_OF_NAME.keys()


@pytest.mark.parametrize("actual", [None, 5, DLSN(3, 1200, 0), b"", b"token", bytes(36)])
def test_what_was_found_instead_is_known_on_the_other_side(actual: object) -> None:
    back = there_and_back(ConditionError("elsewhere", actual=actual))
    assert isinstance(back, ConditionError)
    assert (type(back.actual), back.actual) == (type(actual), actual)


def test_what_cannot_be_a_position_or_a_token_stays_a_text() -> None:
    for text in ("odd", "99999999999999999999:0:0"):
        refusal = Refusal(StatusCode.ILLEGAL_STATE, "", error="ConditionError", actual=text)
        back = error_of(refusal, stream=None)
        assert isinstance(back, ConditionError)
        assert back.actual == text


def test_the_owner_is_the_location() -> None:
    refusal = refusal_of(OwnershipAcquireFailedError("1;0;host:8000", path="/log/lock"))
    assert (refusal.code, refusal.location, refusal.applied) == (StatusCode.FOUND, "1;0;host:8000", Applied.NO)


def test_the_place_of_an_error_is_in_its_message_but_not_the_log() -> None:
    error = TransmitError("sent", log="flights", ledger_id=3, entry_id=4, dlsn=DLSN(1, 4, 0), node="n:1", path="/a")
    assert refusal_of(error).message == "sent [dlsn 1:4:0, ledger 3, entry 4, node n:1, path /a]"


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyError("x"), StatusCode.UNEXPECTED, "KeyError: 'x'"),
        (RuntimeError(), StatusCode.UNEXPECTED, "RuntimeError"),
        (OSError("disk"), StatusCode.INTERNAL_SERVER_ERROR, "OSError: disk"),
        (KeyboardInterrupt(), StatusCode.UNEXPECTED, "KeyboardInterrupt"),
    ],
)
def test_a_bug_may_have_come_after_the_thing_was_done(error: BaseException, code: StatusCode, message: str) -> None:
    assert refusal_of(error) == Refusal(code, message, applied=Applied.UNKNOWN)
    assert type(there_and_back(error)) is OutcomeUnknownError


def test_what_a_thin_client_needs_of_it_leads_to_no_storage_client() -> None:
    code = (
        "import sys; from dlspark.serving.protocol import failures, answer_frames, request_checks\n"
        "bad = ('storage_node.client', 'dlspark.core.writing', 'dlspark.core.reading', 'kazoo', 'pyarrow', 'grpc')\n"
        "assert not [name for name in sys.modules if name.startswith(bad)]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_long_texts_are_cut() -> None:
    refusal = refusal_of(NotAppliedError("m" * 10_000, advice="a" * 10_000))
    assert (len(refusal.message), len(refusal.advice or "")) == (MAX_MESSAGE_CHARS, MAX_MESSAGE_CHARS)
    assert refusal.message.endswith("m...")
    assert refusal_of(NotAppliedError("m" * MAX_MESSAGE_CHARS)).message == "m" * MAX_MESSAGE_CHARS


# ------------------------------------------------------------------ the outcome outweighs the name


@pytest.mark.parametrize("name", ["", "NoSuchError", *ERROR_OF_NAME])
@pytest.mark.parametrize("applied", Applied)
def test_the_outcome_is_never_another_than_the_refusals(name: str, applied: Applied) -> None:
    for code in StatusCode:
        kind = type(error_of(Refusal(code, "", applied=applied, error=name), stream="s"))
        assert applied_of(kind) is applied, code


@pytest.mark.parametrize("code", StatusCode)
def test_what_may_have_been_done_stays_unknown_whatever_its_code(code: StatusCode) -> None:
    assert isinstance(error_of(Refusal(code, "", applied=Applied.UNKNOWN), stream="s"), OutcomeUnknownError)


def test_a_refusal_without_a_name_is_raised_by_its_code() -> None:
    for code, kind in ERROR_OF_CODE.items():
        refusal = Refusal(code, "so", applied=applied_of(kind), error="OfANewerProxyError")
        error = error_of(refusal, stream="s")
        assert type(error) is kind
        assert status_code(error) == code or code in _SHARED
    plain = {Applied.NO: NotAppliedError, Applied.WRONG: CallerError, Applied.UNKNOWN: OutcomeUnknownError}
    for applied, kind in plain.items():
        assert type(error_of(Refusal(StatusCode.UNEXPECTED, "so", applied=applied), stream="s")) is kind


_SHARED = {
    StatusCode.CLIENT_CLOSED,
    StatusCode.FLUSH_TIMEOUT,
    StatusCode.METADATA_EXCEPTION,
    StatusCode.RETRYABLE_READ,
}
"""Codes without a class of their own: the nearest class has another code."""


def test_codes_without_a_class_are_those_that_no_one_can_act_upon() -> None:
    assert set(StatusCode) - ERROR_OF_CODE.keys() == {
        StatusCode.SUCCESS,
        StatusCode.INTERNAL_SERVER_ERROR,
        StatusCode.END_OF_LOG_SEGMENT,
        StatusCode.LOG_SEGMENT_IS_TRUNCATED,
        StatusCode.UNEXPECTED,
        StatusCode.INTERRUPTED,
        StatusCode.ILLEGAL_STATE,
    }


def test_errors_that_only_thin_clients_meet_have_the_right_outcome() -> None:
    lost = {ProxyLostError}
    assert {applied_of(kind) for kind in lost} == {Applied.UNKNOWN}
    undone = {
        ProxyUnreachableError,
        ServiceUnavailableError,
        StreamUnavailableError,
        TooManyStreamsError,
        RegionUnavailableError,
        ChecksumFailedError,
        OverCapacityError,
    }
    assert {applied_of(kind) for kind in undone} == {Applied.NO}
    assert applied_of(OperationNotServedError) is applied_of(LogNotFoundError) is Applied.WRONG
    assert applied_of(InvariantViolation) is applied_of(ProxyLostError) is Applied.UNKNOWN


# ---------------------------------------------------------------------- reasons


def test_a_new_kind_of_an_error_is_decided_about_as_the_old_one() -> None:
    class FencedByAnOperatorError(ProducerFencedError):
        """A release of tomorrow raises it."""

    refusal = refusal_of(made(FencedByAnOperatorError))
    assert (refusal.error, refusal.reason) == ("ProducerFencedError", Reason.PRODUCER_FENCED)


@pytest.mark.parametrize("reason", [one for one in Reason if one is not Reason.NONE])
def test_frames_carry_a_reason_by_a_name_that_older_sides_know(reason: Reason) -> None:
    refusal = Refusal(StatusCode.UNEXPECTED, "it failed", error="AnErrorOfTomorrow", reason=reason)
    (_, travelled) = decode_answer(memoryview(b"".join(encode_answer(1, refusal)))[4:])
    assert isinstance(travelled, Refusal)
    assert travelled.reason is reason
    assert REASON_OF_NAME[travelled.error] is reason


def test_an_error_whose_name_is_unknown_is_raised_by_its_reason() -> None:
    newer = Refusal(StatusCode.ILLEGAL_STATE, "fenced", error="AnErrorOfTomorrow", reason=Reason.PRODUCER_FENCED)
    assert type(error_of(newer, stream="s")) is ProducerFencedError


def test_every_producer_s_refusal_has_a_reason() -> None:
    for kind in TREE:
        if issubclass(kind, ProducerError):
            assert refusal_of(made(kind)).reason is not Reason.NONE, kind


def test_the_reference_lists_reasons_and_their_names() -> None:
    text = (DOCS / "reference" / "serving.md").read_text()
    rows = re.findall(r"^\| (\d+) (\w+) \| ((?:\w+Error(?:, )?)+) \|", text, re.M)
    listed = {name: (int(number), reason) for number, reason, names in rows for name in names.split(", ")}
    assert listed == {name: (int(reason), reason.name) for name, reason in REASON_OF_NAME.items()}
