"""A node's name, and what it learns from the process that was this node before.

Name. The id is `bookieId`, else `host:port`; the host is `advertisedAddress`, else the listening address, else this
machine's address (by `useHostNameAsBookieID`: its name). A machine that knows itself only by a loopback address is
called by its name, since no other machine could use that address.

Location. What `networkLocation` says is noted in metadata (docs/reference/znodes.md#topology) before the node is
registered, and stays there while it is away. A node that came back elsewhere changes it; not while another process is
registered as this node: then it is where that one is. A node that says nothing leaves what is noted: a recovery may
need to know where its copies are. It goes when the node is taken out for good (`tools.cluster`).

Mode (docs/reference/node-files.md#bookie_status). Where `persistBookieStatusEnabled` is on, `BOOKIE_STATUS` lies in
every ledger directory, one line as BookKeeper writes it: `1,READ_ONLY,<milliseconds>` or `1,READ_WRITE,<milliseconds>`.
The newest one counts. Nothing depends on it: a node that cannot write it goes on.

Session (docs/reference/node-files.md#session). A killed node's session is ended by its successor, which need not wait
for it to expire. The token of the metadata session lies in a file beside the journal from before the node registers. A
node that starts holds the locks of all its directories, so the process that wrote the file is dead, and it was this
bookie (the cookies say so). Ending its session is what an expiry does, only earlier: the store orders the end, and
refuses whatever a dead process's connection may still carry, so neither a late registration nor a late withdrawal can
follow. Should the locks have lied (directories shared between machines), the other node finds its session expired,
which it survives. Whatever goes wrong here costs time only: the registration then waits for the session to expire.
"""

from __future__ import annotations

import asyncio
import binascii
import logging
import socket
from collections.abc import Sequence
from functools import partial
from importlib import metadata as installed

from metadata.bookkeeper.bookies import BookieAddress, BookieRegistry
from metadata.bookkeeper.topology import TopologyStore
from metadata.foundation.addresses import address_text
from metadata.foundation.errors import CorruptDataError, DistributedLogError
from metadata.security.listening import ListeningRule, is_loopback
from metadata.security.settings import SecurityMode
from metadata.store import MetadataStore, SessionState
from storage_node.edge import Disk
from storage_node.errors import BookieConfigurationError
from storage_node.settings.bookie import BookieSettings

_ANY = ("", "0.0.0.0", "::")  # noqa: S104  # compared with


def software_version() -> str | None:
    """Return the installed version of this software, for operators; None where it runs without being installed."""
    try:
        return installed.version("dlspark")
    except installed.PackageNotFoundError:
        return None


def name_bookie(settings: BookieSettings, port: int) -> BookieAddress:
    """Return the node's id and address. Raises BookieConfigurationError for a loopback address that the settings do not
    ask for.
    """
    host = settings.advertised_address or _own_host(settings)
    if not settings.allow_loopback and not settings.advertised_address and is_loopback(host):
        raise BookieConfigurationError(
            f"the node would advertise the loopback address {host}",
            advice="Set advertisedAddress, or allowLoopback=true for a cluster on one machine",
        )
    return BookieAddress(settings.bookie_id or address_text(host, port), host, port)


def _own_host(settings: BookieSettings) -> str:
    listening = settings.listening_address
    if settings.use_host_name_as_bookie_id:
        return socket.gethostname() if listening in _ANY else socket.getfqdn(listening)
    if listening not in _ANY:
        return listening
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError:
        return name
    # Debian's /etc/hosts gives the own name a loopback address, which no other host could dial.
    return name if is_loopback(address) else address


def listening_host(settings: BookieSettings) -> str:
    """Return the address that the node listens on. Raises BookieConfigurationError where others could reach it, nothing
    is secured, and the settings do not say that this is meant. `security=optional` is such a word: a cluster that is
    being changed over takes plain connections on purpose."""
    rule = ListeningRule(
        "the storage node", "listeningAddress", settings.insecure_listen, error=BookieConfigurationError
    )
    secured = settings.security.server_mode() is not SecurityMode.OFF
    return rule.host(settings.listening_address, secured=secured, advertised=settings.advertised_address)


logger = logging.getLogger(__name__)


