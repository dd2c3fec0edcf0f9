"""Bytes that connections hold together."""

from __future__ import annotations

from storage_node.transport.budgets import Budget


def test_a_budget_calls_when_a_quarter_is_free_again() -> None:
    budget = Budget(100)
    called: list[str] = []
    budget.change(150)
    assert budget.exceeded
    budget.wait(lambda: called.append("free"))
    budget.change(-60)
    assert called == []
    budget.change(-20)
    assert called == ["free"]
    budget.change(-20)
    assert called == ["free"]
