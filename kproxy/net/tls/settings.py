"""The settings of TLS."""

from __future__ import annotations

import ssl
from pathlib import Path

import attrs

VERSIONS = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.MAXIMUM_SUPPORTED
"""The oldest and the newest version that kproxy speaks."""


class TlsError(Exception):
    """An unusable certificate, key or store; the text says which, why, and what to do."""

    exit_code = 1


@attrs.frozen
class Identity:
    """A certificate with its chain, and its private key: PEM, or both in one PKCS12 file."""

    certificate: Path
    key: Path | None = None
    """The file of the key; None: the certificate's file has it."""
    password: str | None = attrs.field(default=None, repr=False)


@attrs.frozen
class Trust:
    """The authorities that a peer's certificate must come from: PEM or PKCS12."""

    authorities: Path
    password: str | None = attrs.field(default=None, repr=False)
    pem: str | None = attrs.field(default=None, repr=False)
    """The authorities themselves, from a properties file; its path is `authorities` then."""


@attrs.frozen
class BrokerTls:
    """The settings of TLS to brokers."""

    trust: Trust | None = None
    """The trusted authorities; None: those of the system."""
    identity: Identity | None = None
    """kproxy's certificate, for brokers that request one (mTLS)."""
    server_name: str | None = None
    """The name that a broker's certificate must have, and SNI; None: the host that is dialled."""
    verified: bool = True
    """The broker's certificate is verified."""
    names_verified: bool = True
    """Its host name is verified too; `ssl.endpoint.identification.algorithm=` turns that off."""
    revoked: Path | None = None
    """The revocation lists (PEM) that a broker's certificate must not be in, one of its authority
    among them; None: revocation is not checked."""
    versions: tuple[ssl.TLSVersion, ssl.TLSVersion] = VERSIONS
    """The oldest and the newest version that is spoken."""
    ciphers: str | None = None
    """The cipher suites of TLS 1.2, as OpenSSL lists them; None: its default."""
    key_log: Path | None = None


@attrs.frozen
class ListenTls:
    """The settings of TLS to clients."""

    identity: Identity | None = None
    """kproxy's certificate; None: one by kproxy's own CA."""
    clients: Trust | None = None
    """The authorities of the certificates that clients must have; None: they need none."""
    key_log: Path | None = None