async def announce_location(
    topology: TopologyStore, registry: BookieRegistry, bookie_id: str, location: str | None
) -> None:
    """Note where the node is; None: it does not say, and what is noted stays. Raises NodeExistsError where another
    process is registered as this node, CorruptDataError, and the metadata store's errors."""
    try:
        known = await topology.read()
    except CorruptDataError as error:
        if location is not None:
            raise
        logger.warning("whether metadata has a location of this node is not known: %s", error)
        return
    former = known.location_of(bookie_id)
    if former == location:
        return
    if location is None:
        # A file without the line (an older one, a new image) does not mean that the node has no place: taken out here,
        # open ledgers whose entries count by regions could not be recovered while it is not known where it lies.
        logger.warning(
            "bookie %s: networkLocation is not set; in metadata it stays at %s, which it announced before. Set it, or "
            "copies are placed by what may be wrong if the node was moved",
            bookie_id,
            former,
        )
        return
    # Directories that were copied pass the check of the cookie: what a living node has announced is not changed.
    await registry.outlast_predecessor(bookie_id)
    await topology.announce(bookie_id, location)
    logger.info("bookie %s: its network location is %s, it was %s", bookie_id, location, former)


STATUS_FILE = "BOOKIE_STATUS"
LAYOUT = "1"
READ_ONLY, READ_WRITE = "READ_ONLY", "READ_WRITE"


def write_status(disk: Disk, directories: Sequence[str], *, read_only: bool, now_ms: int) -> None:
    """Leave the mode in every directory (`current` folders)."""
    data = f"{LAYOUT},{READ_ONLY if read_only else READ_WRITE},{now_ms}\n".encode()
    for directory in directories:
        try:
            disk.write_file(f"{directory}/{STATUS_FILE}", data)
        except OSError as error:
            logger.warning("the node's mode could not be written to %s: %s", directory, error)


def was_read_only(disk: Disk, directories: Sequence[str]) -> bool:
    """Return what the newest readable file says; False where there is none."""
    found: list[tuple[int, bool]] = []
    for directory in directories:
        data = disk.read_file(f"{directory}/{STATUS_FILE}")
        if data is None:
            continue
        layout, mode, stamp = ([*data.decode("ascii", "replace").strip().split(","), "", ""])[:3]
        if layout == LAYOUT and mode in (READ_ONLY, READ_WRITE) and stamp.isdecimal():
            found.append((int(stamp), mode == READ_ONLY))
        else:
            logger.warning("%s/%s is not readable and left out", directory, STATUS_FILE)
    # The newest file: a directory that was away keeps an old one.
    return max(found)[1] if found else False


SESSION_FILE = "SESSION"
END_TIMEOUT_S = 10.0


class SessionFile:
    """The file of one node; `keep` follows the store's session until `close`."""

    def __init__(self, disk: Disk, directory: str, store: MetadataStore) -> None:
        self._disk = disk
        self._path = f"{directory}/{SESSION_FILE}"
        self._store = store
        self._kept = b""
        self._writing: asyncio.Task[None] | None = None
        self._unsubscribe = store.on_session(self._session_changed)

    async def end_former(self) -> None:
        """End the session of the process that ran here before, if it left one. All directories must be locked."""
        text = self._disk.read_file(self._path)
        if not text:
            return
        try:
            token = binascii.unhexlify(text.strip())
            # A node that was killed is still registered by this session, and its next start would wait for the timeout.
            await asyncio.wait_for(self._store.end_session(token), END_TIMEOUT_S)
        except (ValueError, DistributedLogError, asyncio.TimeoutError) as error:
            logger.warning("the former session was not ended, it has to expire: %s", error)

    async def keep(self) -> None:
        """Write the current session's token down, durably. Failing costs the next start time, so it is only logged."""
        # The session may expire while its token is written: then the next one's is written, too.
        while (token := self._store.session_token) and token != self._kept:
            data = binascii.hexlify(token) + b"\n"
            try:
                await self._disk.submit("files", partial(self._disk.write_file, self._path, data))
            except OSError as error:
                logger.warning("the session could not be written to %s: %s", self._path, error)
                return
            self._kept = token

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED and self._kept and (self._writing is None or self._writing.done()):
            self._writing = asyncio.get_running_loop().create_task(self.keep())

    async def close(self, *, ended: bool) -> None:
        """Follow no longer. `ended`: nothing of the session is left in the store, the file may go."""
        self._unsubscribe()
        if self._writing is not None:
            await asyncio.wait([self._writing])
        if ended and self._kept:
            try:
                self._disk.remove(self._path)
            except OSError as error:
                logger.warning("%s could not be removed: %s", self._path, error)
