"""docs/security/attacks.md and the tests agree: each row names a test that is there, and each kind of attack of
test_attacks.py has a row."""

from __future__ import annotations

import ast
import re
from functools import cache

from helpers.documents import pages
from helpers.parsing import parse
from helpers.paths import DOCS, ROOT
from helpers.security.attack_kinds import HANDSHAKES, PIECES, REQUESTS, TOKENS

ROWS = [row for _, row in pages.table_rows(DOCS / "security" / "attacks.md") if row[0].isdigit()]
TESTS = [row[-1].strip("`") for row in ROWS]
OWN = "tests/test_attacks.py"


@cache
def texts(path: str) -> frozenset[str]:
    """Return all strings of a file, and the names of its functions: ids of parameters are made of these."""
    nodes = list(ast.walk(parse((ROOT / path).read_text())))
    said = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return frozenset(said | {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)})


def test_there_are_at_least_a_hundred_attacks_in_order_and_each_row_is_whole() -> None:
    assert [int(row[0]) for row in ROWS] == list(range(1, len(ROWS) + 1))
    assert len(ROWS) >= 100
    assert [row for row in ROWS if len(row) != 5 or not all(cell.strip() for cell in row)] == []


def test_every_row_is_shown_by_a_test_that_exists() -> None:
    missing = []
    for named in TESTS:
        test, _, parameter = named.removesuffix("]").partition("[")
        path, _, name = test.partition("::")
        known = path == OWN or not parameter or parameter in texts(path)
        if not (name and known and pages.is_test(test)):
            missing.append(named)
    assert missing == []


def test_every_kind_of_attack_has_a_row_and_no_other() -> None:
    kinds: dict[str, set[str]] = {}
    for named in TESTS:
        found = re.fullmatch(rf"{OWN}::(\w+)\[(.+)\]", named)
        if found is not None:
            kinds.setdefault(found[1], set()).add(found[2])
    assert kinds == {
        "test_who_does_not_prove_itself_is_not_heard": set(HANDSHAKES),
        "test_what_is_no_handshake_is_not_heard": set(PIECES),
        "test_a_token_that_proves_nothing_is_refused": set(TOKENS),
        "test_what_nobody_allowed_is_refused": set(REQUESTS),
    }


def test_every_test_of_attacks_is_named() -> None:
    functions = parse((ROOT / OWN).read_text()).body
    tests = {
        node.name for node in functions if isinstance(node, ast.AsyncFunctionDef) and node.name.startswith("test_")
    }
    named = {named.partition("::")[2].partition("[")[0] for named in TESTS if named.startswith(OWN)}
    controls = {"test_who_proves_itself_is_heard_at_every_door", "test_a_good_token_is_taken"}
    assert tests - named == controls
