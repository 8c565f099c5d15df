"""kproxy logs in for clients that do not: before real brokers, with each mechanism, for longer than
a session lasts.

::

    a plain client ═ kproxy run --authenticate ═ SASL_PLAINTEXT, SASL_SSL, REAUTH ═▶ broker
"""

from __future__ import annotations

import re
import socket
import subprocess
from pathlib import Path

import pytest

from kproxy import recording
from tests.bed import programs, proxies, replays
from tests.bed.certificates import Certificates
from tests.bed.clients.job import STEADY_COUNT
from tests.bed.kafka import PLAIN_USER, SCRAM_USER, SESSION_SECONDS, Kafka, unsecured_token
from tests.bed.proxies import KPROXY
from tests.bed.waiting import accepts, until
from tests.integration.test_secrets import assert_absent
from tests.integration.test_tls import CLIENTS, client_marks
from tests.net.proxied import unused_port
from tests.versions import some

pytestmark = [pytest.mark.broker, pytest.mark.java]


def properties(mechanism: str, folder: Path, token: str) -> str:
    """What a client's file says of a login."""
    if mechanism == "OAUTHBEARER":
        (folder / "token").write_text(token)
        return f"sasl.oauthbearer.token.endpoint.url=file://{folder}/token\n"
    user, password = PLAIN_USER if mechanism == "PLAIN" else SCRAM_USER
    if mechanism == "SCRAM-SHA-256":  # as librdkafka has it
        return f"sasl.username={user}\nsasl.password={password}\n"
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return f'sasl.jaas.config={module} required username="{user}" password="{password}";\n'


def configured(listener: str, mechanism: str, folder: Path, made: Certificates, token: str) -> Path:
    """The file of a client for a listener."""
    protocol = "SASL_PLAINTEXT" if listener == "SASL_PLAINTEXT" else "SASL_SSL"
    path = folder / "client.properties"
    path.write_text(
        f"security.protocol={protocol}\nssl.ca.location={made.ca}\nsasl.mechanism={mechanism}\n"
        + properties(mechanism, folder, token)
    )
    return path


@pytest.mark.parametrize(
    ("client", "listener", "mechanism"),
    [
        pytest.param(*each, id=f"{each[0].name}-{each[1]}-{each[2]}", marks=client_marks(each[0]))
        for each in some(
            [
                (client, listener, mechanism)
                for client in CLIENTS
                for listener in ("SASL_PLAINTEXT", "SASL_SSL", "REAUTH")
                for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
                if (listener, mechanism) != ("SASL_PLAINTEXT", "OAUTHBEARER")
            ],
            [
                (CLIENTS[0], "SASL_PLAINTEXT", "PLAIN"),
                (CLIENTS[0], "REAUTH", "OAUTHBEARER"),
            ],
        )
    ],
)
def test_a_plain_client_works_before_a_secured_cluster(
    client: programs.Client,
    listener: str,
    mechanism: str,
    kafka_431: Kafka,
    issued: Certificates,
    prefix: str,
    tmp_path: Path,
) -> None:
    token = unsecured_token(3600)
    config = configured(listener, mechanism, tmp_path, issued, token)
    typed = "--config", str(config), "--authenticate"
    steps = "create", "steady"
    with proxies.running(kafka_431.address_of(listener), tmp_path, *typed) as proxy:
        done = programs.work(client, proxy.bootstrap, prefix, steps)
    assert done["steady"]["produced"] == STEADY_COUNT
    assert "does not name its brokers" not in proxy.log and "ended:" not in proxy.log
    found = list(recording.read(proxy.recording))
    if listener == "REAUTH":
        times: dict[int, list[int]] = {}
        for each in found:
            times.setdefault(each.connection, []).append(each.time_ns)
        assert max(each[-1] - each[0] for each in times.values()) > 1.5 * SESSION_SECONDS * 1e9
    assert not [each for each in found if each.api.startswith("Sasl")], "a login is in it"
    secrets = {"password": PLAIN_USER[1], "other": SCRAM_USER[1], "token": token}
    assert_absent({name: secret.encode() for name, secret in secrets.items()}, proxy)
    scanned = subprocess.run([KPROXY, "scan", proxy.recording], capture_output=True, text=True)
    assert scanned.returncode == 0, scanned.stdout
    with replays.running(proxy.recording, tmp_path) as replay:
        done = programs.work(client, replay.bootstrap, prefix, steps)
    assert done["steady"]["produced"] == STEADY_COUNT


