"""Option `proxy`: what it may say, and what is wrong with all else, before anything is asked."""

from __future__ import annotations

import pickle

import pytest

from dlspark.spark.errors import OptionError
from dlspark.spark.metadata_tables.registry import requested
from dlspark.spark.options.proxies import MAX_ADDRESSES, ProxyChoice
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.source.selection import SourceQuery

URI = "distributedlog://host:2181/path"


@pytest.mark.parametrize("text", ["discover", " Discover ", "DISCOVER"])
def test_discover_is_a_word_in_any_case(text: str) -> None:
    choice = Options({"proxy": text}, Scope.SOURCE_BATCH).proxies
    assert choice == ProxyChoice()
    assert choice.discover


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("proxy-1:8100", ("proxy-1:8100",)),
        (" proxy-1:8100 , 10.0.0.2:8100 ", ("proxy-1:8100", "10.0.0.2:8100")),
        ("[::1]:8100,[fe80::1%eth0]:1", ("[::1]:8100", "[fe80::1%eth0]:1")),
        ("a_b.example.org:65535", ("a_b.example.org:65535",)),
    ],
)
def test_a_list_has_the_addresses_of_proxies(text: str, addresses: tuple[str, ...]) -> None:
    choice = Options({"PROXY": text}, Scope.SINK_STREAM).proxies
    assert choice is not None
    assert choice.addresses == addresses
    assert not choice.discover


@pytest.mark.parametrize(
    ("text", "says", "advice"),
    [
        ("", "is empty", "leave it out"),
        ("   ", "is empty", "leave it out"),
        ("discovery", "'discovery' is not discover", "Did you mean discover"),
        ("dicsover", "'dicsover' is not discover", "Did you mean discover"),
        ("true", "'true' is not the address of a proxy: it has no port", "Write discover"),
        ("proxy-1", "has no port", "proxy-1:8100,proxy-2:8100"),
        ("discover,proxy-1:8100", "'discover' is not discover or the address", "discover"),
        ("proxy-1:", "is not host:port", "dlspark proxy list"),
        (":8100", "is not host:port", "dlspark proxy list"),
        ("proxy-1:http", "is not host:port", "dlspark proxy list"),
        ("proxy-1:\u0661\u0662", "is not host:port", "dlspark proxy list"),
        ("proxy-1:-1", "is not host:port", "dlspark proxy list"),
        ("proxy-1:0", r"port outside 1\.\.65535", "dlspark proxy list"),
        ("proxy-1:65536", r"port outside 1\.\.65535", "dlspark proxy list"),
        ("proxy-1:8100,,proxy-2:8100", "no proxy between two commas", "proxy-1:8100,proxy-2:8100"),
        ("proxy-1:8100,", "no proxy between two commas", "proxy-1:8100,proxy-2:8100"),
        ("proxy-1:8100 proxy-2:8100", "is not host:port", "proxy-1:8100,proxy-2:8100"),
        ("proxy-1:8100;proxy-2:8100", "is not host:port", "proxy-1:8100,proxy-2:8100"),
        ("::1:8100", "is not host:port", "proxy-1:8100"),
        ("[::1:8100", "is not host:port", "proxy-1:8100"),
        ("http://proxy-1:8100", "is a URI", "host:port without more"),
        (URI, "is a URI", "Write discover"),
        ("proxy-1:8100/path", "is not host:port", "proxy-1:8100"),
        ("a:1,b:2,A:1", "names a:1 twice", "once"),
        ("x" * 300 + ":1", r"\(302 characters\)|is not host:port", "proxy-1:8100"),
        (",".join(f"p{n}:1" for n in range(MAX_ADDRESSES + 1)), "names 1,001 proxies", "Name fewer"),
    ],
)
def test_what_is_neither_is_refused_with_a_way_on(text: str, says: str, advice: str) -> None:
    for scope in (Scope.SOURCE_BATCH, Scope.SOURCE_STREAM, Scope.SINK_BATCH, Scope.SINK_STREAM):
        with pytest.raises(OptionError, match=says) as caught:
            Options({"proxy": text}, scope)
        assert advice in str(caught.value.advice)
        assert "Option proxy" in caught.value.message
        assert len(str(caught.value)) < 1_000


def test_a_session_has_a_default_that_a_query_overrides() -> None:
    session = {"proxy": "discover"}
    assert Options({}, Scope.SOURCE_STREAM, session).proxies == ProxyChoice()
    assert Options({"proxy": "a:1"}, Scope.SOURCE_STREAM, session).proxies == ProxyChoice(("a:1",))
    assert Options({}, Scope.SOURCE_STREAM).proxies is None
    with pytest.raises(OptionError, match=r"Conf spark\.distributedlog\.proxy: .*no port"):
        Options({}, Scope.SINK_BATCH, {"proxy": "a"})


def test_a_source_hands_it_on_and_options_survive_pickling() -> None:
    options = Options({"proxy": "a:1,b:2", "uri": URI, "log": "x"}, Scope.SOURCE_BATCH)
    assert SourceQuery.of(pickle.loads(pickle.dumps(options))).proxies == ProxyChoice(("a:1", "b:2"))
    assert SourceQuery.of(Options({"uri": URI, "log": "x"}, Scope.SOURCE_BATCH)).proxies is None


def test_a_metadata_table_is_read_from_zookeeper_and_refuses_it() -> None:
    with pytest.raises(OptionError, match="proxy"):
        requested(Options({"metadata": "logs", "proxy": "discover"}, Scope.SOURCE_BATCH))
    assert requested(Options({"metadata": "logs"}, Scope.SOURCE_BATCH, {"proxy": "discover"})) is not None
