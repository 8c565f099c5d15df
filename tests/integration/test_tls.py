"""Real clients through TLS, on either side or both, to the listeners of a real broker.

Each client and each listener occurs; all with all where all are asked for.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from confluent_kafka import Consumer

from kproxy.exchange.entries import Note
from kproxy.recording import entries
from tests.bed import certificates, jvm, kafka, programs, proxies, recorded, replays
from tests.bed.certificates import Certificates
from tests.bed.kafka import PLAIN_USER, SCRAM_USER, Kafka
from tests.bed.programs import Client, Login
from tests.bed.proxies import KPROXY
from tests.integration.test_secrets import assert_absent
from tests.versions import pairs

pytestmark = [pytest.mark.broker, pytest.mark.java]

CLIENTS = [
    programs.named(name)
    for name in ("confluent-kafka", "aiokafka", "kafka-python", "java-4.3.1", "kafkajs")
]


@attrs.frozen
class Way:
    """How a client and a broker are reached."""

    listener: str
    """Of the broker."""
    tls: bool
    """Whether the client speaks TLS to kproxy."""
    login: Login | None = None

    def __str__(self) -> str:
        login = f"-{self.login.mechanism}" if self.login else ""
        return f"{'tls' if self.tls else 'plain'}-{self.listener}{login}"


PLAIN = Login("PLAIN", *PLAIN_USER)
SCRAM = [Login(f"SCRAM-SHA-{bits}", *SCRAM_USER) for bits in (256, 512)]
WAYS = [
    Way("SSL", True),
    Way("MTLS", False),
    Way("SASL_SSL", True, PLAIN),
    Way("SASL_SSL", False, SCRAM[0]),
    Way("PLAINTEXT", True),
    Way("SASL_SSL", True, SCRAM[1]),
    Way("SASL_PLAINTEXT", True, SCRAM[0]),
    Way("SSL", False),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """All certificates."""
    return certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def broker(made: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A broker with listeners that speak TLS."""
    with kafka.running("4.3.1", tmp_path_factory.mktemp("tls"), made) as found:
        yield found


def options(way: Way, made: Certificates) -> list[str]:
    """What kproxy is told."""
    found = ["--listen-tls", f"{made.broker},{made.broker}"] if way.tls else []
    if "SSL" in way.listener or way.listener == "MTLS":
        found += ["--broker-tls-ca", str(made.ca)]
    if way.listener == "MTLS":
        found += ["--broker-tls-cert", str(made.client)]
    return found


def address(broker: Kafka, listener: str) -> str:
    """Where a listener is."""
    plain = {"PLAINTEXT": broker.address, "SASL_PLAINTEXT": broker.sasl_address}
    return plain.get(listener) or broker.tls_address(listener)


def settings(client: Client, way: Way, ca: Path) -> dict[str, Any]:
    """What a client is told of TLS, in its own words."""
    if not way.tls:
        return {}
    protocol = "SASL_SSL" if way.login else "SSL"
    return {
        "confluent-kafka": {"security.protocol": protocol, "ssl.ca.location": str(ca)},
        "java-4.3.1": {
            "security.protocol": protocol,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(ca),
        },
        "kafkajs": {"ssl": str(ca)},
    }.get(client.name) or {"security_protocol": protocol, "ssl_cafile": str(ca)}


