"""A real Apache Pulsar broker on secured nodes of ours, over a ZooKeeper that speaks TLS alone.

Identities are made as by `dlspark tls`. The broker's ledger client speaks protocol version 2, whose connections
begin with version 3's START_TLS, and AUTH behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from helpers.interop.pulsar_broker import MAX_LEDGER_ENTRIES, BrokerSecurity, PulsarBroker
from helpers.interop.secured import SASL_OF_CLIENTS, SASL_OF_NODES

from dlspark.testing.java_process import OutOfReachError
from metadata.security.authority import CertificateAuthority
from metadata.zookeeper.embedded import EmbeddedZooKeeper
from metadata.zookeeper.secure_server import ServerSecurity

pulsar = pytest.importorskip("pulsar", reason="Apache Pulsar's Python client is not installed")

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
HOSTS = ("127.0.0.1", "localhost")
FACTORY = "org.apache.bookkeeper.tls.TLSContextFactory"
PROOFS = ("certificate", "DIGEST-MD5")
RECEIVE_MS = 60_000
PART = 2 * MAX_LEDGER_ENTRIES
JAAS = """
Bookie { org.apache.zookeeper.server.auth.DigestLoginModule required user_bookkeeper-pulsar="a secret"; };
BookKeeper { org.apache.zookeeper.server.auth.DigestLoginModule required
    username="bookkeeper-pulsar" password="a secret"; };
"""
_topics = count(1)


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the identities of a ZooKeeper, the nodes and the broker."""
    folder = tmp_path_factory.mktemp("identities") / "tls"
    CertificateAuthority.create(folder)
    with CertificateAuthority.open_in(folder) as authority:
        for name in ("zookeeper", "node"):
            authority.issue(name, [name], HOSTS)
        authority.issue("pulsar", ["client"])
    own, store = folder / "pulsar", folder / "pulsar-zookeeper.pem"
    # ZooKeeper's client wants key and certificates in one file.
    store.write_bytes((own / "key.pem").read_bytes() + (own / "certificate.pem").read_bytes())
    store.chmod(0o600)
    return folder


def of_broker(identities: Path) -> dict[str, object]:
    own = identities / "pulsar"
    return {
        "bookkeeperTLSProviderFactoryClass": FACTORY,
        "bookkeeperTLSClientAuthentication": "true",
        "bookkeeperTLSKeyFileType": "PEM",
        "bookkeeperTLSKeyFilePath": own / "key.pem",
        "bookkeeperTLSCertificateFilePath": own / "certificate.pem",
        "bookkeeperTLSTrustCertTypes": "PEM",
        "bookkeeperTLSTrustCertsFilePath": own / "authorities.pem",
        "bookkeeperUseV2WireProtocol": "true",
        # Of 16, the default: each makes an SSL context of its own, on the one thread that also sees time-outs.
        "bookkeeperNumberOfChannelsPerBookie": 1,
    }


def of_zookeeper(identities: Path) -> tuple[str, ...]:
    settings = {
        "client.secure": "true",
        "clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
        "ssl.keyStore.location": identities / "pulsar-zookeeper.pem",
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": identities / "pulsar" / "authorities.pem",
        "ssl.trustStore.type": "PEM",
    }
    return tuple(f"-Dzookeeper.{key}={value}" for key, value in settings.items())


@pytest.fixture(params=PROOFS)
def broker(
    request: pytest.FixtureRequest, identities: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PulsarBroker]:
    directory = tmp_path_factory.mktemp("pulsar")
    node: dict[str, object] = {
        "security": "on",
        "securityDirectory": identities / "node",
        "authorizedRoles": "client,node",
        # The broker reads what nodes create in ZooKeeper: registrations and the layout.
        "zkAclIdentities": "x509:CN=pulsar,OU=client:r",
    }
    settings = of_broker(identities)
    flags = of_zookeeper(identities)
    if request.param == "DIGEST-MD5":
        jaas = directory / "jaas.conf"
        jaas.write_text(JAAS)
        jaas.chmod(0o600)
        node |= {"bookieAuthProviderFactoryClass": SASL_OF_NODES, "saslJaasConfigurationFile": jaas}
        settings |= {
            "bookkeeperClientAuthenticationPlugin": SASL_OF_CLIENTS,
            "bookkeeperClientAuthenticationParametersName": "saslJaasClientSectionName",
            "bookkeeperClientAuthenticationParameters": "BookKeeper",
        }
        flags += (f"-Djava.security.auth.login.config={jaas}", "-Dzookeeper.sasl.client=false")
    security = ServerSecurity.of_folder(identities / "zookeeper")
    with EmbeddedZooKeeper(directory / "zookeeper", security=security) as zookeeper:
        try:
            started = PulsarBroker(zookeeper.address, directory, BrokerSecurity(node, settings, flags))
        except OutOfReachError as reason:
            pytest.skip(str(reason))
        try:
            started.set_up()
            yield started
        finally:
            started.stop()


def body(number: int) -> bytes:
    return b"message %d " % number + bytes(number % 400)


def test_a_topic_on_secured_nodes_outlives_a_killed_node_and_a_killed_broker(broker: PulsarBroker) -> None:
    path = f"persistent://public/default/secured-{next(_topics)}"
    client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    acknowledged: list[int] = []
    try:
        client.subscribe(path, "keeper").close()
        producer = client.create_producer(path, send_timeout_millis=0, block_if_queue_full=True, batching_enabled=False)

        def send(part: int) -> None:
            for number in range(part * PART, (part + 1) * PART):

                def confirmed(result: pulsar.Result, _id: object, number: int = number) -> None:
                    assert result == pulsar.Result.Ok
                    acknowledged.append(number)

                producer.send_async(body(number), confirmed)

        send(0)
        broker.nodes[0].kill()
        send(1)
        producer.flush()
        broker.restore()
        broker.kill()
        broker.start()
        send(2)
        producer.flush()
        assert acknowledged == list(range(3 * PART))
        reader = client.create_reader(path, pulsar.MessageId.earliest)
        received: list[int] = []
        while not received or received[-1] != 3 * PART - 1:
            data = reader.read_next(RECEIVE_MS).data()
            received.append(int(data.split(b" ")[1]))
            assert data == body(received[-1])
        assert list(dict.fromkeys(received)) == list(range(3 * PART))
    finally:
        client.close()
