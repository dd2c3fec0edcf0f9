"""Readers of the Java DistributedLog core and ours beside each other: their locks, and the positions of subscribers."""

from __future__ import annotations

import pytest
from helpers.interop.clusters import both_versions
from helpers.interop.log_sides import OWNERSHIP_FAILED, JavaLog, expected, java_view, our_log, our_view, we_write

from dlspark import DLSN
from dlspark.testing.java_process import JavaError, JavaTool
from metadata.distributedlog.locks import OwnershipAcquireFailedError


@both_versions
def test_subscribers_go_on_where_the_other_librarys_reader_committed(java: JavaTool, version: str, uri: str) -> None:
    name = f"subscribed-{version}"
    javas = JavaLog(java, uri, name)
    with our_log(uri, name) as log:
        dlsns = we_write(log, 0, 30)
        with log.open_reader(subscriber="s") as reader:
            assert our_view(reader.read_bulk(10)) == expected(dlsns)[:10]
            committed = reader.commit_position()
        assert javas.call("positions") == {"s": str(committed)}
        reading = javas.call("locked_reader", subscriber="s")
        assert java_view(javas.call("next", reader=reading, count=10)) == expected(dlsns)[10:20]
        javas.call("close_reader", reader=reading)
        javas.call("commit_position", subscriber="s", dlsn=dlsns[20])
        javas.call("commit_position", subscriber="of Java", dlsn=dlsns[5])
        assert log.subscribers() == {"s": DLSN.parse(dlsns[20]), "of Java": DLSN.parse(dlsns[5])}
        with log.open_reader(subscriber="s") as reader:
            assert our_view(reader.read_bulk(10)) == expected(dlsns)[20:]
        log.delete_subscriber("of Java")
        assert list(javas.call("positions")) == ["s"]


@both_versions
@pytest.mark.parametrize("subscriber", ["s", None])
def test_locked_readers_of_both_libraries_exclude_each_other(
    java: JavaTool, version: str, uri: str, subscriber: str | None
) -> None:
    name = f"locked-{version}-{subscriber}"
    javas = JavaLog(java, uri, name)
    how = {"dlsn": "1:0:0"} if subscriber is None else {"subscriber": subscriber}
    with our_log(uri, name) as log:
        we_write(log, 0, 3)

        def ours():
            return log.open_reader(exclusive=True) if subscriber is None else log.open_reader(subscriber=subscriber)

        with ours():
            with pytest.raises(JavaError) as refused:
                javas.call("locked_reader", **how)
            assert refused.value.code == OWNERSHIP_FAILED
        reading = javas.call("locked_reader", **how)
        with pytest.raises(OwnershipAcquireFailedError):
            ours()
        javas.call("close_reader", reader=reading)
        with ours() as reader:
            assert len(reader.read_bulk(3)) == 3
