"""Real clients through TLS, on either side or both, to the listeners of a real broker.

Each client and each listener occurs; all with all where all are asked for.
"""

from __future__ import annotations

import itertools
import json
import subprocess
from pathlib import Path

import attrs
import pytest
from confluent_kafka import Consumer

from kproxy.exchange.entries import Note
from kproxy.recording import entries
from tests.bed import jvm, programs, proxies, recorded, replays, ways
from tests.bed.certificates import Certificates
from tests.bed.clients.job import records
from tests.bed.kafka import OAUTH_USER, PLAIN_USER, SCRAM_USER, Kafka, unsecured_token
from tests.bed.programs import Client, Login
from tests.bed.proxies import KPROXY, Proxy
from tests.bed.ways import Speaks
from tests.integration.test_secrets import assert_absent
from tests.versions import ALL, some

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
    mechanism: str | None = None

    def __str__(self) -> str:
        mechanism = f"-{self.mechanism}" if self.mechanism else ""
        return f"{'tls' if self.tls else 'plain'}-{self.listener}{mechanism}"


SCRAMS = ["SCRAM-SHA-256", "SCRAM-SHA-512"]
LISTENERS = {
    "PLAINTEXT": [None],
    "SSL": [None],
    "MTLS": [None],
    "SASL_PLAINTEXT": ["PLAIN", *SCRAMS],
    "SASL_SSL": ["PLAIN", *SCRAMS, "OAUTHBEARER"],
}
"""Listener of the broker → the mechanisms of the clients there."""
WAYS = [
    Way(listener, tls, mechanism)
    for listener, mechanisms in LISTENERS.items()
    for mechanism in mechanisms
    for tls in (True, False)
]
FEW = [
    Way("SSL", True),
    Way("MTLS", False),
    Way("SASL_SSL", True, "SCRAM-SHA-256"),
    Way("SASL_SSL", True, "OAUTHBEARER"),
    Way("SASL_PLAINTEXT", True, "SCRAM-SHA-512"),
]
"""One for each client: each listener but the plain one, and each mechanism but PLAIN, which
`test_properties_of_a_client_and_a_ca_of_our_own_are_all_it_takes` has."""
COMPRESSIONS = ("none", "gzip")
CUT = ["--fault", "name=cut api=Fetch phase=after disconnect=true times=1", "--expect-faults"]


def login(mechanism: str | None) -> Login | None:
    """An account that the broker knows."""
    if mechanism is None:
        return None
    if mechanism == "OAUTHBEARER":
        return Login(mechanism, OAUTH_USER, unsecured_token(3600))
    return Login(mechanism, *(PLAIN_USER if mechanism == "PLAIN" else SCRAM_USER))


def client_marks(client: Client) -> list[pytest.MarkDecorator]:
    """What the machine must have for a client, beside what each of these tests needs."""
    return [pytest.mark.node] if client.name == "kafkajs" else []


@pytest.mark.parametrize(
    ("client", "way"),
    [
        pytest.param(client, way, id=f"{client.name}-{way}", marks=client_marks(client))
        for client, way in some(
            list(itertools.product(CLIENTS, WAYS)),
            zip(itertools.cycle(CLIENTS), FEW, strict=False),
        )
    ],
)
def test_a_client_works_through_tls(
    client: Client, way: Way, kafka_431: Kafka, issued: Certificates, prefix: str, tmp_path: Path
) -> None:
    """Though a connection is cut; and the recording is its broker afterwards."""
    account = login(way.mechanism)
    told = ways.settings(client, Speaks(issued.ca) if way.tls else None, account)
    listens = ways.to_clients(issued.broker) if way.tls else []
    reaches = ways.to_brokers(way.listener, issued)

    def work(bootstrap: str, *steps: str) -> list[str]:
        results = programs.work(client, bootstrap, prefix, steps, None, told, COMPRESSIONS)
        return sorted(map(json.dumps, results["group"]["records"]))

    at = kafka_431.address_of(way.listener)
    with proxies.running(at, tmp_path, *reaches, *listens, *CUT) as proxy:
        found = work(proxy.bootstrap, "create", "produce", "group")
    assert found == sorted(json.dumps(each) for kind in COMPRESSIONS for each in records(kind))
    exchanges = recorded.exchanges(proxy.recording)
    assert {"Produce", "Fetch"} <= {each.api for each in exchanges}
    assert_tls_is_recorded(way, proxy, {each.connection for each in exchanges})
    secrets = {"the broker's key": issued.broker.read_bytes().split(b"-----")[2].strip()[:60]}
    if account:
        secrets["the password"] = account.password.encode()
    assert_absent(secrets, proxy)
    if client.name.startswith("java") and not ALL:
        return  # a JVM takes seconds to start
    users = ["--user", ":".join(SCRAM_USER)]
    with replays.running(proxy.recording, tmp_path, *listens, *users) as replay:
        assert work(replay.bootstrap, "group") == found


def assert_tls_is_recorded(way: Way, proxy: Proxy, used: set[int]) -> None:
    """The notes of connections say what was agreed on, and no more."""
    notes = [each.body for each in entries(proxy.recording) if isinstance(each, Note)]
    opened = [body for body in notes if body["event"] == "opened" and body["connection"] in used]
    assert len(opened) == len(used)
    reaches_tls = way.listener not in ("PLAINTEXT", "SASL_PLAINTEXT")
    for body in opened:
        agreed = body.get("client_tls", {}), body.get("broker_tls", {})
        assert [each.get("version") for each in agreed] == [
            "TLSv1.3" if speaks else None for speaks in (way.tls, reaches_tls)
        ]
        assert agreed[1].get("peer") == ("broker" if reaches_tls else None)
        known = {"version", "cipher", "peer", "verified", "name_verified"}
        assert {name for each in agreed for name in each} <= known, "no keys"


def test_properties_of_a_client_and_a_ca_of_our_own_are_all_it_takes(
    kafka_431: Kafka,
    issued: Certificates,
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
bootstrap.servers={kafka_431.address_of("SASL_SSL")}
security.protocol=SASL_SSL
sasl.mechanism=PLAIN
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
    username="{user}" password="{password}";
ssl.truststore.type=PEM
ssl.truststore.location={issued.ca}
"""
    )
    said = programs.run([KPROXY, "certs", "--out", str(tmp_path / "out")]).stdout
    assert f"ssl.ca.location={tmp_path}/out/ca.pem" in said
    told = ["--config", str(properties), "--listen-tls", "auto"]
    client = programs.named("confluent-kafka")
    tls = ways.settings(client, Speaks(tmp_path / "out" / "ca.pem"), login("PLAIN"))
    at = kafka_431.address_of("SASL_SSL")
    with proxies.running(at, tmp_path, *told) as proxy:
        programs.work(client, proxy.bootstrap, prefix, ("create", "produce"), settings=tls)
    used = "bootstrap.servers, sasl.jaas.config, sasl.mechanism, security.protocol, ssl.truststore"
    assert f"uses {used}.location" in proxy.log and "leaves to your client" not in proxy.log
    assert_absent({"the password": password.encode()}, proxy)
    with replays.running(proxy.recording, tmp_path, "--listen-tls", "auto") as replay:
        consumer = Consumer(
            tls
            | {
                "bootstrap.servers": replay.bootstrap,
                "group.id": "again",
                "auto.offset.reset": "earliest",
            }
        )
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
