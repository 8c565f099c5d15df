"""No secret reaches the disk: real clients log in to a real broker, then the files are searched.

The secrets searched for are not only those that the tests know, but also those that passed on the
wire, as a relay between kproxy and the broker saw them. The recording is searched as it lies, and
with its chunks decompressed.
"""

from __future__ import annotations

import base64
import itertools
import re
from pathlib import Path

import confluent_kafka
import kafka.admin
import pytest
from confluent_kafka import admin
from mcap.records import Chunk
from mcap.stream_reader import StreamReader, breakup_chunk

from kproxy.exchange.exchange import Exchange
from tests.bed import programs, proxies, recorded, tap
from tests.bed.kafka import PLAIN_USER, SCRAM_USER, Kafka
from tests.bed.programs import CLIENTS, Client, Login
from tests.versions import some

pytestmark = [pytest.mark.broker, pytest.mark.java]

LOGINS = [
    Login("PLAIN", *PLAIN_USER),
    Login("SCRAM-SHA-256", *SCRAM_USER),
    Login("SCRAM-SHA-512", *SCRAM_USER),
]

# What stands in SCRAM messages (RFC 5802): the server's salt, the client's proof, the server's
# signature, each in base64.
SCRAM_SECRETS = re.compile(rb"(?:,s=|,p=|\bv=)([A-Za-z0-9+/]{16,}={0,2})")


def written(proxy: proxies.Proxy) -> bytes:
    """All that a proxy has written: its log, its recording raw and decompressed."""
    found = [proxy.log.encode(), proxy.recording.read_bytes()]
    with proxy.recording.open("rb") as file:
        for record in StreamReader(file, emit_chunks=True, validate_crcs=True).records:
            if isinstance(record, Chunk):
                found += [repr(type(each)).encode() + data(each) for each in breakup_chunk(record)]
    return b"\n".join(found)


def data(record: object) -> bytes:
    """The payload of an MCAP record; nothing of records that have none."""
    return getattr(record, "data", b"")


def assert_absent(secrets: dict[str, bytes], proxy: proxies.Proxy) -> None:
    """No secret is in what the proxy has written, plain, in base64 or in hex."""
    everything = written(proxy)
    assert b"ApiVersions" in everything or len(everything) > 2000, "the search saw nothing"
    for name, secret in secrets.items():
        assert secret, f"nothing to search for: {name}"
        for form in (secret, base64.b64encode(secret), secret.hex().encode()):
            assert form not in everything, f"{name} was written"


def redacted(found: list[Exchange], api: str) -> list[Exchange]:
    """The exchanges of an API, which must be there and all be flagged."""
    of_api = [each for each in found if each.api == api]
    assert of_api and all(each.redacted for each in of_api), (api, of_api)
    return of_api


@pytest.mark.parametrize(
    ("client", "login"),
    [
        pytest.param(client, login, id=f"{client.name}-{login.mechanism}")
        for client, login in some(
            [*itertools.product(CLIENTS, LOGINS)], zip(CLIENTS[:3], LOGINS, strict=True)
        )
    ],
)
def test_logging_in_leaves_no_secret(
    client: Client, login: Login, kafka_431: Kafka, prefix: str, tmp_path: Path
) -> None:
    with (
        tap.on(kafka_431.sasl_address) as wire,
        proxies.running(wire.address, tmp_path) as proxy,
    ):
        programs.work(client, proxy.bootstrap, prefix, ("create", "produce"), login)
    secrets = {"password": login.password.encode()}
    if login.mechanism == "PLAIN":
        assert secrets["password"] in wire.bytes_seen
    else:
        passed = SCRAM_SECRETS.findall(wire.bytes_seen)
        assert len(passed) >= 3, "salt, proof and signature passed on the wire"
        secrets |= {f"SCRAM value {each.decode()}": each for each in passed}
        secrets |= {
            f"raw {name}": base64.b64decode(each) for name, each in list(secrets.items())[1:]
        }
    assert_absent(secrets, proxy)
    redacted(recorded.exchanges(proxy.recording), "SaslAuthenticate")


def test_a_refused_login_leaves_no_secret(kafka_431: Kafka, tmp_path: Path) -> None:
    wrong = "not-the-password-of-alice"
    with proxies.running(kafka_431.sasl_address, tmp_path) as proxy:
        refused = kafka.KafkaAdminClient
        with pytest.raises(kafka.errors.KafkaError):
            refused(
                bootstrap_servers=proxy.bootstrap,
                security_protocol="SASL_PLAINTEXT",
                sasl_mechanism="PLAIN",
                sasl_plain_username="alice",
                sasl_plain_password=wrong,
                bootstrap_timeout_ms=3000,
            )
    assert_absent({"password": wrong.encode()}, proxy)


