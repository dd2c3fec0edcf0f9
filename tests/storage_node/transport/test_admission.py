"""Which connection is closed for a newcomer."""

from __future__ import annotations

from storage_node.transport.admission import IDLE_S, Admission


class Visitor:
    def __init__(self, address: str, number: int) -> None:
        self.peer = f"{address}:{number}"


def test_who_asked_nothing_goes_first_and_then_who_was_quiet_for_longest() -> None:
    now = [0.0]
    admission = Admission(lambda: now[0], 4)
    guests = [Visitor("h", number) for number in range(4)]
    assert [admission.arrived(guest) for guest in guests] == [None] * 4
    for guest in (guests[0], guests[2], guests[3]):
        now[0] += 1
        admission.heard(guest)
    late = Visitor("h", 9)
    assert admission.arrived(late) is guests[1], "it asked nothing"
    admission.heard(late)
    admission.heard(guests[1])
    assert len(admission) == 4, "one that has left is not counted again"
    refused = Visitor("h", 10)
    assert admission.arrived(refused) is refused, "all of them are in use"
    now[0] += IDLE_S
    admission.heard(guests[0])
    later = Visitor("h", 11)
    assert admission.arrived(later) is guests[2]
    for guest in (guests[0], guests[3], late, later, guests[2]):
        admission.left(guest)
    assert (len(admission), admission._heard, list(admission._silent)) == (0, {}, [])


def test_an_address_that_has_most_of_the_places_gives_one_to_others_and_not_to_itself() -> None:
    now = [0.0]
    admission = Admission(lambda: now[0], 5)
    crowd = [Visitor("10.0.0.1", number) for number in range(4)]
    for guest in (*crowd, Visitor("10.0.0.2", 1)):
        admission.arrived(guest)
        admission.heard(guest)
    honest = Visitor("10.0.0.3", 1)
    assert admission.arrived(honest) is crowd[0]
    admission.heard(honest)
    another = Visitor("10.0.0.1", 9)
    assert admission.arrived(another) is another
