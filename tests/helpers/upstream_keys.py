"""Apache DistributedLog's core settings, as its releases 4.17 and 4.18 have them: what ours are compared with."""

from __future__ import annotations

_KEYS = """
    zkAclId zkSessionTimeoutSeconds zkRequestRateLimit zkNumRetries zkRetryStartBackoffMillis
    zkRetryMaxBackoffMillis zkcNumRetryThreads
    bkcZKSessionTimeoutSeconds bkcZKRequestRateLimit bkcZKNumRetries bkcZKRetryStartBackoffMillis
    bkcZKRetryMaxBackoffMillis bkcEnsembleSize bkcWriteQuorumSize bkcAckQuorumSize bkRowAwareEnsemblePlacement
    bkEnsemblePlacementDnsResolverClass dnsResolverOverrides digestPw bkcNumIOThreads timerTickDuration
    timerNumTicks bkcReadTimeoutSeconds bkcWriteTimeoutSeconds bkcNumWorkerThreads
    numWorkerThreads numReadAheadWorkerThreads numLockStateThreads numResourceReleaseThreads
    schedulerShutdownTimeoutMs useDaemonThread
    ledgerMetadataLayoutVersion ledgerMetadataSkipMinVersionCheck firstLogsegmentSequenceNumber
    logSegmentSequenceNumberValidationEnabled enableRecordCounts maxIdSanityCheck encodeRegionIDInVersion
    logSegmentNameVersion unpartitionedStreamName logSegmentCacheTTLMs logSegmentCacheMaxSize
    logSegmentCacheEnabled
    createStreamIfNotExists logFlushTimeoutSeconds compressionType failFastOnStreamNotReady
    disableRollingOnLogSegmentError
    isDurableWriteEnabled writerOutputBufferSize periodicFlushFrequencyMilliSeconds enableImmediateFlush
    minimumDelayBetweenImmediateFlushMilliSeconds periodicKeepAliveMilliSeconds
    logSegmentRetentionHours explicitTruncationByApp logSegmentRollingMinutes maxLogSegmentBytes
    logSegmentRollingConcurrency
    writeLockEnabled lockTimeoutSeconds lockReacquireTimeoutSeconds lockOpTimeoutSeconds
    enableLedgerAllocatorPool ledgerAllocatorPoolPath ledgerAllocatorPoolName ledgerAllocatorPoolCoreSize
    perWriterOutstandingWriteLimit globalOutstandingWriteLimit outstandingWriteLimitDarkmode
    readLACLongPoll readLACLongPollTimeout deserializeRecordSetOnReads readerIdleWarnThresholdMillis
    readerIdleErrorThresholdMillis ignoreTruncationStatus alertPositionOnTruncated positionGapDetectionEnabled
    enableReadAhead enableForceRead readAheadMaxRecords readAheadBatchSize readAheadWaitTime
    readAheadWaitTimeOnEndOfStream readAheadNoSuchLedgerExceptionOnReadLACErrorThresholdMillis
    readAheadSkipBrokenEntries numPrefetchEntriesPerLogSegment maxPrefetchEntriesPerLogSegment
    firstNumEntriesEachPerLastRecordScan maxNumEntriesPerReadLastRecordScan checkLogExistenceBackoffStartMillis
    checkLogExistenceBackoffMaxMillis
    traceReadAheadDeliveryLatency metadataLatencyWarnThresholdMs dataLatencyWarnThresholdMs
    traceReadAheadMetadataChanges enableTaskExecutionStats taskExecutionWarnTimeMicros enablePerStreamStat
    featureProviderClass fileFeatureProviderBaseConfigPath fileFeatureProviderOverlayConfigPath
    federatedNamespaceEnabled federatedMaxLogsPerSubnamespace federatedCheckExistenceWhenCacheMiss
    dynamicConfigReloadIntervalSec streamConfigRouterClass bpsSoftWriteLimit bpsHardWriteLimit rpsSoftWriteLimit
    rpsHardWriteLimit rpsSoftServiceLimit rpsHardServiceLimit rpsStreamAcquireServiceLimit bpsSoftServiceLimit
    bpsHardServiceLimit bpsStreamAcquireServiceLimit maxAcquiredPartitionsPerProxy maxCachedPartitionsPerProxy
    eiInjectWriteDelay eiInjectedWriteDelayPercent eiInjectedWriteDelayMs eiInjectReadAheadStall
    eiInjectReadAheadDelay eiInjectMaxReadAheadDelayMs eiInjectReadAheadDelayPercent
    eiInjectReadAheadBrokenEntries
"""
KEYS = frozenset(_KEYS.split())
"""Every key."""

OLD_KEYS = {
    "ensemble-size": "bkcEnsembleSize",
    "write-quorum-size": "bkcWriteQuorumSize",
    "ack-quorum-size": "bkcAckQuorumSize",
    "row-aware-ensemble-placement": "bkRowAwareEnsemblePlacement",
    "ledger-metadata-layout": "ledgerMetadataLayoutVersion",
    "first-logsegment-sequence-number": "firstLogsegmentSequenceNumber",
    "output-buffer-size": "writerOutputBufferSize",
    "retention-size": "logSegmentRetentionHours",
    "rolling-interval": "logSegmentRollingMinutes",
    "ReadAheadMaxEntries": "readAheadMaxRecords",
    "ReadAheadBatchSize": "readAheadBatchSize",
    "ReadAheadWaitTime": "readAheadWaitTime",
    "ReadAheadWaitTimeOnEndOfStream": "readAheadWaitTimeOnEndOfStream",
}
"""Names that keys had before, and what they are now."""

_DYNAMIC = """
    bkcEnsembleSize bkcWriteQuorumSize bkcAckQuorumSize isDurableWriteEnabled writerOutputBufferSize
    periodicFlushFrequencyMilliSeconds logSegmentRetentionHours enableLedgerAllocatorPool
    deserializeRecordSetOnReads readAheadMaxRecords readAheadBatchSize bpsSoftWriteLimit bpsHardWriteLimit
    rpsSoftWriteLimit rpsHardWriteLimit rpsSoftServiceLimit rpsHardServiceLimit rpsStreamAcquireServiceLimit
    bpsSoftServiceLimit bpsHardServiceLimit bpsStreamAcquireServiceLimit maxAcquiredPartitionsPerProxy
    maxCachedPartitionsPerProxy eiInjectedWriteDelayPercent eiInjectedWriteDelayMs
"""
DYNAMIC_KEYS = frozenset(_DYNAMIC.split())
"""Keys that an open log takes new values of."""
