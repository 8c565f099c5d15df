"""kproxy logs in for clients that do not: before real brokers, with each mechanism, for longer than
a session lasts.

::

    a plain client ═ kproxy run --authenticate ═ SASL_PLAINTEXT, SASL_SSL, REAUTH ═▶ broker
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kproxy import recording
from tests.bed import programs, proxies
from tests.bed.certificates import Certificates
from tests.bed.clients.job import STEADY_COUNT
from tests.bed.kafka import PLAIN_USER, SCRAM_USER, Kafka, unsecured_token
from tests.bed.proxies import KPROXY
from tests.integration.test_secrets import assert_absent
from tests.integration.test_tls import CLIENTS, client_marks
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
                (CLIENTS[0], "SASL_SSL", "SCRAM-SHA-256"),
                (CLIENTS[0], "REAUTH", "SCRAM-SHA-512"),
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
    assert not [each for each in found if each.api.startswith("Sasl")], "a login is in it"
    secrets = {"password": PLAIN_USER[1], "other": SCRAM_USER[1], "token": token}
    assert_absent({name: secret.encode() for name, secret in secrets.items()}, proxy)
    scanned = subprocess.run([KPROXY, "scan", proxy.recording], capture_output=True, text=True)
    assert scanned.returncode == 0, scanned.stdout
