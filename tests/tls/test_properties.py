"""The properties of a client, in both dialects, become settings; credentials stay the client's."""

from __future__ import annotations

from pathlib import Path

import pytest

from kproxy.commands import run as command
from kproxy.commands.options import UsageError
from kproxy.commands.parser import command_parser
from kproxy.tls.properties import ClientProperties, read_properties
from kproxy.tls.settings import BrokerTls, Identity, TlsError, Trust


def read(tmp_path: Path, text: str) -> ClientProperties:
    """What a file of this text means."""
    path = tmp_path / "client.properties"
    path.write_text(text)
    return read_properties(path)


JAVA = """\
# of the Java client
bootstrap.servers = a:9092,b:9092
security.protocol: SASL_SSL
ssl.truststore.location=/etc/trust.p12
ssl.truststore.password=trust-secret
ssl.keystore.location=/etc/key.p12
ssl.keystore.password=store-secret
ssl.key.password=key-secret
sasl.mechanism=PLAIN
sasl.jaas.config=org.apache.kafka…PlainLoginModule required \\
  username="alice" password="client-secret";
acks=all
"""

LIBRDKAFKA = """\
metadata.broker.list=a:9092
security.protocol=ssl
ssl.ca.location=ca.pem
ssl.certificate.location=cert.pem
ssl.key.location=key.pem
ssl.key.password=key-secret
enable.ssl.certificate.verification=false
sasl.password=client-secret
"""


def test_javas(tmp_path: Path) -> None:
    found = read(tmp_path, JAVA)
    assert found.bootstrap == "a:9092,b:9092"
    assert found.tls == BrokerTls(
        Trust(Path("/etc/trust.p12"), "trust-secret"),
        Identity(Path("/etc/key.p12"), None, "store-secret"),
    )
    assert found.left == ["acks", "sasl.jaas.config", "sasl.mechanism"]
    for secret in ("client-secret", "trust-secret", "store-secret", "key-secret", "alice"):
        assert secret not in repr(found)


def test_librdkafkas(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").touch()
    found = read(tmp_path, LIBRDKAFKA)
    assert found.bootstrap == "a:9092"
    assert found.tls == BrokerTls(
        Trust(tmp_path / "ca.pem"),  # beside the properties, where it is not in this folder
        Identity(Path("cert.pem"), Path("key.pem"), "key-secret"),
        verified=False,
    )
    assert found.left == ["sasl.password"]


@pytest.mark.parametrize(
    ("text", "tls"),
    [
        ("bootstrap.servers=a", None),
        ("security.protocol=SASL_PLAINTEXT\nssl.ca.location=x", None),
        ("security.protocol=SSL", BrokerTls()),
        ("security.protocol=SSL\nssl.ca.location=probe", BrokerTls()),
        (
            "security.protocol=SSL\nssl.endpoint.identification.algorithm=",
            BrokerTls(names_verified=False),
        ),
    ],
)
def test_what_the_protocol_asks_for(text: str, tls: BrokerTls | None, tmp_path: Path) -> None:
    assert read(tmp_path, text).tls == tls


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("security.protocol=TLS", "security.protocol is one of PLAINTEXT, SSL"),
        (
            "security.protocol=SSL\nssl.keystore.key=-----BEGIN PRIVATE KEY-----",
            "put what is in ssl.keystore.key into a file of its own",
        ),
        ("a=\\u12", "is no file of properties"),
    ],
)
def test_what_cannot_be_done_is_said(text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(TlsError) as caught:
        read(tmp_path, text)
    assert reason in str(caught.value) and "\n" not in str(caught.value)


def test_a_folded_secret_is_not_shown(tmp_path: Path) -> None:
    text = "sasl.password=\n  MIIEvSECRETLINE1\n  secret2\n-----END PRIVATE KEY-----\nacks=1\n"
    found = read(tmp_path, text)
    assert found.left == ["acks", "sasl.password", "3 more"]


def options(*typed: str):
    """What was typed."""
    return command_parser("run").parse_args(list(typed))


def test_what_is_typed_precedes_the_properties(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("bootstrap.servers=a:1\nsecurity.protocol=SSL\n")
    found = command.cluster(options("--config", str(path)))
    assert found == ([("a", 1)], BrokerTls())
    typed = ("--config", str(path), "--bootstrap", "b:2", "--broker-tls-name", "x")
    assert command.cluster(options(*typed)) == ([("b", 2)], BrokerTls(server_name="x"))
    path.write_text("bootstrap.servers=a:1\nsecurity.protocol=SSL\nssl.ca.location=/ca.pem\n")
    both = BrokerTls(Trust(Path("/ca.pem")), server_name="x")
    assert command.cluster(options(*typed)) == ([("b", 2)], both)


@pytest.mark.parametrize(
    "typed",
    [
        (),
        ("--bootstrap", "a", "--broker-tls-key", "k.pem"),
        ("--config", "/nothing/here.properties"),
        ("--bootstrap", "a", "--broker-tls-name", ""),
        ("--bootstrap", "a", "--tls-key-log", "x"),
    ],
)
def test_what_is_missing_is_said(typed: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        command.cluster(options(*typed))
