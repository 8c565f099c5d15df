"""The properties of a client, in both dialects, become settings."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme

from kproxy.commands import run as command
from kproxy.commands.options import UsageError
from kproxy.commands.parser import command_parser
from kproxy.commands.tls import listen_tls
from kproxy.net.tls.contexts import broker_contexts
from kproxy.net.tls.properties import ClientProperties, read_properties
from kproxy.net.tls.settings import VERSIONS, BrokerTls, Identity, ListenTls, TlsError, Trust
from tests.bed.logged import to
from tests.net.tls.test_stores import JKS, stores


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
    assert found.credentials.keys() == {"sasl.jaas.config", "sasl.mechanism"}
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
    assert not found.credentials, "its listener takes no login"


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
        (
            "security.protocol=SSL\nssl.enabled.protocols=TLSv1.1",
            "ssl.enabled.protocols and ssl.protocol allow neither TLSv1.2 nor TLSv1.3",
        ),
        ("security.protocol=SSL\nssl.protocol=SSLv3", "allow neither TLSv1.2 nor TLSv1.3"),
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


def test_what_restricts_tls_is_applied_or_said(tmp_path: Path) -> None:
    (tmp_path / "crl.pem").touch()
    restricted = """\
security.protocol=SSL
ssl.crl.location=crl.pem
ssl.enabled.protocols=TLSv1.1, TLSv1.2
ssl.curves.list=X25519
"""
    found = read(tmp_path, f"{restricted}ssl.cipher.suites=ECDHE-RSA-AES256-GCM-SHA384\n")
    assert found.tls == BrokerTls(
        revoked=tmp_path / "crl.pem",
        versions=(ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2),
        ciphers="ECDHE-RSA-AES256-GCM-SHA384",
    )
    assert found.unapplied == ["ssl.curves.list"] and found.left == []
    javas = read(tmp_path, "security.protocol=SSL\nssl.cipher.suites=TLS_AES_256_GCM_SHA384\n")
    assert javas.tls == BrokerTls() and javas.unapplied == ["ssl.cipher.suites"]


@pytest.mark.parametrize(
    ("text", "versions"),
    [
        ("ssl.protocol=TLSv1.2", ("TLSv1_2", "TLSv1_2")),  # Kafka: then never TLSv1.3
        ("ssl.enabled.protocols=TLSv1.3", ("TLSv1_3", "TLSv1_3")),
        ("ssl.protocol=TLS\nssl.enabled.protocols=TLSv1.2,TLSv1.3", VERSIONS),
    ],
)
def test_versions(text: str, versions: tuple, tmp_path: Path) -> None:
    tls = read(tmp_path, f"security.protocol=SSL\n{text}\n").tls
    wanted = [v if isinstance(v, ssl.TLSVersion) else ssl.TLSVersion[v] for v in versions]
    assert tls and list(tls.versions) == wanted


def test_tls_without_the_protocol_is_said_to_have_no_effect(tmp_path: Path) -> None:
    """The line security.protocol is forgotten easily."""
    path = tmp_path / "client.properties"
    path.write_text("bootstrap.servers=a:1\nssl.ca.location=ca.pem\nacks=all\n")
    said: list[str] = []
    assert command.cluster(options("--config", str(path)), to(said))[:2] == ([("a", 1)], None)
    assert said[1:] == [
        "does NOT apply to brokers (PLAINTEXT is without TLS): ssl.ca.location",
        "leaves to your client: acks",
    ]


def test_a_missing_file_is_named_with_its_key(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    text = "bootstrap.servers=a:1\nsecurity.protocol=SSL\nssl.truststore.location=/none/t.p12\n"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        command.cluster(options("--config", str(path)), print)
    what = "ssl.truststore.location names /none/t.p12, which is not there"
    assert str(caught.value) == f"{path}: {what}"
    # What is typed goes before it, and then it is not needed.
    command.cluster(options("--config", str(path), "--broker-tls-ca", str(path)), print)


MANAGED = {
    "Confluent Cloud": (
        """\
# Required connection configs for Kafka producer, consumer, and admin
bootstrap.servers=pkc-12345.us-west4.gcp.confluent.cloud:9092
security.protocol=SASL_SSL
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username='K' \
password='S';
sasl.mechanism=PLAIN
# Required for correctness in Apache Kafka clients prior to 2.6
client.dns.lookup=use_all_dns_ips
# Best practice for higher availability in Apache Kafka clients prior to 3.0
session.timeout.ms=45000
acks=all
# Required connection configs for Confluent Cloud Schema Registry
schema.registry.url=https://{{ SR_ENDPOINT }}
basic.auth.credentials.source=USER_INFO
basic.auth.user.info={{ SR_API_KEY }}:{{ SR_API_SECRET }}
""",
        [("pkc-12345.us-west4.gcp.confluent.cloud", 9092)],
        lambda folder: BrokerTls(),
    ),
    "MSK with SASL/SCRAM": (
        """\
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-512
ssl.truststore.location=kafka.client.truststore.jks
""",
        [("b-1.demo.c2.kafka.us-east-1.amazonaws.com", 9096)],
        lambda folder: BrokerTls(Trust(folder / "kafka.client.truststore.jks")),
    ),
    "Aiven with client certificates, Java": (
        """\
