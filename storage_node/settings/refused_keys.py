"""BookKeeper's client keys that mean nothing here: they are refused, with the reason, rather than ignored."""

from __future__ import annotations

from collections.abc import Mapping

_ALWAYS_SO = "always so here"
_ONE_LOOP = "one event loop does all the work"
_SOCKETS = "the operating system chooses"
_NO_TLS = "TLS and authentication are not spoken"
_METRICS = "a matter of BookKeeper's own metrics and logs"
WITHOUT_MEANING: Mapping[str, str] = {
    "throttle": "bytes in flight are bounded instead (maxOutstandingBytes)",
    "waitTimeoutOnBackpressureMs": "`wait_for_room` waits as long as its caller does",
    "digestType": "given when a ledger is created, and read from its metadata",
    "passwd": "given when a ledger is created or opened (digestPw of a namespace)",
    "enableDigestTypeAutodetection": _ALWAYS_SO,
    "enableParallelRecoveryRead": _ALWAYS_SO,
    "enableBookieFailureTracking": _ALWAYS_SO,
    "enableBookieAddressTracking": "addresses are looked up for each connection that is made",
    "bookieAddressResolverEnabled": "registrations are always looked up, then ids read as host:port",
    "clientTcpNoDelay": _ALWAYS_SO,
    "clientSockKeepalive": _ALWAYS_SO,
    "clientSendBufferSize": _SOCKETS,
    "clientReceiveBufferSize": _SOCKETS,
    "clientTcpUserTimeoutMillis": "a connection on which nothing comes for a request's whole time is made anew",
    "clientWriteBufferLowWaterMark": "bytes in flight are bounded instead (maxOutstandingBytes)",
    "clientWriteBufferHighWaterMark": "bytes in flight are bounded instead (maxOutstandingBytes)",
    "nettyUsePooledBuffers": _ALWAYS_SO,
    "useV2WireProtocol": "version 3 is spoken, and version 2 for batch reads",
    "useV3Enforced": "version 3 is spoken, and version 2 for batch reads",
    "timeoutMonitorIntervalSec": "follows from the time limits",
    "timeoutTaskIntervalMillis": "follows from the time limits",
    "pcbcTimeoutTimerTickDurationMs": "follows from the time limits",
    "pcbcTimeoutTimerNumTicks": "follows from the time limits",
    "timeoutTimerTickDurationMs": "follows from the time limits",
    "timeoutTimerNumTicks": "follows from the time limits",
    "readReorderThresholdPendingRequests": "answer times decide the order",
    "ensemblePlacementPolicyOrderSlowBookies": _ALWAYS_SO,
    "numWorkerThreads": _ONE_LOOP,
    "numIOThreads": _ONE_LOOP,
    "enableBusyWait": _ONE_LOOP,
    "startTLSTimeoutSecs": _NO_TLS,
    "tlsHostnameVerificationEnabled": _NO_TLS,
    "clientAuthProviderFactoryClass": _NO_TLS,
    "clientRole": _NO_TLS,
    "registrationClientClass": "metadata lie in ZooKeeper",
    "metadataServiceUri": "the namespace's binding names the cluster",
    "zkServers": "the namespace's binding names the cluster",
    "zkLedgersRootPath": "the namespace's binding names the cluster",
    "ledgerManagerFactoryClass": "the cluster's layout is followed",
    "ledgerManagerType": "the cluster's layout is followed",
    "ledgerMetadataVersion": "version 3 is written; what exists keeps its version",
    "storeSystemtimeAsLedgerCreationTime": "the metadata store's creation time is used",
    "disableEnsembleChangeFeatureName": "there are no dynamic features; see maxNumEnsembleChanges",
    "featureProviderClass": "there are no dynamic features",
    "enableTaskExecutionStats": _METRICS,
    "taskExecutionWarnTimeMicros": _METRICS,
    "enablePerHostStats": _METRICS,
    "clientConnectBookieUnavailableLogThrottling": _METRICS,
    "networkTopologyStabilizePeriodSeconds": "the list of storage nodes is read when it is needed",
    "followBookieAddressTrackingEnabled": "addresses are looked up for each connection that is made",
}
"""BookKeeper's keys that are refused, and why nothing is to be set."""