@pytest.mark.parametrize(
    ("listener", "mechanism", "secret", "why"),
    [
        (
            "SASL_SSL",
            "PLAIN",
            "not-hers",
            r"PLAIN \(SASL_AUTHENTICATION_FAILED\): user or password",
        ),
        ("SASL_SSL", "OAUTHBEARER", unsecured_token(-60), "OAUTHBEARER: the token has expired"),
        ("SASL_PLAINTEXT", "OAUTHBEARER", unsecured_token(60), "does not offer OAUTHBEARER, only"),
        ("SSL", "PLAIN", "any", r"takes no login now \(ILLEGAL_SASL_STATE\)"),
    ],
    ids=["password", "expired", "mechanism", "no SASL"],
)
def test_a_login_that_the_broker_refuses_ends_the_connection_and_is_logged_once(
    listener: str,
    mechanism: str,
    secret: str,
    why: str,
    kafka_431: Kafka,
    issued: Certificates,
    tmp_path: Path,
) -> None:
    path = configured(listener, mechanism, tmp_path, issued, secret)
    for right in (PLAIN_USER[1], SCRAM_USER[1]):
        path.write_text(path.read_text().replace(right, secret))
    typed = "--config", str(path), "--authenticate"
    with proxies.running(kafka_431.address_of(listener), tmp_path, *typed) as proxy:
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as client:
                assert client.recv(1) == b""
        proxy.says(rf"kproxy's login to ask for the brokers failed: .*{why}")
    ends = rf"connections to it end: no login: {kafka_431.address_of(listener)}: .*{why}"
    assert len(re.findall(ends, proxy.log)) == 1
    assert_absent({"the secret": secret.encode()}, proxy)


def test_a_client_that_logs_in_although_kproxy_does_is_told_to_leave_it(
    kafka_431: Kafka, issued: Certificates, prefix: str, tmp_path: Path
) -> None:
    typed = "--config", str(configured("SASL_PLAINTEXT", "PLAIN", tmp_path, issued, ""))
    login = programs.Login("PLAIN", *PLAIN_USER)
    with proxies.running(kafka_431.sasl_address, tmp_path, *typed, "--authenticate") as proxy:
        with pytest.raises(AssertionError):
            waits = {"message.timeout.ms": 3000, "socket.timeout.ms": 3000}
            told = CLIENTS[0].login(login) | waits
            programs.work(CLIENTS[0], proxy.bootstrap, prefix, ("create",), settings=told)
        proxy.says("ended: the broker takes no login now .*security.protocol=PLAINTEXT")


def test_kproxy_asks_a_secured_cluster_for_its_brokers(
    kafka_431: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients log in themselves; the listener of each broker is open before one comes."""
    monkeypatch.setenv("KPROXY_SASL_MECHANISM", "SCRAM-SHA-512")
    monkeypatch.setenv("KPROXY_SASL_USERNAME", SCRAM_USER[0])
    monkeypatch.setenv("KPROXY_SASL_PASSWORD", SCRAM_USER[1])
    port = unused_port()
    listen = "--listen", f"127.0.0.1:{port}"
    with proxies.running(kafka_431.sasl_address, tmp_path, *listen) as proxy:
        until(lambda: accepts(port + 1 + kafka_431.node_id), "the listener of the broker is open")
    assert "logs in with SCRAM-SHA-512 to ask for the brokers" in proxy.log
