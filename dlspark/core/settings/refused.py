"""Upstream's keys that mean nothing here: they are refused, with the reason, rather than ignored."""

from __future__ import annotations

from collections.abc import Mapping

_ONE_LOOP = "one event loop does all the work, there are no pools of threads"
_LOOP_TIMERS = "the event loop keeps the time"
_NO_POOLS = "there are no pools of threads whose tasks could be measured"
_ONE_READ = "one read of the metadata store shows whether a log exists"
_INJECTION = "tests inject faults at the edges, not settings"
_PROXY = "it bounds a write proxy, which these settings do not configure"
WITHOUT_MEANING: Mapping[str, str] = {
    "zkcNumRetryThreads": "requests are repeated by the event loop, without threads",
    "bkcNumIOThreads": _ONE_LOOP,
    "timerTickDuration": _LOOP_TIMERS,
    "timerNumTicks": _LOOP_TIMERS,
    "bkcNumWorkerThreads": _ONE_LOOP,
    "numWorkerThreads": _ONE_LOOP,
    "numReadAheadWorkerThreads": _ONE_LOOP,
    "numLockStateThreads": _ONE_LOOP,
    "numResourceReleaseThreads": _ONE_LOOP,
    "schedulerShutdownTimeoutMs": "closing waits for what it closes; there are no schedulers",
    "useDaemonThread": "the one background thread, that of the synchronous classes, is always a daemon",
    "enableRecordCounts": "records always carry their positions: without them no reader could see that one is missing",
    "logFlushTimeoutSeconds": (
        "a flush ends when its entries are acknowledged or fail, which bkcWriteTimeoutSeconds bounds"
    ),
    "lockReacquireTimeoutSeconds": "a lost lock is taken again as long as no other client has it",
    "lockOpTimeoutSeconds": "lockTimeoutSeconds bounds the wait for a lock",
    "readLACLongPoll": "readLACLongPollTimeout is the only setting of long polls",
    "enableReadAhead": "readers always read ahead, with readAheadMaxRecords=1 by one entry",
    "enableForceRead": "there is only one way of reading; upstream does not use this key either",
    "readAheadWaitTimeOnEndOfStream": "a watch reports the next segment; readers do not wait for a fixed time",
    "readAheadNoSuchLedgerExceptionOnReadLACErrorThresholdMillis": (
        "a listed segment without its ledger fails a reader after ten seconds, unless it leaves the list before"
    ),
    "enableTaskExecutionStats": _NO_POOLS,
    "taskExecutionWarnTimeMicros": _NO_POOLS,
    "checkLogExistenceBackoffStartMillis": _ONE_READ,
    "checkLogExistenceBackoffMaxMillis": _ONE_READ,
    "bpsSoftWriteLimit": _PROXY,
    "bpsHardWriteLimit": _PROXY,
    "rpsSoftWriteLimit": _PROXY,
    "rpsHardWriteLimit": _PROXY,
    "rpsSoftServiceLimit": _PROXY,
    "rpsHardServiceLimit": _PROXY,
    "rpsStreamAcquireServiceLimit": _PROXY,
    "bpsSoftServiceLimit": _PROXY,
    "bpsHardServiceLimit": _PROXY,
    "bpsStreamAcquireServiceLimit": _PROXY,
    "maxAcquiredPartitionsPerProxy": _PROXY,
    "maxCachedPartitionsPerProxy": _PROXY,
    "eiInjectWriteDelay": _INJECTION,
    "eiInjectedWriteDelayPercent": _INJECTION,
    "eiInjectedWriteDelayMs": _INJECTION,
    "eiInjectReadAheadStall": _INJECTION,
    "eiInjectReadAheadDelay": _INJECTION,
    "eiInjectMaxReadAheadDelayMs": _INJECTION,
    "eiInjectReadAheadDelayPercent": _INJECTION,
    "eiInjectReadAheadBrokenEntries": _INJECTION,
}
OLD_KEYS: Mapping[str, str] = {
    "ReadAheadWaitTimeOnEndOfStream": "readAheadWaitTimeOnEndOfStream",
}
"""Names that some of them had before."""
