"""`ColdChecker`: what must hold of a log whose past moves: every acknowledged record readable, once, in order, at every
moment; and of its files: what is named is there, and at the end nothing else is.

Records are numbers that only ever grow, each sent once. So a reader that sees a smaller number after a larger one, or a
number twice, has seen something wrong; and whatever was acknowledged before a look began, and is not hidden, is in it.

What may be hidden is decided here, from what was asked for, and from the ages of segments when the metadata change; not
from what the product says that it has hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from dlspark.cold.moving.owning import is_owner_mark
from dlspark.core.codec.dlsn import DLSN
from metadata.distributedlog.cold_places import UnitState
from metadata.distributedlog.cold_units import ColdLog, ColdUnit, parse_unit_name
from metadata.store import Create, Delete, Op, SetData

if TYPE_CHECKING:
    from dlspark.core.settings.settings import Settings
    from dlspark.objects.memory import MemoryBucket
    from simulation.cluster import World

SECOND_MS = 1000
"""An hour of retention in these runs: `runs` makes the product count so, too."""


class ColdChecker:
    """Is anything missing, there twice, or left over?"""

    def __init__(self, world: World, bucket: MemoryBucket) -> None:
        self._world = world
        self._bucket = bucket
        self.settings: Settings | None = None
        self.acknowledged: dict[int, DLSN] = {}
        """Numbers that their writer knows to be stored, with their positions."""
        self.sent: set[int] = set()
        self.asked_to_hide = DLSN(0, 0, 0)
        """The furthest that a truncation was asked for, answered or not."""
        self.expired = DLSN(0, 0, 0)
        """The end of the newest unit that went by its age."""
        self.units: dict[str, ColdUnit] = {}
        self.looks = 0

    @property
    def hidden_below(self) -> DLSN:
        """Records below may be missing; all others may not."""
        return max(self.asked_to_hide, self.expired)

    # ------------------------------------------------------------------ records

    def written(self, number: int, dlsn: DLSN) -> None:
        """Note that a record is acknowledged."""
        self.acknowledged[number] = dlsn

    def wanted(self) -> dict[int, DLSN]:
        """Return what is acknowledged now: a look that begins now must find it, unless it is hidden when it ends."""
        return dict(self.acknowledged)

    def looked(self, seen: Sequence[tuple[int, DLSN]], wanted: dict[int, DLSN], *, from_number: int = 0) -> None:
        """Judge a look from the number `from_number` on to the end that was there when it began."""
        self.looks += 1
        numbers = [number for number, _ in seen]
        fail = self._world.ledger_checkers.fail
        for before, after in pairwise(numbers):
            if after <= before:
                fail(f"record {after} was read behind record {before}")
        there = set(numbers)
        unknown = there - self.sent
        if unknown:
            fail(f"records were read that no one sent: {sorted(unknown)[:3]}")
        for number, dlsn in seen:
            if number in self.acknowledged and self.acknowledged[number] != dlsn:
                fail(f"record {number} was acknowledged at {self.acknowledged[number]} and read at {dlsn}")
        hidden_below = self.hidden_below
        missing = [
            number
            for number, dlsn in wanted.items()
            if number >= from_number and number not in there and dlsn >= hidden_below
        ]
        if missing:
            fail(f"acknowledged records are missing: {missing[:5]} of {len(missing)}, first at {wanted[missing[0]]}")

    # ------------------------------------------------------------------ metadata

    def metadata_applied(self, ops: Sequence[Op]) -> None:
        """Judge a transaction."""
        for op in ops:
            parts = op.path.rsplit("/", 2)
            if parts[-1] == "cold" and isinstance(op, SetData):
                self._hides(ColdLog.decode(op.data, op.path), op.path)
            elif len(parts) == 3 and parts[1] == "units" and parse_unit_name(parts[2]) is not None:
                self._unit(op, parts[2])

    def _unit(self, op: Op, name: str) -> None:
        world = self._world
        if isinstance(op, Delete):
            gone = self.units.pop(name)
            world.reached("cold.unit-gone")
            if gone.file is not None and gone.file.url in self._bucket.objects:
                world.ledger_checkers.fail(f"unit {name} has gone, and its file has not")
        elif isinstance(op, Create | SetData):
            before, unit = self.units.get(name), ColdUnit.decode(op.data, op.path)
            if (before is None or before.state is not unit.state) and unit.state is not UnitState.COLD_DELETE_STARTED:
                # A mark, and all the more the end of the hot copies, is for a file that is there, whole.
                self._is_whole(unit)
            world.reached(f"cold.{unit.state.value.lower()}")
            self.units[name] = unit

    def _is_whole(self, unit: ColdUnit) -> None:
        if unit.file is not None:
            data = self._bucket.objects.get(unit.file.url)
            if data is None or len(data) != unit.file.bytes:
                self._world.ledger_checkers.fail(f"unit {unit.name} is {unit.state.value}, and its file is not whole")

    def _hides(self, cold: ColdLog, path: str) -> None:
        """Judge how far a log is hidden: as far as someone asked, or a unit of the age that may go."""
        to = DLSN(*cold.truncated_to)
        if to <= self.hidden_below:
            return
        now_ms = self._world.tree._now_ms()
        hours = self.settings.cold_retention_hours if self.settings is not None else -1
        for unit in self.units.values():
            last = unit.segments[-1].metadata
            end = DLSN(last.lssn + 1, 0, 0)
            within = DLSN(unit.first, 0, 0) <= to <= end
            if within and 0 < hours * SECOND_MS <= now_ms - last.completion_time_ms:
                self.expired = max(self.expired, to)
                self._world.reached("cold.expired")
                return
        self._world.ledger_checkers.fail(
            f"{path} hides everything below {to}; none asked for more than {self.hidden_below}"
        )

    # ------------------------------------------------------------------ the end

    def tidy(self) -> None:
        """Judge the bucket after the sweep: what units name, and nothing else."""
        named = {unit.file.url for unit in self.units.values() if unit.file is not None}
        bucket = self._bucket
        for what, some in (
            ("objects are left that nothing names", {one for one in bucket.objects if not is_owner_mark(one)} - named),
            ("files are missing", named - set(bucket.objects)),
            ("uploads are left open", {one.url for one in bucket.open_uploads}),
        ):
            if some:
                self._world.ledger_checkers.fail(f"{what}: {sorted(some)[:3]}")
