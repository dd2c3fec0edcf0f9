"""The benchmark of security does what it measures: one side is under TLS, and the other one is not.

The whole of it, on a small scale, runs with --rounds.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.security import Ground, Grounds, SecurityBenchmark, door_times_us
from metadata.security.rights import Decision
from metadata.security.settings import SecurityMode

pytestmark = pytest.mark.processes


@pytest.mark.long
def test_a_small_round_fills_every_row_with_what_can_be(tmp_path: Path) -> None:
    with ExitStack() as stack:
        grounds = Grounds(tmp_path, stack, nodes=1, again=False)
        small = SecurityBenchmark(grounds, clients=1, rules=10)
        small.round(0.1)
        assert all(len(row.measured) == 1 and not row.faults for row in small.rows), [
            (row.what, row.faults) for row in small.rows
        ]
        assert {row.key for row in small.rows} == {"P39", "P40", "P41", "P42", "P43"}
        assert (grounds.open.security.client_mode({}), grounds.secured.security.client_mode({})) == (
            SecurityMode.OFF,
            SecurityMode.ON,
        )
        assert speaks_tls(grounds.secured)
        assert not speaks_tls(grounds.open)


def speaks_tls(ground: Ground) -> bool:
    """Ask the proxy itself: what the rows compare is not what settings say."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, _, port = ground.proxy.address.rpartition(":")
    with socket.create_connection((host, int(port)), 10) as sock:
        try:
            context.wrap_socket(sock).close()
        except (ssl.SSLError, ConnectionError):
            return False
    return True


def test_a_door_that_refuses_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(time_us > 0 for time_us in door_times_us(100, 0.01))
    monkeypatch.setattr("metadata.security.rights.RuleBook._decide", lambda *_: Decision(False, "nobody may"))
    with pytest.raises(Exception, match="refused at the rights door"):
        door_times_us(100, 0.01)
