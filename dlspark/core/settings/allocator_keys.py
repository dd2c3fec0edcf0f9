"""Settings of how ledgers are made for segments."""

from __future__ import annotations

from dataclasses import dataclass

from dlspark.core.settings.keys import flag, number, text


@dataclass(frozen=True)
class AllocatorKeys:
    """Ledger allocation"""

    allocator_pool: bool = flag(
        False,
        "enableLedgerAllocatorPool",
        "Whether ledgers are made in advance, in a pool for all logs whose quorums are the namespace's",
        dynamic=True,
    )
    allocator_pool_path: str = text(
        ".allocation_pool",
        "ledgerAllocatorPoolPath",
        "Folder of allocator pools in the namespace; begins with a dot",
        per_log=False,
    )
    allocator_pool_name: str = text(
        "",
        "ledgerAllocatorPoolName",
        "Name of this process's pool, which no other process has; required for enableLedgerAllocatorPool",
        per_log=False,
    )
    allocator_pool_size: int = number(
        20,
        "ledgerAllocatorPoolCoreSize",
        "Ledgers that the pool has ready",
        minimum=1,
        maximum=10_000,
        per_log=False,
    )
