"""What stands between a proxy's bindings and its service: the audit trail, and the rights of whoever asks.

Each is opened before a binding is, and left on the proxy's stack, to be ended after it.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Final

from dlspark.core.namespace import AsyncNamespace
from dlspark.serving.bindings.service import ProxyService
from dlspark.serving.process.access import AccessKeys
from dlspark.serving.process.rights_door import RightsDoor
from metadata.distributedlog.rights_store import RightsStore, RightsWatch
from metadata.foundation.tasks import end_tasks
from metadata.security.audit import NOWHERE, Noted

RECHECK_S: Final = 2.0
"""Waiting reads are looked at so often: a proof that has expired ends them within this."""


def open_audit(access: AccessKeys, ending: AsyncExitStack) -> Noted:
    """Return the audit trail that the settings ask for. Raises CallerError where it cannot be written."""
    trail = access.open_audit()
    if trail is None:
        return NOWHERE
    ending.callback(trail.close)  # the very last step: nothing is served any more that it could hold up
    return trail


async def open_entrance(
    service: ProxyService,
    namespace: AsyncNamespace,
    access: AccessKeys,
    noted: Noted,
    ending: AsyncExitStack,
    *,
    demands_proof: bool,
) -> RightsDoor:
    """Return the door before `service`, which keeps to the namespace's rules from here on.

    Raises InvalidRuleError for a super user that is not one, MetadataUnavailableError or OutcomeUnknownError where
    ZooKeeper does not answer.
    """
    rights = RightsStore(namespace.store, namespace.uri.path)
    watch = RightsWatch(rights, access.super_subjects(), max_age_s=access.rights_max_age_s)
    changed = asyncio.Event()
    watch.on_change = changed.set
    await watch.start()
    ending.push_async_callback(watch.close)
    door = RightsDoor(
        service,
        lambda: watch.book,
        demands_proof=demands_proof,
        noted=noted,
        notes_all=bool(access.audit_log) and access.audit_allowed == "all",
    )
    rechecking = asyncio.get_running_loop().create_task(_recheck(door, changed))
    ending.push_async_callback(end_tasks, [rechecking], drop_errors=True)
    return door


async def _recheck(door: RightsDoor, changed: asyncio.Event) -> None:
    while True:
        try:
            await asyncio.wait_for(changed.wait(), RECHECK_S)
        except asyncio.TimeoutError:
            pass
        changed.clear()
        await door.recheck()
