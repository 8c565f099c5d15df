"""The ways in which a client reaches a broker through kproxy: TLS, certificates and logins.

::

    client ══ Speaks, Login ══▶ kproxy ══ a listener of Kafka ══▶ broker
    settings        to_clients         to_brokers

What a client is told of TLS is in its own words here, as an account is in `programs`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs

from tests.bed.certificates import Certificates
from tests.bed.programs import Client, Login


@attrs.frozen
class Speaks:
    """How a client speaks TLS."""

    ca: Path
    certificate: Path | None = None
    """Its own, with the key."""
    old_ciphers: bool = False
    """It offers what goes with a certificate of RSA only, and the test bed has none."""


def settings(client: Client, speaks: Speaks | None, login: Login | None) -> dict[str, Any]:
    """TLS and an account in a client's own settings."""
    found = client.login(login) if login else {}
    if speaks is None:
        return found
    own = {
        "confluent-kafka": _librdkafka,
        "kafkajs": _kafkajs,
        "aiokafka": _python,
        "kafka-python": _python,
    }.get(client.name, _java)
    return found | own(speaks, "SASL_SSL" if login else "SSL")


def _librdkafka(speaks: Speaks, protocol: str) -> dict[str, Any]:
    found = {"security.protocol": protocol, "ssl.ca.location": str(speaks.ca)}
    if speaks.certificate:
        found |= dict.fromkeys(
            ("ssl.certificate.location", "ssl.key.location"), str(speaks.certificate)
        )
    if speaks.old_ciphers:
        found["ssl.sigalgs.list"] = "RSA+SHA256"  # its list of ciphers leaves TLS 1.3 as it is
    return found


def _java(speaks: Speaks, protocol: str) -> dict[str, Any]:
    found = {
        "security.protocol": protocol,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(speaks.ca),
    }
    if speaks.certificate:
        found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(speaks.certificate)}
    if speaks.old_ciphers:
        found["ssl.enabled.protocols"] = "TLSv1.2"
        found["ssl.cipher.suites"] = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"
    return found


def _python(speaks: Speaks, protocol: str) -> dict[str, Any]:
    found = {"security_protocol": protocol, "ssl_cafile": str(speaks.ca)}
    if speaks.certificate:
        found["ssl_certfile"] = str(speaks.certificate)
    if speaks.old_ciphers:
        found["ssl_ciphers"] = "ECDHE-RSA-AES128-GCM-SHA256"
    return found


def _kafkajs(speaks: Speaks, protocol: str) -> dict[str, Any]:
    found = {"ca": str(speaks.ca)}
    if speaks.certificate:
        found["cert"] = str(speaks.certificate)
    if speaks.old_ciphers:
        found["ciphers"] = "ECDHE-RSA-AES128-GCM-SHA256"
    return {"ssl": found}


def to_brokers(listener: str, made: Certificates) -> list[str]:
    """The options of kproxy for a listener of the broker."""
    if listener in ("PLAINTEXT", "SASL_PLAINTEXT"):
        return []
    certificate = ["--broker-tls-cert", str(made.client)] if listener == "MTLS" else []
    return ["--broker-tls-ca", str(made.ca), *certificate]


def to_clients(certificate: Path) -> list[str]:
    """The options of kproxy, and of a replay, for clients that speak TLS."""
    return ["--listen-tls", f"{certificate},{certificate}"]
