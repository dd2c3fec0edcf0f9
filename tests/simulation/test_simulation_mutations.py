"""The mutation check itself: each mutation can be made, changes what it says, and leaves the product as it was."""

from __future__ import annotations

from unittest import mock

import pytest

from simulation import mutations
from simulation.mutations.mutation import Mutation, edited


def test_every_mutation_is_made_and_taken_back() -> None:
    """Many edit a line of the product's text: where that line has moved, this says so."""
    for name, mutation in mutations.MUTATIONS.items():
        before = getattr(mutation.owner, mutation.attribute)
        with mutations.applied(name):
            assert getattr(mutation.owner, mutation.attribute) is not before, name
        assert getattr(mutation.owner, mutation.attribute) is before, name


class Lamp:
    def __init__(self) -> None:
        self.lit = self.warm = False

    def light(self) -> None:
        self.lit = True

    def warm_up(self) -> None:
        self.warm = True


def test_rules_that_make_up_for_each_other_go_together() -> None:
    dark = {
        "light": Mutation("it is lit", Lamp, "light", edited(("self.lit = True", "pass")), also=("warm-up",)),
        "warm-up": Mutation("it is warm", Lamp, "warm_up", edited(("self.warm = True", "pass"))),
    }
    lamp = Lamp()
    with mock.patch.object(mutations, "MUTATIONS", dark), mutations.applied("light"):
        lamp.light()
        lamp.warm_up()
    assert (lamp.lit, lamp.warm) == (False, False)
    lamp.light()
    lamp.warm_up()
    assert (lamp.lit, lamp.warm) == (True, True)


@pytest.mark.parametrize("text", ["no such text", "self"])
def test_an_edit_of_what_is_not_there_once_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not once"):
        edited((text, "pass"))(Lamp.__init__)
