"""Bindings of namespaces: make, find, change and remove them.

Each function opens a ZooKeeper session of its own and closes it, because without a binding there is no namespace to
open. `settings` default to those of the environment, as for `Namespace.open`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

from dlspark.core.opening import connect_logs
from dlspark.core.settings.settings import Settings
from metadata.distributedlog.bindings import Binding
from metadata.distributedlog.namespaces import NamespaceStore, NamespaceUri
from metadata.foundation.settings import Value

SettingsLike = Settings | Mapping[str, Value] | None


def settings_from(settings: SettingsLike) -> Settings:
    """Return the settings to use: a whole `Settings` as it is, single values over those of the environment."""
    if isinstance(settings, Settings):
        return settings
    return Settings.from_environment() if settings is None else Settings.from_environment().with_values(settings)


@asynccontextmanager
async def _namespace(uri: str, settings: SettingsLike) -> AsyncIterator[tuple[NamespaceUri, NamespaceStore]]:
    parsed = NamespaceUri.parse(uri)
    store = await connect_logs(parsed.servers, settings_from(settings))
    try:
        yield parsed, NamespaceStore(store, parsed.path)
    finally:
        await store.close()


async def bind(
    uri: str,
    *,
    ledgers_path: str = "/ledgers",
    ledger_servers: str | None = None,
    ledger_reader_servers: str | None = None,
    log_servers: str | None = None,
    log_reader_servers: str | None = None,
    sanity_check_txid: bool = True,
    encode_region_id: bool = False,
    acl_root: str | None = None,
    first_lssn: int | None = None,
    federated: bool = False,
    create: bool = True,
    settings: SettingsLike = None,
) -> Binding:
    """Make a namespace at `uri`, whose ledgers are in the BookKeeper cluster at `ledgers_path`.

    `ledger_servers` is that cluster's ZooKeeper ("host:port,host:port") if it is not the URI's, `log_servers` that of
    the logs' metadata; readers use the same servers unless they have their own (observers, for example).
    `acl_root` is the name, as `.acl`, below which access control is kept (`AsyncNamespace.access_control`).
    `first_lssn` is the number of each log's first segment. With `encode_region_id` segments hold the region of their
    writer. `federated` spreads the logs over sub-namespaces. `sanity_check_txid` is stored for upstream's tools.
    Without `create` the path must exist.

    Binding again replaces the binding; logs stay. After an OutcomeUnknownError it may be called again. Raises
    CallerError for values that contradict each other, or to make a federated namespace a plain one; NotBoundError for a
    missing path.
    """
    async with _namespace(uri, settings) as (parsed, namespace):
        binding = Binding(
            bk_servers=ledger_servers or parsed.servers,
            ledgers_path=ledgers_path,
            dl_servers=log_servers or parsed.servers,
            bk_reader_servers=ledger_reader_servers,
            dl_reader_servers=log_reader_servers,
            sanity_check_txid=sanity_check_txid,
            encode_region_id=encode_region_id,
            acl_root_path=acl_root,
            first_lssn=first_lssn,
            federated=federated,
        )
        await namespace.bind(binding, create=create)
        return binding


async def find_binding(uri: str, *, settings: SettingsLike = None) -> tuple[Binding, str]:
    """Return the binding in force at `uri`, and the path that has it: its own or an ancestor's. Raises
    NotBoundError."""
    async with _namespace(uri, settings) as (_, namespace):
        return await namespace.find()


async def update_binding(uri: str, *, settings: SettingsLike = None, **changes: str | int | bool | None) -> Binding:
    """Change fields of the namespace's own binding (those of `Binding`); returns the new one.

    Raises NotBoundError where the path itself is not bound, CallerError as `bind` does, TypeError for an unknown field.
    """
    async with _namespace(uri, settings) as (_, namespace):
        return await namespace.update(lambda binding: replace(binding, **changes))  # type: ignore[arg-type]


async def unbind(uri: str, *, force: bool = False, settings: SettingsLike = None) -> None:
    """Take a namespace's binding away. Its logs stay, out of reach until it is bound again.

    Raises NamespaceInUseError where there are logs, unless `force`; NotBoundError for a missing path.
    """
    async with _namespace(uri, settings) as (_, namespace):
        await namespace.unbind(force=force)
