"""How sessions with ZooKeeper follow from a process's settings: TLS, identities, lists. All are opened here."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from metadata.foundation.errors import CallerError
from metadata.security.settings import SecurityMode, SecuritySettings, client_identity
from metadata.store import RetryPolicy
from metadata.zookeeper.access import (
    SECRET_FILE,
    WORLD_READS,
    Access,
    Credential,
    access_by_id,
    folder_credential,
    named_identities,
    shared_credential,
    shared_entries,
)
from metadata.zookeeper.tls_socket import ClientTls, FixedTls

if TYPE_CHECKING:
    from metadata.zookeeper.client import ZooKeeperStore

logger = logging.getLogger(__name__)


def session_tls(settings: SecuritySettings, environment: Mapping[str, str] | None = None) -> ClientTls | None:
    """Return by which certificates a session speaks TLS, None for clear text. Raises IdentityError, and CallerError
    where TLS is demanded and there are no certificates."""
    if not speaks_tls(settings, environment):
        return None
    identity = client_identity(settings, environment)
    if identity is None:
        raise CallerError(
            "zookeeper.client.secure=true, and security is off: there is no certificate to show",
            advice="Set security=on and securityDirectory as well",
        )
    return identity if settings.tls_cert_files_refresh_duration_s else FixedTls(identity.client_context())


def speaks_tls(settings: SecuritySettings, environment: Mapping[str, str] | None = None) -> bool:
    """Return whether sessions are by TLS. `security=optional` means TLS here: a server's port takes both kinds before
    the first process speaks it, so an attempt in clear text after TLS has failed would only serve who stands between.
    """
    if settings.zookeeper_client_secure is not None:
        return settings.zookeeper_client_secure
    switched = bool(settings.security) or not settings.tls_provider_factory_class
    return switched and settings.client_mode(environment) is not SecurityMode.OFF


def session_access(
    settings: SecuritySettings,
    acl_id: str = "",
    *,
    restrict: bool = True,
    environment: Mapping[str, str] | None = None,
) -> Access:
    """Return who a session is, and whose its znodes are.

    With upstream's `acl_id` and `restrict` they are that identity's, and readable for all. Else they are the cluster's
    where its settings say so; under `security=optional` they are open, as processes that have not been changed yet must
    write them too. Raises CallerError for a secret or identities that cannot be used, and where lists are demanded that
    would name nobody.
    """
    shared = _shared(settings, environment)
    named = named_identities(settings.zk_acl_identities)
    by_id = access_by_id(acl_id, restrict=restrict)
    credentials = by_id.credentials + (() if shared is None else (shared,))
    if by_id.entries:
        entries = (by_id.entries[0], *(entry for entry in named if entry not in by_id.entries), WORLD_READS)
        return Access(credentials, entries, needs_tls=shared is not None)
    lists = settings.zk_enable_security
    if lists is None:
        lists = settings.client_mode(environment) is SecurityMode.ON and speaks_tls(settings, environment)
    entries = shared_entries(shared, named, world_reads=settings.zk_acl_world_read) if lists else ()
    if settings.zk_enable_security and not entries:
        raise CallerError(
            "zkEnableSecurity=true, and no identity is there that a cluster's processes share: lists of the creator's "
            "certificate alone would shut all others out",
            advice="Set zkAclSecretPath (or have zookeeper.secret in securityDirectory), or zkAclIdentities",
        )
    if lists and not entries:
        # Not refused: a client that only reads, whose folder has no secret on purpose, opens sessions as well.
        folder = settings.client_folder(environment)
        where = f"no {SECRET_FILE} in {folder}" if folder else "zkAclSecretPath is not set"
        logger.warning(
            "what this process creates in ZooKeeper is open to all whom ZooKeeper lets in, and what others have closed "
            "it may not use: %s, and zkAclIdentities names nobody with all rights (zkEnableSecurity=false: meant so)",
            where,
        )
    return Access(credentials, entries, needs_tls=shared is not None)


def _shared(settings: SecuritySettings, environment: Mapping[str, str] | None) -> Credential | None:
    if settings.zk_acl_secret_path:
        return shared_credential(settings.zk_acl_secret_path)
    folder = settings.client_folder(environment)
    if not folder or not speaks_tls(settings, environment):
        return None  # A folder has it for sessions by TLS; it is never sent in clear text.
    return folder_credential(Path(folder))


async def open_session(
    servers: str,
    settings: SecuritySettings,
    *,
    session_timeout_ms: int = 30_000,
    connect_timeout_ms: int = 10_000,
    acl_id: str = "",
    restrict: bool = True,
    requests_per_second: float = 0.0,
    retry_policy: RetryPolicy | None = None,
) -> ZooKeeperStore:
    """Open a session as the settings, and this process's environment, say. Raises as `ZooKeeperStore.connect`,
    `session_tls` and `session_access`."""
    # Imported here: everything else works over any metadata store, without a ZooKeeper client installed.
    from metadata.zookeeper.client import ZooKeeperStore

    return await ZooKeeperStore.connect(
        servers,
        session_timeout_ms=session_timeout_ms,
        connect_timeout_ms=connect_timeout_ms,
        tls=session_tls(settings),
        access=session_access(settings, acl_id, restrict=restrict),
        requests_per_second=requests_per_second,
        retry_policy=retry_policy,
    )
