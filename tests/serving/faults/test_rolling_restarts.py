"""All write proxies are restarted one after the other, under load: no request fails, nothing is there twice.

A proxy that is stopped hands its logs over to the others first; a client hears of that, and goes to where its log is.
So a restart costs a pause, and no failure. How long writes took that were under way or made while a log moved is
printed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

import pytest
from helpers.serving.rounds import PROXIES, Tier, Written, now_s, row

pytestmark = [pytest.mark.processes, pytest.mark.torture]

DEFAULT_ROUNDS = 1
FEW = (24, 12)
MANY = (200, 50)
"""Logs and clients: in the ordinary command, and with --rounds."""
BETWEEN_S = 0.5


def longest_writes(told: Sequence[Written], logs: set[str], begin_s: float, end_s: float) -> Mapping[str, float]:
    """By log, how long the slowest write took that was under way between two times."""
    slowest: dict[str, float] = {}
    for one in told:
        if one.log in logs and one.sent_s <= end_s and one.done_s >= begin_s:
            slowest[one.log] = max(slowest.get(one.log, 0.0), one.done_s - one.sent_s)
    return slowest


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory, rounds: int | None) -> Iterator[Tier]:
    logs, clients = FEW if rounds is None else MANY
    directory, pause_s = tmp_path_factory.mktemp("rolling"), 0.03 * clients / FEW[1]
    opened = Tier(directory, logs=logs, clients=clients, pause_s=pause_s, cut_clients=False)
    try:
        opened.warm_up()
        yield opened
    finally:
        opened.close()


def restart(tier: Tier, proxy: str) -> tuple[set[str], float, float]:
    """Restart a proxy in order; the logs that it had, and when it began and had ended to stop."""
    owned = tier.owned_by(proxy)
    began_s = now_s()
    tier.stop_proxy(proxy)
    ended_s = now_s()
    tier.start_proxy(proxy)
    return owned, began_s, ended_s


def test_a_rolling_restart_fails_no_request(tier: Tier, rounds: int | None) -> None:
    pauses: list[float] = []
    stops: list[float] = []
    others: list[float] = []
    for number in range(DEFAULT_ROUNDS if rounds is None else rounds):
        tier.go()
        time.sleep(BETWEEN_S)  # the round's own time, not a synchronisation
        restarts = []
        for proxy in PROXIES:
            restarts.append(restart(tier, proxy))
            time.sleep(BETWEEN_S)
        told = tier.settle()
        bad = [one for one in told if one.outcome != "ok"]
        assert not bad, f"restart {number}: {len(bad)} of {len(told)} writes failed: {bad[:3]}"
        for owned, began_s, ended_s in restarts:
            pauses += longest_writes(told, owned, began_s, ended_s).values()
            stops.append(ended_s - began_s)
        others += [
            one.done_s - one.sent_s
            for one in told
            if all(one.done_s < began_s or one.sent_s > ended_s for _, began_s, ended_s in restarts)
        ]
        tier.check()
    print(f"\n{'milliseconds':<28} {'count':>6} {'p50':>9} {'p99':>9} {'most':>9}")
    print(row("slowest write of a moved log", pauses, 1000))
    print(row("writes at other times", others, 1000))
    print(row("stop of a proxy", stops, 1000))


def test_the_logs_are_whole_once_all_has_ended(tier: Tier) -> None:
    tier.settle()
    for proxy in PROXIES:
        tier.stop_proxy(proxy)
    assert tier.check() > 0
