"""Options and fixtures that every test directory shares."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from helpers import quick_start
from helpers.security.secured_runs import OPTION, SecuredRuns
from helpers.sharing import Durations, longest_first
from helpers.tiers import Tier, has_none_of, keep_tier

pytest_plugins = ["helpers.worlds.fixtures", "helpers.cold.fixtures"]

quick_start.use()

# A shell that runs the tests in the background makes them ignore SIGINT, and so would every process they start; tests
# send it to processes as a terminal's Ctrl-C does.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rounds",
        type=int,
        default=None,
        help="seeded rounds of each fault test (default: what fits into the ordinary test command)",
    )
    parser.addoption("--tier", type=Tier, default=Tier.ALL, help="only this tier of the tests: first, second, or all")
    parser.addoption("--seed", type=int, default=None, help="replay one seed of a seeded fault test")
    parser.addoption(OPTION, action="store_true", help="on secured clusters: mutual TLS on all that tests start")
    parser.addoption("--write-durations", action="store_true", help="write tests/durations.txt: seconds by file")


def pytest_configure(config: pytest.Config) -> None:
    use_properties(config)
    if config.getoption("--write-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations())
    if config.getoption(OPTION):
        config.pluginmanager.register(SecuredRuns())


def use_properties(config: pytest.Config) -> None:
    """Set up tests of properties: no time is asserted, and the ordinary command tries the same examples each time; the
    long rounds draw others, and more of them."""
    ordinary = config.getoption("--rounds") is None
    hypothesis.settings.register_profile(
        "dlspark",
        deadline=None,
        derandomize=ordinary,
        max_examples=40 if ordinary else 400,
        print_blob=True,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("dlspark")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Pass over files without a test of the tier, which are not asked further; None leaves the decision to pytest."""
    return has_none_of(config.getoption("--tier"), collection_path) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests marked `long`, of minutes to hours, without --rounds (`make torture`); then sort by time."""
    if config.getoption("--rounds") is None:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("long")])
        items[:] = [item for item in items if not item.get_closest_marker("long")]
    keep_tier(config.getoption("--tier"), config, items)
    longest_first(items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Give pytest's handlers of log lines pytest's format: they are added to each logger that does not propagate, and
    one of PySpark's own (there is one after an error in SQL) gives every handler that it gets the format of JSON."""
    plugin = item.config.pluginmanager.get_plugin("logging-plugin")
    for handler in (plugin.caplog_handler, plugin.report_handler):
        handler.setFormatter(plugin.formatter)


@pytest.fixture
def no_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a home without a sandbox, and no variable: no namespace is found unless it is named."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("DLSPARK_URI", raising=False)
    return home


@pytest.fixture
def no_umask() -> Iterator[None]:
    """Have files made with the permissions that their maker gives, and no others withheld."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def open_file_limits() -> Iterator[None]:
    """Restore the limits on open files, which a test changes."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture(scope="session")
def rounds(request: pytest.FixtureRequest) -> int | None:
    """Give the number given by --rounds, or None: each test has a default of its own."""
    value: int | None = request.config.getoption("--rounds")
    return value


@pytest.fixture(scope="session")
def seed(request: pytest.FixtureRequest) -> int | None:
    """Give the seed given by --seed, or None: every round has a seed of its own."""
    value: int | None = request.config.getoption("--seed")
    return value
