"""What a user decides about TLS."""

from __future__ import annotations

from pathlib import Path

import attrs


class TlsError(Exception):
    """A certificate, a key or a store cannot be used; the text says which, why, what to do."""


@attrs.frozen
class Identity:
    """A certificate with its chain, and its private key: PEM, or both in one PKCS12 file."""

    certificate: Path
    key: Path | None = None
    """None: the file of the certificate has the key, too."""
    password: str | None = attrs.field(default=None, repr=False)


@attrs.frozen
class Trust:
    """The authorities that a peer's certificate must come from: PEM or PKCS12."""

    authorities: Path
    password: str | None = attrs.field(default=None, repr=False)
    pem: str | None = attrs.field(default=None, repr=False)
    """They stand in a file of properties, of that path."""


@attrs.frozen
class BrokerTls:
    """How kproxy speaks TLS to brokers."""

    trust: Trust | None = None
    """None: the authorities of the system."""
    identity: Identity | None = None
    """Who kproxy is, for brokers that ask (mTLS)."""
    server_name: str | None = None
    """The name that a broker's certificate must have, and SNI; None: the host that is dialled."""
    verified: bool = True
    """Whether the broker's certificate is checked."""
    names_verified: bool = True
    """Whether its host name is; `ssl.endpoint.identification.algorithm=` turns that off."""
    key_log: Path | None = None


@attrs.frozen
class ListenTls:
    """How kproxy speaks TLS to clients."""

    identity: Identity | None = None
    """None: a certificate by kproxy's own CA."""
    clients: Trust | None = None
    """Who signs the certificates that clients must have; None: they need none."""
    key_log: Path | None = None