@pytest.mark.parametrize(
    ("client", "way"),
    [
        pytest.param(
            client,
            way,
            id=f"{client.name}-{way}",
            marks=[pytest.mark.node] if client.name == "kafkajs" else [],
        )
        for client, way in pairs(CLIENTS, WAYS)
    ],
)
def test_a_client_works_through_tls(
    client: Client, way: Way, broker: Kafka, made: Certificates, prefix: str, tmp_path: Path
) -> None:
    steps = ("create", "produce", "group")
    at = address(broker, way.listener)
    with proxies.running(at, tmp_path, *options(way, made)) as proxy:
        told = settings(client, way, made.ca)
        results = programs.work(client, proxy.bootstrap, prefix, steps, way.login, told)
    assert results["group"]["records"], "it consumed what it had produced"
    assert {"Produce", "Fetch"} <= {each.api for each in recorded.exchanges(proxy.recording)}
    notes = [each.body for each in entries(proxy.recording) if isinstance(each, Note)]
    opened = [body for body in notes if body["event"] == "opened"]
    secure = way.listener not in ("PLAINTEXT", "SASL_PLAINTEXT")
    assert opened
    for body in opened:
        assert body.get("client_tls", {}).get("version") == ("TLSv1.3" if way.tls else None)
        assert body.get("broker_tls", {}).get("peer") == ("broker" if secure else None)
    secrets = {"the broker's key": made.broker.read_bytes().split(b"-----")[2].strip()[:60]}
    if way.login:
        secrets["the password"] = way.login.password.encode()
    assert_absent(secrets, proxy)


def test_properties_of_a_client_and_a_ca_of_our_own_are_all_it_takes(
    broker: Kafka,
    made: Certificates,
    prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And the recording is replayed by TLS, too."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    user, password = PLAIN_USER
    properties = tmp_path / "client.properties"
    properties.write_text(
        f"""\
bootstrap.servers={broker.tls_address("SASL_SSL")}
security.protocol=SASL_SSL
sasl.mechanism=PLAIN
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
    username="{user}" password="{password}";
ssl.truststore.type=PEM
ssl.truststore.location={made.ca}
"""
    )
    said = programs.run([KPROXY, "certs", "--out", str(tmp_path / "out")]).stdout
    assert f"ssl.ca.location={tmp_path}/out/ca.pem" in said
    told = ["--config", str(properties), "--listen-tls", "auto"]
    client = programs.named("confluent-kafka")
    tls = settings(client, Way("", True, PLAIN), tmp_path / "out" / "ca.pem")
    at = broker.tls_address("SASL_SSL")
    with proxies.running(at, tmp_path, *told) as proxy:
        programs.work(client, proxy.bootstrap, prefix, ("create", "produce"), PLAIN, tls)
    assert "uses bootstrap.servers, security.protocol, ssl.truststore.location" in proxy.log
    assert "leaves to your client: sasl.jaas.config, sasl.mechanism" in proxy.log
    assert_absent({"the password": password.encode()}, proxy)
    with replays.running(proxy.recording, tmp_path, "--listen-tls", "auto") as replay:
        consumer = Consumer(
            client.login(PLAIN)
            | tls
            | {
                "bootstrap.servers": replay.bootstrap,
                "group.id": "again",
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe([f"{prefix}-none"])
        assert consumer.list_topics(timeout=10).topics, "the recording answers by TLS"
        consumer.close()


def test_java_reads_the_truststore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert programs.run([KPROXY, "certs", "--out", str(tmp_path)]).returncode == 0
    keytool = Path(jvm.java([], "x")[0]).resolve().with_name("keytool")
    store = ["-keystore", str(tmp_path / "truststore.p12"), "-storepass", "changeit"]
    listed = subprocess.run(
        [str(keytool), "-list", *store], capture_output=True, text=True, check=False
    )
    assert "trustedCertEntry" in listed.stdout, listed.stdout + listed.stderr


def test_why_says_what_failed(broker: Kafka, tmp_path: Path) -> None:
    at = broker.tls_address("SSL")
    with proxies.running(at, tmp_path, "--broker-tls") as proxy:
        consumer = Consumer({"bootstrap.servers": proxy.bootstrap, "group.id": "g"})
        with pytest.raises(Exception, match="Failed to get metadata"):
            consumer.list_topics(timeout=2)
        consumer.close()
    said = programs.run([KPROXY, "why", str(proxy.recording), "connection:1"]).stdout
    reason = "TLS failed: its certificate is refused: unable to get local issuer certificate"
    assert reason in said and reason in proxy.log
