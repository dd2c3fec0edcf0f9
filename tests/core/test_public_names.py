"""What users import: the names, and errors that say whether it happened."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys

import pytest

import dlspark
from dlspark import errors
from dlspark.errors import TransmitError, __all__, status_code
from metadata.foundation.errors import (
    CallerError,
    DistributedLogError,
    InvariantViolation,
    NotAppliedError,
    OutcomeUnknownError,
)

NAMES = """
AppendReader AppendStream AsyncAppendReader AsyncAppendStream AsyncClient AsyncLockedReader Client LockedReader
AsyncLog AsyncLogReader AsyncLogWriter AsyncNamespace DLSN DLSNRange Log LogReader LogRecord LogWriter Namespace
PendingWrite Permissions Runtime SettableFeatures Settings Statistics NO_STATISTICS serve_metrics __version__ errors
"""

CODES = {
    "AlreadyClosedError": 502,
    "AlreadyTruncatedError": 511,
    "BadVersionError": 505,
    "CallerError": 500,
    "ChecksumFailedError": 523,
    "ConditionError": 603,
    "ConnectionLossError": 505,
    "CorruptDataError": 500,
    "DamagedColdFileError": 500,
    "DigestError": 500,
    "DistributedLogError": 500,
    "DuplicateLogError": 600,
    "EndOfStreamError": 512,
    "EvolutionError": 500,
    "IdleReaderError": 500,
    "InvalidEntryError": 520,
    "InvalidLogNameError": 602,
    "InvalidRecordError": 500,
    "InvalidSchemaError": 500,
    "InvariantViolation": 600,
    "LockingError": 504,
    "LogEmptyError": 509,
    "LogExistsError": 522,
    "LogNotFoundError": 510,
    "MetadataUnavailableError": 505,
    "MissingExtraError": 500,
    "NamespaceInUseError": 500,
    "NoAuthError": 505,
    "NoSchemaError": 500,
    "NotAppliedError": 500,
    "NotBoundError": 500,
    "NotEnoughBookiesError": 500,
    "ObjectAddressError": 500,
    "ObjectExistsError": 500,
    "ObjectNotFoundError": 500,
    "ObjectOutcomeUnknownError": 500,
    "OpenedElsewhereError": 500,
    "OperationNotServedError": 501,
    "OutcomeUnknownError": 500,
    "OverCapacityError": 517,
    "OwnershipAcquireFailedError": 302,
    "PositionGapError": 603,
    "ProducerError": 603,
    "ProducerFencedError": 504,
    "ProducerForgottenError": 513,
    "ProxyLostError": 500,
    "ProxyUnreachableError": 503,
    "RangeShortError": 500,
    "ReadCancelledError": 1002,
    "ReadError": 1001,
    "RecordMisfitError": 500,
    "RecordTooLongError": 413,
    "RegionUnavailableError": 519,
    "RequestDeniedError": 403,
    "NotAuthenticatedError": 403,
    "IdentityError": 500,
    "NoExtraError": 500,
    "PeerRefusedError": 500,
    "RowRefusedError": 500,
    "SchemaChangedError": 500,
    "SchemaExistsError": 500,
    "SegmentFullError": 514,
    "SegmentListError": 600,
    "SegmentNotFoundError": 525,
    "SegmentStateError": 603,
    "SequenceGapError": 513,
    "SequencePassedError": 513,
    "ServiceUnavailableError": 503,
    "SessionExpiredError": 505,
    "SettingsError": 500,
    "SqlTextError": 500,
    "StoreRefusedError": 500,
    "StoreUnavailableError": 500,
    "StoreUnreachedError": 500,
    "StreamNotReadyError": 518,
    "StreamUnavailableError": 515,
    "TooManyProducersError": 517,
    "TooManyStreamsError": 524,
    "TransactionIdOutOfOrderError": 513,
    "TransmitError": 507,
    "UnsupportedMetadataVersionError": 521,
    "WriteCancelledError": 516,
    "WriteError": 514,
    "WriterDeposedError": 504,
}


def test_the_public_names_are_pinned():
    assert sorted(dlspark.__all__) == sorted(NAMES.split())
    for name in dlspark.__all__:
        assert getattr(dlspark, name) is not None
    assert set(dlspark.__all__) <= set(dir(dlspark))
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        dlspark.Nothing  # noqa: B018


def test_importing_the_package_imports_nothing_else():
    code = "import sys, dlspark; assert 'pyarrow' not in sys.modules and 'asyncio' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_every_public_error_has_its_status_code():
    kinds = {name: getattr(errors, name) for name in __all__ if name != "status_code"}
    assert {name: status_code(kind.__new__(kind)) for name, kind in kinds.items()} == CODES


def test_every_public_error_says_whether_it_happened():
    outcomes = (CallerError, NotAppliedError, OutcomeUnknownError, InvariantViolation)
    for name in set(__all__) - {"status_code", "DistributedLogError"}:
        kind = getattr(errors, name)
        assert sum(issubclass(kind, outcome) for outcome in outcomes) == 1, name


def test_the_drawn_tree_shows_every_error_below_its_parent():
    drawn: list[tuple[int, str]] = []
    for line in inspect.getdoc(errors).splitlines():
        stripped = line.lstrip(" │├└─")
        if stripped.split(" ")[0].endswith(("Error", "InvariantViolation")) and line.startswith("    "):
            drawn.append((len(line) - len(stripped), stripped.split(" ")[0]))
    path: list[tuple[int, str]] = []
    for depth, name in drawn:
        while path and path[-1][0] >= depth:
            path.pop()
        if path:
            parent = getattr(errors, path[-1][1])
            assert issubclass(getattr(errors, name), parent), f"{name} under {path[-1][1]}"
        path.append((depth, name))
    assert {name for _, name in drawn} == set(__all__) - {"status_code"}


def test_errors_survive_pickling_with_their_place():
    error = TransmitError("sent", log="flights", ledger_id=3, entry_id=4, advice="look")
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, DistributedLogError)
    assert (type(copy), str(copy)) == (TransmitError, "sent [log flights, ledger 3, entry 4]. look")
