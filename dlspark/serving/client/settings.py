"""`ThinClientSettings`: what a thin client may be set to, by upstream's keys where upstream has them.

Upstream sets its client by a builder whose methods have these names; here they are keys, of a mapping or a properties
file. A key that cannot be honoured is an error that names the nearest one, or says why (`WITHOUT_MEANING`). Times are
in the unit that their keys say. They are listed in docs/settings/thin-client.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from dlspark.core.codec.producer_records import KEPT, MAX_NAME_BYTES
from dlspark.errors import SettingsError
from dlspark.serving.client.batching import BatchBounds
from dlspark.serving.client.ownership import ANY_STREAM, MAX_OWNERSHIPS, Handshakes, OwnershipCache
from dlspark.serving.client.requests import RetryLimits
from dlspark.serving.client.write_sessions import SessionLimits
from dlspark.serving.routing.hosts import BLACKOUT_S, ProxyHost, Route
from dlspark.serving.routing.other_routes import ServerOrder, SingleHost
from dlspark.serving.routing.ring import BALANCE, BoundedRing, HostRing
from dlspark.serving.security.credentials import ClientCredentials, client_credentials
from metadata.foundation.errors import CallerError
from metadata.foundation.regions import region_named, said_region
from metadata.foundation.settings import FLAG, REAL, TEXT, WHOLE, Registry, setting
from metadata.security.other_keys import SECURITY_ELSEWHERE
from metadata.security.settings import SecuritySettings

PAGE: Final = "docs/settings/thin-client.md"
MINUTE_MS: Final = 60_000
MAX_BATCH_BYTES: Final = 1_000_000
"""A request lies in one entry, which has room for a little more, and its records have headers there."""
MAX_BATCH_RECORDS: Final = 16_384
"""Payloads that a request may have."""
RING, ORDER, SINGLE = "ring", "server-order", "single-host"
MAX_NAME_OF_CLIENT_BYTES: Final = MAX_NAME_BYTES - 64
"""The rest of a producer's name tells a client's producers apart."""
_RETRIES: Final = RetryLimits()
_SESSION: Final = SessionLimits()
_BATCHES: Final = BatchBounds()
"""The defaults of what is made of the settings are theirs."""

WITHOUT_MEANING: Mapping[str, str] = {
    "thriftmux": "a connection always carries many requests at once, in frames or over HTTP/2; there is no Thrift",
    "clientBuilder": "connections are not Finagle's: what a builder would be asked for are the settings here, and a "
    "network of one's own is given to the client as an object",
    "statsReceiver": "a receiver is an object of Finagle's; the client counts in `client.counters`",
    "streamStatsReceiver": "a receiver is an object of Finagle's; the client counts in `client.counters`",
}
"""Upstream's keys that would do nothing here, and why."""


