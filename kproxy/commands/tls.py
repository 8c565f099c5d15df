"""The options of TLS to brokers and to clients.

::

    --broker-tls… ─▶ BrokerTls        --listen-tls… ─▶ ListenTls

Passwords come from environment variables, which other users cannot see.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kproxy.commands.options import UsageError, declare, host

if TYPE_CHECKING:
    from kproxy.net.tls.settings import BrokerTls, ListenTls

BROKER_PASSWORD = "KPROXY_BROKER_TLS_PASSWORD"
LISTEN_PASSWORD = "KPROXY_LISTEN_TLS_PASSWORD"
_LISTEN_TLS = (
    "give CERT,KEY (two files in PEM, no space between), one file that has both (PEM or PKCS12),"
    " or the word auto (a certificate by kproxy's own CA)"
)


def add_broker_tls_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of TLS to brokers."""
    group = parser.add_argument_group("TLS to brokers")
    declare(
        group.add_argument,
        f"""
        --broker-tls  speak TLS to brokers; implied by the other --broker-tls options
        --broker-tls-ca FILE  who signs the certificates of brokers: PEM, PKCS12 or JKS (default:
            the system's)
        --broker-tls-cert FILE  kproxy's certificate for brokers that require one: PEM, or PKCS12
            with its key; a password is in {BROKER_PASSWORD}
        --broker-tls-key FILE  its private key, if it is elsewhere
        --broker-tls-name NAME  the name in the certificates of brokers (default: the host of each)
        --broker-tls-no-verification  take any certificate of a broker: whoever is in between reads
            and changes all
        --tls-key-log FILE  append the keys of TLS sessions of both sides: who has them can decrypt
            these
        """,
        broker_tls_name=_certificate_name,
    )


def add_listen_tls_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of TLS to clients."""
    group = parser.add_argument_group("TLS to clients")
    declare(
        group.add_argument,
        f"""
        --listen-tls CERT,KEY  speak TLS to clients with this certificate and private key: PEM, or
            one PKCS12 file; auto: one by kproxy's own CA (kproxy certs); a password is in
            {LISTEN_PASSWORD}
        --listen-tls-clients CA  who signs the certificates that clients must have (default: they
            need none)
        """,
        listen_tls_clients=Path,
    )


def broker_tls(options: argparse.Namespace, said: BrokerTls | None = None) -> BrokerTls | None:
    """Return the settings of TLS to brokers; None: plaintext. What is typed goes before what the
    properties of a client have `said`.

    Raises:
        UsageError: a key is given without its certificate, or nothing where something must be.
    """
    import attrs

    from kproxy.net.tls.settings import BrokerTls, Identity, Trust

    password = os.environ.get(BROKER_PASSWORD)
    ca, certificate, key = options.broker_tls_ca, options.broker_tls_cert, options.broker_tls_key
    if key and not certificate:
        raise UsageError("--broker-tls-key needs --broker-tls-cert")
    typed: dict[str, Any] = {
        "trust": Trust(ca, password) if ca else None,
        "identity": Identity(certificate, key, password) if certificate else None,
        "server_name": options.broker_tls_name,
        "verified": False if options.broker_tls_no_verification else None,
    }
    typed = {field: value for field, value in typed.items() if value is not None}
    if not (said or typed or options.broker_tls):
        if options.tls_key_log and not options.listen_tls:
            raise UsageError("--tls-key-log needs TLS on one side")
        return None
    return attrs.evolve(said or BrokerTls(), **typed, key_log=options.tls_key_log)


def _certificate_name(text: str) -> str:
    """Parse the name that the certificates of brokers must have."""
    try:
        host(text)
    except ValueError:
        what = f"{text!r} is not a host" if text else "it is empty"
        example = "give a name as certificates have it, without a port: kafka.example.com"
        raise ValueError(f"{what}; {example}") from None
    return text


def listen_tls(options: argparse.Namespace) -> ListenTls | None:
    """Return the settings of TLS to clients; None: plaintext.

    Raises:
        UsageError: what is given is neither files nor "auto"; or clients must have certificates,
            but TLS is off.
    """
    if options.listen_tls is None:
        if options.listen_tls_clients:
            raise UsageError("--listen-tls-clients needs --listen-tls CERT,KEY, or auto")
        return None
    from kproxy.net.tls.settings import Identity, ListenTls, Trust

    password = os.environ.get(LISTEN_PASSWORD)
    identity = None
    if options.listen_tls != "auto":
        certificate, *key = map(Path, options.listen_tls.split(",", 1))
        missing = [path for path in (certificate, *key) if not path.is_file()]
        if missing:
            what = f"there is no file {str(missing[0])!r}" if options.listen_tls else "it is empty"
            raise UsageError(f"--listen-tls: {what}; {_LISTEN_TLS}")
        identity = Identity(certificate, key[0] if key else None, password)
    trust = options.listen_tls_clients and Trust(options.listen_tls_clients, password)
    return ListenTls(identity, trust or None, getattr(options, "tls_key_log", None))
