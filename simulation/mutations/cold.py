"""Rules of cold storage that keep the only copy of a record: each taken out, a run with cold storage has to notice."""

from __future__ import annotations

from dlspark.cold.moving import sweeping
from dlspark.cold.moving.unit_steps import UnitSteps
from simulation.mutations.mutation import Method, Mutation, edited


def _nothing(original: Method) -> object:
    async def mutated(self: UnitSteps) -> None:
        """Believe that what was written is there."""

    return mutated


COLD = {
    "finish-unread": Mutation("a file is read back before it counts", UnitSteps, "_read_back", _nothing),
    "sweep-named": Mutation(
        "what a unit names is not swept", sweeping, "_sweep", edited(("marks.dead(info.url)", "marks.owns(info.url)"))
    ),
    "delete-object-late": Mutation("a unit goes only once its file is gone", UnitSteps, "_delete_object", _nothing),
}
