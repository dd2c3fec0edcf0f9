"""The two tiers of the tests: `make test` runs the first, `make check` then the second, `make unit` both.

The first has nearly every pure test, the simulation, and each real part (storage nodes, Spark, proxies, Java, the
command line) at work once: what a newcomer runs. `second_tier.txt` lists the others: in each line a file, a single
test, with all of its parameters or some, or the tests of a file with one parameter, `file::[parameter]`. What is not
listed is in the first.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import pytest

from helpers.paths import TESTS

LIST = TESTS / "second_tier.txt"


class Tier(str, Enum):
    """What `--tier` chooses."""

    FIRST = "first"
    SECOND = "second"
    ALL = "all"


def second_tier() -> frozenset[str]:
    """Return the files, below this folder, and ids of tests that are in the second tier."""
    return frozenset(LIST.read_text().splitlines())


def has_none_of(tier: Tier, path: Path) -> bool:
    """Return whether no test of a file is in this tier, so that its import, longer than its tests, is spared."""
    if tier is Tier.ALL or not path.name.startswith("test_"):
        return False
    name, second = path.relative_to(TESTS).as_posix(), second_tier()
    if tier is Tier.FIRST:
        return name in second
    return not any(line.partition("::")[0] == name for line in second)


def keep_tier(tier: Tier, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave only the tests of this tier in `items`."""
    if tier is Tier.ALL:
        return
    second = second_tier()
    others: list[pytest.Item] = []
    kept: list[pytest.Item] = []
    for item in items:
        file = item.path.relative_to(TESTS).as_posix()
        name = item.nodeid.partition("::")[2]
        parameters = name.partition("[")[2].removesuffix("]").split("-")
        named = [f"{file}::{name}", f"{file}::{name.partition('[')[0]}", *(f"{file}::[{one}]" for one in parameters)]
        listed = file in second or not second.isdisjoint(named)
        (kept if listed is (tier is Tier.SECOND) else others).append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = kept