@dataclass(frozen=True, slots=True)
class ThinClientSettings:
    """The settings of a thin client, by upstream's keys (docs/settings/thin-client.md).

    Frozen: `with_values` gives a changed copy.

    Raises SettingsError for values that contradict each other, or cannot be.
    """

    name: str = setting(TEXT, "dlspark", "name", "What log messages call the client", section="Common")
    client_id: str = setting(
        TEXT,
        "",
        "clientId",
        "What proxies know the client as: the names of its producers begin with it, and so operators find it in logs "
        "and messages; empty: they begin with the client's name",
    )
    request_timeout_ms: int = setting(
        WHOLE,
        _RETRIES.request_timeout_ms,
        "requestTimeoutMs",
        "Milliseconds after which a request that was not answered fails, whatever was tried; below 0: never. "
        "(Upstream's default is never.)",
        minimum=-1,
    )
    attempt_timeout_ms: int = setting(
        WHOLE,
        _RETRIES.attempt_timeout_ms,
        "attemptTimeoutMs",
        "Milliseconds after which a request that one proxy has not answered is sent to the next, if it may be sent "
        "again; 0 or less: never",
        own=True,
    )
    stream_failfast: bool = setting(
        FLAG,
        _RETRIES.fail_fast,
        "streamFailfast",
        "Whether a request fails at once when a proxy cannot serve its stream at present; false: others are asked",
    )

    finagle_name_str: str = setting(
        TEXT,
        "",
        "finagleNameStr",
        "Where the write proxies are: `host:port,host:port`, the same behind `inet!`, a namespace's URI "
        "`distributedlog://servers/path`, or the folder of its proxies, `zk!servers!/path/.write_proxy`",
        section="Where the proxies are",
    )
    finagle_name_strs: str = setting(
        TEXT,
        "",
        "finagleNameStrs",
        "The same for several regions, separated by spaces, the local region first",
    )
    routing: str = setting(
        TEXT,
        RING,
        "routing",
        "How a stream is given to a proxy before its owner is known: by consistent hashing, by its hash in the sorted "
        "list of proxies, or always to the one proxy that there is",
        choices=(RING, ORDER, SINGLE),
        own=True,
    )
    region: str = setting(
        TEXT,
        "",
        "region",
        "The region of this client, where proxies are found in a namespace: those that announce it are asked before "
        "all others (docs/regions.md). Empty: the environment variable DLSPARK_REGION; without either all are alike",
        own=True,
    )
    blackout_ms: int = setting(
        WHOLE,
        int(BLACKOUT_S * 1000),
        "blackoutMs",
        "Milliseconds for which a proxy whose connection failed is asked only where no other is left",
        minimum=0,
        own=True,
    )

    read_balance: float = setting(
        REAL,
        BALANCE,
        "readBalance",
        "How far a read proxy may be above its share of the logs that this client reads: 1.25 is a quarter. Logs that "
        "find no room at their own proxy are read at the next one. The bound over all clients is the proxies' own",
        minimum=1.0,
        maximum=1_000.0,
        own=True,
    )

    redirect_backoff_start_ms: int = setting(
        WHOLE,
        _RETRIES.backoff_start_ms,
        "redirectBackoffStartMs",
        "Milliseconds of back-off, for each attempt so far, before a proxy is asked again that was asked before",
        minimum=0,
        section="Redirects",
    )
    redirect_backoff_max_ms: int = setting(
        WHOLE,
        _RETRIES.backoff_max_ms,
        "redirectBackoffMaxMs",
        "The longest back-off in milliseconds. Behind proxies that say again and again that they take no requests it "
        "is up to a second",
        minimum=1,
    )
    max_redirects: int = setting(
        WHOLE,
        _RETRIES.max_redirects,
        "maxRedirects",
        "Attempts that a request may take after the first; below 0: any number",
        minimum=-1,
    )
    resend_writes: bool = setting(
        FLAG,
        _RETRIES.resend_writes,
        "resendUnknownWrites",
        "Whether a write without a producer is sent again when its answer was lost, as upstream's client does: it may "
        "be written twice then. false: it fails, with an unknown outcome",
        own=True,
    )

    handshake_with_client_info: bool = setting(
        FLAG,
        True,
        "handshakeWithClientInfo",
        "Whether proxies are asked which streams they own when a connection is made, and later",
        section="Ownership",
    )
    periodic_handshake_interval_ms: int = setting(
        WHOLE,
        5 * MINUTE_MS,
        "periodicHandshakeIntervalMs",
        "Milliseconds between two handshakes with each proxy, which find those that have failed; 0 or less: none",
    )
    periodic_ownership_sync_interval_ms: int = setting(
        WHOLE,
        5 * MINUTE_MS,
        "periodicOwnershipSyncIntervalMs",
        "A periodic handshake asks for ownerships when so many milliseconds have passed since one last did",
    )
    stream_name_regex: str = setting(
        TEXT, ANY_STREAM, "streamNameRegex", "Streams whose owners the client wants to know; whole names match"
    )
    ownership_cache_streams: int = setting(
        WHOLE,
        MAX_OWNERSHIPS,
        "ownershipCacheStreams",
        "Streams whose owners are remembered; those not asked for longest are forgotten",
        minimum=1,
        own=True,
    )

    checksum: bool = setting(
        FLAG,
        True,
        "checksum",
        "Whether requests carry a CRC-32 of stream and payload, which the proxy checks",
        section="Constraints",
    )

    idempotent: bool = setting(
        FLAG,
        True,
        "idempotentProducer",
        "Whether writes are those of a producer: sent again after a loss, and written once. false: a write whose "
        "answer was lost fails with an unknown outcome",
        own=True,
        section="Producers",
    )
    producer_name: str = setting(
        TEXT,
        "",
        "producerName",
        "Name of the client's producers; a client of the same name that comes later fences this one. Empty: a name "
        "that no other has",
        own=True,
    )
    max_in_flight: int = setting(
        WHOLE,
        _SESSION.max_in_flight,
        "maxInFlightRequests",
        f"Requests of one producer that are under way at once; a log remembers the last {KEPT}",
        minimum=1,
        maximum=KEPT,
        own=True,
    )
    producer_memory_s: int = setting(
        WHOLE,
        int(_SESSION.memory_s),
        "producerMemorySeconds",
        "Seconds after its first sending for which a producer's request is sent again. It must be well below the "
        "log's producerExpirySeconds: what the log has forgotten stays in doubt",
        minimum=1,
        own=True,
    )

    linger_ms: int = setting(
        WHOLE,
        _BATCHES.linger_ms,
        "lingerMs",
        "Milliseconds that a record waits for others to travel with. With 0 it waits for none, but joins those that "
        "wait because maxInFlightRequests are under way",
        minimum=0,
        own=True,
        section="Batches",
    )
    batch_max_bytes: int = setting(
        WHOLE,
        _BATCHES.max_bytes,
        "batchMaxBytes",
        "Bytes of records in one request; a larger record travels alone",
        minimum=1,
        maximum=MAX_BATCH_BYTES,
        own=True,
    )
    batch_max_records: int = setting(
        WHOLE,
        _BATCHES.max_records,
        "batchMaxRecords",
        "Records in one request",
        minimum=1,
        maximum=MAX_BATCH_RECORDS,
        own=True,
    )
    max_pending_bytes: int = setting(
        WHOLE,
        _BATCHES.max_pending_bytes,
        "maxPendingBytes",
        "Bytes of records that are given to the client and not answered; a further write waits, or is refused",
        minimum=1,
        own=True,
    )
    max_pending_records: int = setting(
        WHOLE,
        _BATCHES.max_pending_records,
        "maxPendingRecords",
        "Records that are given to the client and not answered; a further write waits, or is refused",
        minimum=1,
        own=True,
    )

    token_file: str = setting(
        TEXT,
        "",
        "tokenFile",
        "A file with the bearer token that proves to proxies who the client is; it is shown anew when it changes. "
        "Empty: the file that DLSPARK_TOKEN_FILE names, or the token in DLSPARK_TOKEN; without any the certificate "
        "proves it",
        own=True,
        section="Who the client is",
    )
    tls: SecuritySettings = field(default_factory=SecuritySettings)
    """Whether it speaks TLS, whom it believes, and the certificate that it shows."""

    def __post_init__(self) -> None:
        REGISTRY.check(self)
        if self.tls.security == "optional":
            raise SettingsError(
                "security=optional is nothing to a thin client, which never speaks plain where it could speak TLS",
                advice="Set security=on once the proxies speak TLS (security=optional there), until then off",
            )
        if self.redirect_backoff_max_ms < self.redirect_backoff_start_ms:
            raise SettingsError(
                f"redirectBackoffMaxMs={self.redirect_backoff_max_ms} is below "
                f"redirectBackoffStartMs={self.redirect_backoff_start_ms}",
                advice="Raise the first or lower the second",
            )
        if self.finagle_name_str and self.finagle_name_strs:
            raise SettingsError(
                "finagleNameStr and finagleNameStrs are both given", advice="The second has the local region first"
            )
        for key, text in (("producerName", self.producer_name), ("clientId", self.client_id), ("name", self.name)):
            if len(text.encode("utf-8", "surrogatepass")) > MAX_NAME_OF_CLIENT_BYTES:
                raise SettingsError(f"{key} has more than {MAX_NAME_OF_CLIENT_BYTES} bytes", advice="Shorten it")
        if self.region and self.finagle_name_strs:
            raise SettingsError(
                "region and finagleNameStrs are both given",
                advice="The first name of the second is the local region's: leave region out, or name the namespace of "
                "all regions once",
            )
        if self.region and self.routing == SINGLE:
            raise SettingsError("region says nothing to routing=single-host", advice="Leave one of them out")
        try:
            region_named(self.region, "region")
        except CallerError as error:
            raise SettingsError(error.message, advice=error.advice) from None
        self.ownerships()  # it reads the regular expression
        self.regions()

    @classmethod
    def from_mapping(cls, values: Mapping[str, object], base: ThinClientSettings | None = None) -> ThinClientSettings:
        """Return settings by their keys, over those of `base`. Raises SettingsError."""
        read = REGISTRY.read_all(values)
        over = base if base is not None else cls()
        try:
            tls = replace(over.tls, **read[SecuritySettings]) if SecuritySettings in read else over.tls  # type: ignore[arg-type]
        except SettingsError:
            raise
        except CallerError as error:
            raise SettingsError(error.message, advice=error.advice) from None
        return replace(over, **read.get(cls, {}), tls=tls)  # type: ignore[arg-type]

    @classmethod
    def from_properties(cls, location: str | os.PathLike[str]) -> ThinClientSettings:
        """Return the settings of a properties file, by its path or `file:` URL. Raises SettingsError."""
        from metadata.foundation.properties import read_properties  # slow to load, and few clients have a file

        return cls.from_mapping(read_properties(location, SettingsError, named_by="the client's settings"))

    def with_values(self, values: Mapping[str, object]) -> ThinClientSettings:
        """Return a copy with other values, by key. Raises SettingsError."""
        return self.from_mapping(values, self)

    # ------------------------------------------------------------------ what is made of them

    def limits(self) -> RetryLimits:
        """Return what bounds the way of a request."""
        return RetryLimits(
            request_timeout_ms=self.request_timeout_ms,
            max_redirects=self.max_redirects,
            backoff_start_ms=self.redirect_backoff_start_ms,
            backoff_max_ms=self.redirect_backoff_max_ms,
            attempt_timeout_ms=self.attempt_timeout_ms,
            fail_fast=self.stream_failfast,
            resend_writes=self.resend_writes,
        )

    def ownerships(self) -> OwnershipCache:
        """Return an empty cache of owners."""
        return OwnershipCache(self.stream_name_regex, self.ownership_cache_streams)

    def handshakes(self) -> Handshakes:
        """Return when proxies are asked what they own."""
        return Handshakes(
            self.stream_name_regex,
            ownerships=self.handshake_with_client_info,
            interval_ms=self.periodic_handshake_interval_ms,
            sync_interval_ms=self.periodic_ownership_sync_interval_ms,
        )

    def credentials(self) -> ClientCredentials | None:
        """Return what is shown to proxies, under TLS; None where security is off. Raises SettingsError where what is to
        be shown cannot be read."""
        return client_credentials(self.tls, self.token_file)

    def own_region(self) -> str:
        """Return the region of this client; empty where nothing says it. Raises CallerError for the name of none in the
        environment."""
        return said_region(self.region)

    def route(self, hosts: tuple[ProxyHost, ...] = ()) -> Route:
        """Return the route within one region. Raises CallerError where `single-host` has another number of hosts."""
        if self.routing == SINGLE:
            single = SingleHost(hosts[0].address if hosts else "")
            single.update(hosts, 0.0)
            return single
        if self.routing == ORDER:
            return ServerOrder(hosts, blackout_s=self.blackout_ms / 1000)
        return HostRing(hosts, blackout_s=self.blackout_ms / 1000)

    def read_route(self, hosts: tuple[ProxyHost, ...] = ()) -> BoundedRing:
        """Return the route of readers within one region, which have no owners to find."""
        return BoundedRing(hosts, balance=self.read_balance, blackout_s=self.blackout_ms / 1000)

    def regions(self) -> tuple[str, ...]:
        """Return where each region's proxies are, the local one's first, without Finagle's marks: `host:port,host:port`
        or a namespace's URI. Empty where nothing is set. Raises SettingsError."""
        names = self.finagle_name_strs.split() if self.finagle_name_strs else [self.finagle_name_str]
        return tuple(_where(name) for name in names if name)


_ANNOUNCED: Final = re.compile(r"zk!([^!]+)!(/[^!]*)/\.write_proxy(![0-9]+)?")


def _where(name: str) -> str:
    """Return a Finagle name as the client's own words have it."""
    if name.startswith("inet!"):
        return name.removeprefix("inet!")
    found = _ANNOUNCED.fullmatch(name)
    if found is not None:
        return f"distributedlog://{found[1]}{found[2]}"
    if "!" in name or name.startswith("/"):
        raise SettingsError(
            f"the name {name!r} would have to be resolved by Finagle",
            advice="Write inet!host:port,host:port, zk!servers!/path/.write_proxy, or a namespace's URI",
        )
    return name


REGISTRY: Final = Registry(
    (ThinClientSettings, SecuritySettings), SettingsError, page=PAGE, refused={**WITHOUT_MEANING, **SECURITY_ELSEWHERE}
)
