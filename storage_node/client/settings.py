"""`ClientSettings`: every time limit and bound of the ledger client, with BookKeeper's defaults."""

from __future__ import annotations

from dataclasses import dataclass, field

from metadata.errors import CallerError
from storage_node.client.placement.settings import PlacementSettings
from storage_node.protocol.frames import MAX_FRAME_BYTES


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Times in milliseconds, counted from the moment a request is handed to its connection."""

    add_entry_timeout_ms: int = 5_000
    """An add without an answer counts as failed after this, and its bookie is replaced."""
    read_entry_timeout_ms: int = 5_000
    """Every other request."""
    speculative_read_ms: int = 2_000
    """A read without an answer is put to the next replica as well after this."""
    long_poll_ms: int = 2_500
    """Longest wait asked of a bookie in one long poll; it must stay below `read_entry_timeout_ms`."""
    connect_timeout_ms: int = 10_000
    failure_memory_ms: int = 60_000
    """For so long a bookie that failed or was slow is asked last, and taken last for new ensembles."""
    replacement_pause_ms: int = 5_000
    """For so long a bookie that failed is not taken as a replacement while the writer can do without."""
    replacement_timeout_ms: int = 2_000
    """How long an ensemble change waits for the list of bookies while the writer can do without a replacement."""
    vacancy_retry_ms: int = 1_000
    """How often a writer that could not replace a bookie tries again."""
    delay_ensemble_change: bool = False
    """Replace bookies only when an entry could not reach its ack quorum otherwise, or a bookie is read-only."""
    max_outstanding_bytes: int = 64 * 1024 * 1024
    """`LedgerWriter.wait_for_room` waits while more than this is unacknowledged, or queued for one bookie."""
    recovery_window_entries: int = 16
    """Entries that a recovery reads ahead of what it has replicated again."""
    max_frame_bytes: int = MAX_FRAME_BYTES
    """Largest frame that the bookies take; an entry has to fit with its headers."""
    placement: PlacementSettings = field(default_factory=PlacementSettings)
    """Which bookies an ensemble is made of."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, int) and not isinstance(value, bool) and value <= 0:
                raise CallerError(f"{name} is {value}", advice="It must be above 0")
        if self.long_poll_ms >= self.read_entry_timeout_ms:
            raise CallerError(
                f"long_poll_ms ({self.long_poll_ms}) is not below read_entry_timeout_ms ({self.read_entry_timeout_ms})",
                advice="Every long poll would end as a timeout; lower the one or raise the other",
            )

    @property
    def sweep_interval_s(self) -> float:
        """How often time limits are looked at."""
        shortest = min(self.add_entry_timeout_ms, self.read_entry_timeout_ms, self.speculative_read_ms)
        return min(max(shortest / 8, 2), 250) / 1000