def test_delegation_tokens_leave_no_secret(kafka_431: Kafka, prefix: str, tmp_path: Path) -> None:
    client = programs.named("java-4.3.1")
    with proxies.running(kafka_431.sasl_address, tmp_path) as proxy:
        done = programs.work(client, proxy.bootstrap, prefix, ("tokens",), LOGINS[1])
    hmac = done["tokens"]["hmac"]
    assert done["tokens"]["described"] == 1
    assert_absent({"hmac": base64.b64decode(hmac), "hmac as password": hmac.encode()}, proxy)
    found = recorded.exchanges(proxy.recording)
    for api in ("Create", "Renew", "Expire"):
        redacted(found, f"{api}DelegationToken")
    described = [each for each in found if each.api == "DescribeDelegationToken"]
    redacted([each for each in described if each.response.tokens], "DescribeDelegationToken")


def test_scram_credentials_that_are_set_leave_no_secret(
    kafka_431: Kafka, prefix: str, tmp_path: Path
) -> None:
    with proxies.running(kafka_431.address, tmp_path) as proxy:
        client = admin.AdminClient({"bootstrap.servers": proxy.bootstrap})
        info = admin.ScramCredentialInfo(admin.ScramMechanism.SCRAM_SHA_256, 4096)
        salt, password = b"salt-of-dave-0123456789", b"dave-scram-password-3Vy"
        change = admin.UserScramCredentialUpsertion(f"dave-{prefix}", info, password, salt)
        for each in client.alter_user_scram_credentials([change]).values():
            each.result(timeout=20)
    assert_absent({"salt": salt, "password": password}, proxy)
    (exchange,) = redacted(recorded.exchanges(proxy.recording), "AlterUserScramCredentials")
    (upsertion,) = exchange.request.upsertions
    assert upsertion.name == f"dave-{prefix}", "only secrets are blanked out"
    assert len(set(upsertion.salted_password)) == 1, "the salted password is as good as a password"


KEYSTORE_PASSWORD = "keystore-password-8Hw"
JAAS_PASSWORD = "jaas-password-5Rd"
CONFIGS = {
    "ssl.keystore.password": KEYSTORE_PASSWORD,
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required"
        f' username="x" password="{JAAS_PASSWORD}";'
    ),
    "log.cleaner.threads": "1",
}


def alter_incrementally(bootstrap: str) -> None:
    """IncrementalAlterConfigs of broker 1, for validation only."""
    entries = [
        admin.ConfigEntry(name, value, incremental_operation=admin.AlterConfigOpType.SET)
        for name, value in CONFIGS.items()
    ]
    broker = admin.ConfigResource(
        admin.ConfigResource.Type.BROKER, "1", incremental_configs=entries
    )
    client = admin.AdminClient({"bootstrap.servers": bootstrap})
    for each in client.incremental_alter_configs([broker], validate_only=True).values():
        try:
            each.result(timeout=20)
        except confluent_kafka.KafkaException as refused:  # that is the broker's answer, and fine
            assert refused.args[0].code() > 0


def alter_at_once(bootstrap: str) -> None:
    """AlterConfigs of broker 1, for validation only."""
    broker = kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.BROKER, "1", CONFIGS)
    client = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        client.alter_configs(
            [broker], validate_only=True, incremental=False, raise_on_unknown=False
        )
    except kafka.errors.BrokerResponseError:  # that is the broker's answer, and fine
        pass
    finally:
        client.close()


@pytest.mark.parametrize(
    ("alter", "api"),
    [(alter_incrementally, "IncrementalAlterConfigs"), (alter_at_once, "AlterConfigs")],
)
def test_altered_configs_leave_no_secret(alter, api: str, kafka_431: Kafka, tmp_path: Path) -> None:
    with proxies.running(kafka_431.address, tmp_path) as proxy:
        alter(proxy.bootstrap)
    secrets = {"keystore": KEYSTORE_PASSWORD.encode(), "jaas": JAAS_PASSWORD.encode()}
    assert_absent(secrets, proxy)
    (exchange,) = redacted(recorded.exchanges(proxy.recording), api)
    kept = {each.name: each.value for each in exchange.request.resources[0].configs}
    assert set(kept) == set(CONFIGS) and kept["log.cleaner.threads"] == "1"
