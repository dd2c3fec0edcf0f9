"""Namespaces, synchronously: the same as `AsyncNamespace`, on real storage nodes and once on a real ZooKeeper."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from helpers.security.secured_runs import zookeeper_security

from dlspark import Namespace, Permissions, Runtime
from dlspark.testing.cluster import NAMESPACE_PATH
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.distributedlog.namespaces import NamespaceInUseError, NamespaceStore, NotBoundError
from metadata.distributedlog.permissions import Action, RequestDeniedError
from metadata.foundation.errors import CallerError
from metadata.zookeeper.embedded import EmbeddedZooKeeper


def test_logs_are_listed_renamed_and_keep_their_applications_bytes(namespace):
    namespace.create_log("team/orders", b"owner: me")
    with namespace.open_log("team/orders") as log:
        with log.open_writer() as writer:
            writer.write(1, b"first").result()
        found = log.metadata()
        assert (found.value, found.version) == (b"owner: me", 0)
        assert log.set_metadata(b"owner: you", found.version) == 1
    assert namespace.logs() == ["team"]
    assert namespace.logs("team") == ["orders"]
    namespace.rename_log("team/orders", "team/sales")
    assert namespace.logs(recursive=True) == ["team/sales"]
    with namespace.open_log("team/sales") as log:
        assert log.first_record().payload == b"first"
        assert log.metadata().value == b"owner: you"
        log.delete_metadata()
        assert log.metadata().value == b""
    with pytest.raises(LogNotFoundError):
        namespace.rename_log("team/orders", "other")


def test_logs_that_come_are_iterated_over(namespace):
    namespace.create_log("a")
    changes = namespace.watch_logs(existing=True)
    assert next(changes).name == "a"
    namespace.create_log("b")
    change = next(changes)
    assert (change.name, change.added) == ("b", True)
    namespace.delete_log("a")
    change = next(changes)
    assert (change.name, change.added) == ("a", False)
    changes.close()


def test_the_end_of_the_namespace_ends_the_iteration(runtime, background_cluster):
    namespace = Namespace(runtime, runtime.run(background_cluster.connect()))
    namespace.create_log("a")
    names = []
    told = threading.Event()

    def watch() -> None:
        for change in namespace.watch_logs(existing=True):
            names.append(change.name)
            told.set()

    thread = threading.Thread(target=watch)
    thread.start()
    assert told.wait(60)
    namespace.close()
    thread.join(60)
    assert not thread.is_alive()
    assert names == ["a"]


def test_access_control_is_set_and_kept(runtime, background_cluster):
    binding = NamespaceStore(background_cluster.operator, NAMESPACE_PATH)
    runtime.run(binding.update(lambda found: replace(found, acl_root_path=".acl")))
    with Namespace(runtime, runtime.run(background_cluster.connect())) as namespace:
        access = namespace.access_control
        access.set(Permissions(deny_write=True), "closed")
        assert access.get() is None
        assert access.get("closed") == access.of("closed") == Permissions(deny_write=True)
        assert access.logs() == ["closed"]
        with namespace.open_log("closed") as log, pytest.raises(RequestDeniedError):
            log.open_writer()
        with pytest.raises(RequestDeniedError):
            access.check("closed", Action.WRITE)
        assert access.delete("closed")
        access.check("closed", Action.WRITE)


def test_properties_tell_what_the_namespace_is(namespace):
    assert namespace.uri.path == NAMESPACE_PATH
    assert namespace.binding.ledgers_path == "/ledgers"
    assert namespace.settings.long_poll_ms == 300
    assert not namespace.federated
    with pytest.raises(CallerError):
        namespace.access_control  # noqa: B018


@pytest.mark.processes
def test_a_binding_is_made_found_changed_and_taken_away(tmp_path):
    with EmbeddedZooKeeper(tmp_path / "zookeeper", security=zookeeper_security()) as zookeeper:
        uri = f"distributedlog://{zookeeper.address}/logs"
        try:
            Namespace.bind(uri, federated=True, first_lssn=3)
            binding, path = Namespace.find_binding(f"{uri}/below")
            assert (binding.first_lssn, binding.federated, path) == (3, True, "/logs")
            assert Namespace.update_binding(uri, first_lssn=4).first_lssn == 4
            with Namespace.open(uri) as namespace:
                assert namespace.federated
                namespace.create_log("log")
            with pytest.raises(NamespaceInUseError):
                Namespace.unbind(uri)
            Namespace.unbind(uri, force=True)
            with pytest.raises(NotBoundError):
                Namespace.open(uri)
        finally:
            Runtime.shared().close()
