"""The judge of the fault histories passes good ones and sees every way in which one can be bad."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.faults.judge import judge

W, R = "writer", "reader"


class Story:
    """Makes histories shorter to write: events with ascending times."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def add(self, number: int, outcome: str = "", position: int | None = None, *, stream: int = 1) -> Story:
        self.say(W, "add", "invoke", value=f"{W}.{number}", stream=stream)
        return self.end(number, outcome, position, stream=stream) if outcome else self

    def end(self, number: int, outcome: str, position: int | None = None, *, stream: int = 1) -> Story:
        more = {"position": number if position is None else position} if outcome == "ok" else {}
        return self.say(W, "add", outcome, value=f"{W}.{number}", stream=stream, **more)

    def contents(self, *numbers: int | None, who: str = "auditor", stream: int = 1, last: int | None = None) -> Story:
        values = [[n, None if number is None else f"{W}.{number}"] for n, number in enumerate(numbers)]
        last = len(numbers) - 1 if last is None else last
        return self.say(who, "contents", "ok", values=values, last=last, stream=stream)

    def read(self, position: int, number: int | None, who: str = R) -> Story:
        value = None if number is None else f"{W}.{number}"
        return self.say(who, "read", "ok", position=position, value=value, stream=1)

    def say(self, who: str, what: str, is_: str, **more: object) -> Story:
        self.events.append({"at": len(self.events), "who": who, "what": what, "is": is_, **({"stream": 1} | more)})
        return self


def three() -> Story:
    """Three acknowledged entries."""
    return Story().add(0, "ok").add(1, "ok").add(2, "ok")


def kinds(story: Story) -> set[str]:
    return {violation.kind for violation in judge(story.events)}


def test_a_history_without_faults_passes() -> None:
    story = three().say(R, "lac", "ok", lac=0).read(0, 0).read(1, 1).say(R, "lac", "ok", lac=2)
    assert judge(story.say(W, "close", "ok", last=2).contents(0, 1, 2).contents(0, 1, 2, who="other").events) == []


def test_unknown_entries_may_be_there_or_not_and_failed_ones_are_absent() -> None:
    story = three().add(3, "unknown").add(4).add(5, "failed").add(6, "unknown").say(R, "recover", "ok", last=4)
    assert judge(story.contents(0, 1, 2, 3, 4).events) == []


def test_entries_begun_before_a_recovery_may_be_acknowledged_after_it() -> None:
    assert judge(three().add(3).say(R, "recover", "ok", last=3).end(3, "ok").contents(0, 1, 2, 3).events) == []


def test_positions_of_a_log_are_triples_and_several_processes_may_write() -> None:
    story = Story()
    for who, number, position in (("a", 0, [1, 0, 0]), ("b", 0, [2, 0, 0]), ("a", 1, [3, 0, 5])):
        value = f"{who}.{number}"
        story.say(who, "add", "invoke", value=value, stream="log")
        story.say(who, "add", "ok", value=value, stream="log", position=position)
    values = [[[1, 0, 0], "a.0"], [[2, 0, 0], "b.0"], [[3, 0, 5], "a.1"]]
    assert judge(story.say("auditor", "contents", "ok", values=values, stream="log").events) == []
    values.reverse()
    assert "order" in kinds(story.say("other", "contents", "ok", values=values, stream="log2"))


@pytest.mark.parametrize(
    ("story", "kind"),
    [
        (three().contents(0, 1), "lost"),
        (three().contents(0, 2, 1), "lost"),
        (three().add(3, "failed").contents(0, 1, 2, 3), "resurrected"),
        (three().add(3, "unknown").contents(0, 1, 2, 3, 3), "twice"),
        (three().contents(0, 1, 2).add(0, stream=2).contents(0, stream=2), "twice"),
        (three().contents(0, None, 2), "damaged"),
        (three().contents(0, 1, 2, 9), "invented"),
        (Story().add(0).add(1).contents(1, 0), "order"),
        (three().say(R, "contents", "ok", values=[[0, f"{W}.0"], [2, f"{W}.2"]], last=2), "gap"),
        (three().contents(0, 1, 2).contents(0, 1, who="other"), "disagree"),
        (three().say(R, "recover", "ok", last=1).contents(0, 1, 2), "two ends"),
        (three().say(W, "close", "ok", last=1).say(R, "recover", "ok", last=2).contents(0, 1, 2), "two ends"),
        (three().read(3, 3).contents(0, 1, 2), "past the end"),
        (three().read(1, 2).contents(0, 1, 2), "changed"),
        (three().read(1, None).contents(0, 1, 2), "changed"),
        (three().read(0, 0).read(2, 2).contents(0, 1, 2), "skipped"),
        (three().read(1, 1).read(0, 0).contents(0, 1, 2), "skipped"),
        (three().say(R, "lac", "ok", lac=2).say(R, "lac", "ok", lac=1).contents(0, 1, 2), "LAC back"),
        (three().say(R, "lac", "ok", lac=3).contents(0, 1, 2), "LAC beyond the end"),
        (three().say(R, "recover", "ok", last=3).add(3, "ok").contents(0, 1, 2, 3), "late acknowledgement"),
        (three(), "not audited"),
        (three().end(0, "failed").contents(0, 1, 2), "bad history"),
        (three().end(7, "ok").contents(0, 1, 2), "bad history"),
    ],
)
def test_a_bad_history_is_seen(story: Story, kind: str) -> None:
    assert kind in kinds(story)