bootstrap.servers=kafka-demo.aivencloud.com:12345
security.protocol=SSL
ssl.truststore.location=kafka.client.truststore.jks
ssl.truststore.password=changeit
ssl.keystore.type=PKCS12
ssl.keystore.location=key.p12
ssl.keystore.password=secret
ssl.key.password=secret
""",
        [("kafka-demo.aivencloud.com", 12345)],
        lambda folder: BrokerTls(
            Trust(folder / "kafka.client.truststore.jks", "changeit"),
            Identity(folder / "key.p12", None, "secret"),
        ),
    ),
    "Aiven with client certificates, librdkafka": (
        """\
bootstrap.servers=kafka-demo.aivencloud.com:12345
security.protocol=SSL
ssl.ca.location=ca.pem
ssl.certificate.location=service.cert
ssl.key.location=service.key
""",
        [("kafka-demo.aivencloud.com", 12345)],
        lambda folder: BrokerTls(
            Trust(folder / "ca.pem"), Identity(folder / "service.cert", folder / "service.key")
        ),
    ),
}
"""Managed cluster → the properties that it gives, where it is, and TLS to it."""


@pytest.mark.parametrize("cluster", MANAGED)
def test_the_properties_of_a_managed_cluster_are_used_as_they_are(
    cluster: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, bootstrap, tls = MANAGED[cluster]
    (tmp_path / "kafka.client.truststore.jks").write_bytes(JKS)
    stores(tmp_path)
    leaf = trustme.CA().issue_cert("client.test")
    leaf.cert_chain_pems[0].write_to_path(str(tmp_path / "service.cert"))
    leaf.cert_chain_pems[0].write_to_path(str(tmp_path / "ca.pem"))
    leaf.private_key_pem.write_to_path(str(tmp_path / "service.key"))
    path = tmp_path / "client.properties"
    path.write_text(text)
    typed = ["--config", str(path), "--listen-tls", "auto"]
    if "bootstrap.servers" not in text:
        with pytest.raises(UsageError, match=r"has no bootstrap\.servers; give --bootstrap"):
            command.cluster(options(*typed), print)
        typed += ["--bootstrap", "{}:{}".format(*bootstrap[0])]
    assert command.cluster(options(*typed), print)[:2] == (bootstrap, tls(tmp_path))
    broker_contexts(tls(tmp_path), print)  # the files can be used as they are
    assert "NOT" not in capsys.readouterr().err


def options(*typed: str):
    """What was typed."""
    return command_parser("run").parse_args(list(typed))


def test_what_is_typed_precedes_the_properties(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("bootstrap.servers=a:1\nsecurity.protocol=SSL\n")
    found = command.cluster(options("--config", str(path)), print)[:2]
    assert found == ([("a", 1)], BrokerTls())
    typed = ("--config", str(path), "--bootstrap", "b:2", "--broker-tls-name", "x")
    assert command.cluster(options(*typed), print)[:2] == ([("b", 2)], BrokerTls(server_name="x"))
    (tmp_path / "ca.pem").touch()
    path.write_text("bootstrap.servers=a:1\nsecurity.protocol=SSL\nssl.ca.location=ca.pem\n")
    both = BrokerTls(Trust(tmp_path / "ca.pem"), server_name="x")
    assert command.cluster(options(*typed), print)[:2] == ([("b", 2)], both)


@pytest.mark.parametrize("name", ["", "kafka.example.com:9093", "a b", "https://kafka"])
def test_a_name_that_no_certificate_has_is_refused(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        options("--bootstrap", "a", "--broker-tls-name", name)
    assert "without a port" in capsys.readouterr().err


@pytest.mark.parametrize(
    "typed", ["", "Auto", "yes", "{cert},", "{cert},none.pem", "{cert}, {cert}"]
)
def test_listen_tls_teaches_what_it_takes(typed: str, tmp_path: Path) -> None:
    certificate = tmp_path / "cert.pem"
    certificate.touch()
    typed = typed.format(cert=certificate)
    with pytest.raises(UsageError) as caught:
        listen_tls(options("--bootstrap", "a", "--listen-tls", typed))
    for form in ("CERT,KEY (two files in PEM", "one file that has both", "the word auto"):
        assert form in str(caught.value)


def test_listen_tls_takes_two_files_one_or_auto(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    certificate.touch(), key.touch()
    for typed, identity in (
        (f"{certificate},{key}", Identity(certificate, key)),
        (str(certificate), Identity(certificate)),
        ("auto", None),
    ):
        found = listen_tls(options("--bootstrap", "a", "--listen-tls", typed))
        assert found == ListenTls(identity)
