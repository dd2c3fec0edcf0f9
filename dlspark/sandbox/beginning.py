"""What a sandbox's ZooKeeper has from its first start on: the BookKeeper tree, the namespace, and the first rule."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from dlspark.sandbox.state import NAMESPACE_PATH

if TYPE_CHECKING:
    from metadata.security.settings import SecuritySettings
    from metadata.store import MetadataStore
    from metadata.zookeeper.client import ZooKeeperStore

LEDGERS_PATH: Final = "/ledgers"


async def initialise(
    servers: str, quorums: tuple[int, int, int] | None = None, security: SecuritySettings | None = None
) -> None:
    """Format the BookKeeper tree and bind the namespace; both are left alone where they exist, but for `quorums`: the
    ensemble size, write quorum and ack quorum of writers whose settings do not say others. `security`: who does it,
    where ZooKeeper is secured."""
    from metadata.bookkeeper.ledgers import LedgerStore
    from metadata.distributedlog.bindings import Binding
    from metadata.distributedlog.namespaces import NamespaceStore, NotBoundError
    from metadata.security.settings import SecuritySettings
    from metadata.zookeeper.securing import open_session

    # Whatever the environment names: that of another cluster, or of a secured sandbox that ran before.
    store = await open_session(servers, security or SecuritySettings(security="off"))
    try:
        await LedgerStore(store, LEDGERS_PATH).format()
        namespace = NamespaceStore(store, NAMESPACE_PATH)
        try:
            bound = await namespace.resolve()
        except NotBoundError:
            await namespace.bind(replace(Binding.for_cluster(servers, LEDGERS_PATH), quorums=quorums))
        else:
            if bound.quorums != quorums:
                await namespace.update(lambda binding: replace(binding, quorums=quorums))
        if security is not None:
            await _first_rule(store)
            await _close_top(store, security)
    finally:
        await store.close()


async def _close_top(store: ZooKeeperStore, security: SecuritySettings) -> None:
    """Keep who has a certificate and no rights from filling the server's memory at its top, where it is open to all."""
    from metadata.zookeeper.list_change import TOP, ListChange, top_list
    from metadata.zookeeper.securing import session_access

    access = session_access(security)
    await ListChange(store, access, top_list(access.entries)).run_at(TOP)


async def _first_rule(store: MetadataStore) -> None:
    """Let clients do with logs what they may without a proxy, unless there are rules, or were."""
    from metadata.distributedlog.rights_store import RIGHTS, RightsStore
    from metadata.security.rights import LogPattern, Rule, Subject, Verb

    if await store.exists(f"{NAMESPACE_PATH}/{RIGHTS}") is not None:
        return
    verbs = frozenset(Verb) - {Verb.ADMINISTER}
    rule = Rule(True, Subject.parse("role:client"), verbs, LogPattern.parse("*"))
    await RightsStore(store, NAMESPACE_PATH).change(add=[rule])
