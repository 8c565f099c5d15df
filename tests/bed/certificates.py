"""Certificates for tests, by `trustme`: of a broker, of clients, and those that are wrong."""

from __future__ import annotations

import datetime
from pathlib import Path

import attrs
import trustme
from cryptography.hazmat.primitives import serialization


@attrs.frozen
class Certificates:
    """Files in PEM."""

    ca: Path
    broker: Path
    """The certificate of 127.0.0.1 and localhost, with its chain and key."""
    client: Path
    other_ca: Path
    """Who signs nobody."""
    expired: Path
    early: Path
    """Not valid yet."""
    elsewhere: Path
    """Of another host."""


def make(folder: Path) -> Certificates:
    """Make them all."""
    folder.mkdir(parents=True, exist_ok=True)
    authority, other = trustme.CA(), trustme.CA()
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)

    def issued(name: str, *hosts: str, **validity: datetime.datetime) -> Path:
        found = authority.issue_cert(*hosts, common_name=name, **validity)
        path = folder / f"{name}.pem"
        path.write_bytes(_pkcs8(found) + b"".join(each.bytes() for each in found.cert_chain_pems))
        return path

    for name, each in (("ca", authority), ("other-ca", other)):
        each.cert_pem.write_to_path(str(folder / f"{name}.pem"))
    local = "127.0.0.1", "localhost"
    return Certificates(
        folder / "ca.pem",
        issued("broker", *local),
        issued("client", "client.test"),
        folder / "other-ca.pem",
        issued("expired", *local, not_before=now - 3 * day, not_after=now - day),
        issued("early", *local, not_before=now + day, not_after=now + 3 * day),
        issued("elsewhere", "elsewhere.test"),
    )


def _pkcs8(found: trustme.LeafCert) -> bytes:
    """Return the private key as Kafka reads it."""
    key = serialization.load_pem_private_key(found.private_key_pem.bytes(), None)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
