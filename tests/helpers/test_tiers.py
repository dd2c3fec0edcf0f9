"""Each test is in one of the two tiers, and what CI runs has both, once."""

from __future__ import annotations

import ast
import re
import subprocess

import pytest

from helpers.paths import ROOT, TESTS
from helpers.tiers import LIST, Tier, has_none_of, keep_tier, second_tier

LONG = re.compile(r"\bpytest\.mark\.long\b")


class NoHook:
    def __init__(self) -> None:
        self.hook = self
        self.left_out: list[object] = []

    def pytest_deselected(self, items: list[object]) -> None:
        self.left_out += items


class ItemOf:
    def __init__(self, nodeid: str) -> None:
        self.nodeid = f"tests/{nodeid}"
        self.path = TESTS / nodeid.partition("::")[0]


FAST, SLOW = ItemOf("cli/test_common.py::test_x"), ItemOf("spark/test_chispa.py::test_x[a]")
TYPED = ItemOf("spark/sink/test_sink_appends.py::test_y[3-json-b]")
PLAIN = ItemOf("spark/sink/test_sink_appends.py::test_y[3-raw-b]")
FLEETS = "simulation/test_simulated_proxies.py"
SAME = "test_the_same_seed_gives_the_same_fleet_whatever_the_hashes_of_strings_are"
ONE, OTHER = ItemOf(f"{FLEETS}::test_x"), ItemOf(f"{FLEETS}::{SAME}[of-any-kind]")


@pytest.mark.parametrize(
    ("tier", "kept"),
    [
        (Tier.FIRST, [FAST, ONE, PLAIN]),
        (Tier.SECOND, [SLOW, OTHER, TYPED]),
        (Tier.ALL, [FAST, SLOW, ONE, OTHER, TYPED, PLAIN]),
    ],
)
def test_a_tier_has_what_the_other_has_not(tier: Tier, kept: list[ItemOf]) -> None:
    config, items = NoHook(), [FAST, SLOW, ONE, OTHER, TYPED, PLAIN]
    keep_tier(tier, config, items)  # type: ignore[arg-type]
    assert items == kept
    assert not any(has_none_of(tier, item.path) for item in kept)
    assert sorted(map(id, [*items, *config.left_out])) == sorted(map(id, [FAST, SLOW, ONE, OTHER, TYPED, PLAIN]))


def test_a_file_is_not_imported_for_a_tier_that_has_nothing_of_it() -> None:
    assert [has_none_of(Tier.FIRST, item.path) for item in (FAST, SLOW, ONE)] == [False, True, False]
    assert [has_none_of(Tier.SECOND, item.path) for item in (FAST, SLOW, ONE)] == [True, False, False]
    assert not has_none_of(Tier.SECOND, TESTS / "conftest.py")


def test_what_is_listed_is_there() -> None:
    lines = LIST.read_text().splitlines()
    assert lines == sorted(second_tier())
    for line in lines:
        file, _, test = line.partition("::")
        text = (TESTS / file).read_text()
        name, _, parameter = test.partition("[")
        assert not name or f"def {name}(" in text, line
        assert name or "-" not in parameter, f"{line}: a hyphen separates parameters"
        assert not parameter.endswith(".ipynb]") or (ROOT / "notebooks" / parameter[:-1]).exists(), line


def test_what_is_listed_is_not_left_out_of_every_tier() -> None:
    """Nothing of a line whose tests are all `long` is run by CI, and the line looks as if it were."""
    assert {line: which for line in second_tier() if not (which := run_by_ci(line))} == {}


def run_by_ci(line: str) -> list[str]:
    """Return the tests that a line names, as far as they are not marked `long` as a whole."""
    file, _, test = line.partition("::")
    name = test.partition("[")[0]
    body = ast.parse((TESTS / file).read_text()).body
    of_file = [one.value for one in body if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "pytestmark"]
    if any(LONG.search(ast.unparse(one)) for one in of_file):
        return []
    tests = [one for one in body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [
        one.name
        for one in tests
        if (one.name == name or (not name and one.name.startswith("test_")))
        and not any(ast.unparse(mark) == "pytest.mark.long" for mark in one.decorator_list)
    ]


def test_each_test_is_run_by_a_target() -> None:
    """Those that are left out without --rounds, too."""
    plan = planned("torture")
    assert '-m "torture or long" --rounds 50' in plan


def test_what_ci_runs_has_every_check_once() -> None:
    plan = "".join(
        planned(*made.split()) for made in re.findall(r"^make (.+)$", (ROOT / ".ci" / "run").read_text(), re.M)
    )
    assert re.findall(r"--tier (\w+)", plan) == [Tier.FIRST.value, Tier.SECOND.value]
    for tool in ("ruff check", "ruff format --check", "bin/mypy", "lint-imports"):
        assert plan.count(tool) == 1, tool


def test_ci_runs_the_first_tier_without_the_compiled_core_and_the_second_one_with_it() -> None:
    lines = [line.strip() for line in (ROOT / ".ci" / "run").read_text().splitlines()]
    assert lines[-5:] == [
        "make test",
        "if sh .ci/has-rust; then",
        "make speed compiled",
        "fi",
        "make unit TIER=second",
    ]
    # What the first tier has left out without a core is all that is run here.
    (tests,) = (line for line in planned("compiled").splitlines() if "pytest" in line)
    assert "-k compiled tests/" in tests


def planned(*targets: str) -> str:
    """Return the commands of targets."""
    return subprocess.run(
        ["make", "--dry-run", "--no-print-directory", *targets],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
