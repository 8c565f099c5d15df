"""Certificates and keys from files in PEM or PKCS12, as PEM; authorities also from a JKS.

Python's `ssl` loads a private key from a file only. So one from PKCS12, or from memory, is
encrypted with a one-time password and loaded from a file that has no name: in memory on Linux, a
temporary one elsewhere. Nothing is left of it, however kproxy ends.

Errors: `TlsError`, one line.
"""

from __future__ import annotations

import os
import re
import secrets
import ssl
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING

import attrs

from kproxy.net.tls import jks
from kproxy.net.tls.settings import Identity, TlsError, Trust

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates
    from cryptography.x509 import Certificate

_PEM = b"-----BEGIN "
_PEM_LABEL = re.compile(rb"-----BEGIN ([^-]*)-----")
_PASSWORDS = "ssl.key.password, KPROXY_BROKER_TLS_PASSWORD or KPROXY_LISTEN_TLS_PASSWORD"
_NAME_KEY = "--broker-tls-key, ssl.key.location, or KEY in --listen-tls CERT,KEY names its file"
EXTRA = "pip install 'kproxy-kafka[tls]'"


@attrs.frozen
class Pem:
    """An identity in memory."""

    certificates: bytes
    """The certificates in PEM, the leaf first."""
    key: bytes = attrs.field(repr=False)
    """The key in PEM, encrypted."""
    password: str = attrs.field(repr=False)


def load_identity(context: ssl.SSLContext, identity: Identity) -> None:
    """Load a certificate and its key into a context.

    Raises:
        TlsError: it cannot be read, its password is wrong, or its key does not belong to it.
    """
    path = identity.certificate
    data = _read(path)
    if _PEM not in data:
        load_pem(context, _pem(identity), path)
        return
    key = identity.key or path
    key_data = _read(key) if identity.key else data
    if b"PRIVATE KEY-----" not in key_data:
        raise TlsError(f"{key} has no private key in PEM; {_NAME_KEY}")
    # An empty answer instead of OpenSSL's question on the terminal.
    password = identity.password or ""
    try:
        context.load_cert_chain(path, key, lambda: password)
    except ssl.SSLError as error:
        why = _why_no_key(error, b"ENCRYPTED" in key_data, bool(identity.password))
        raise TlsError(f"{key}: {why}") from error
    except ValueError:
        raise TlsError(f"{key}: the password is none that OpenSSL takes") from None
    except OSError as error:
        raise TlsError(f"{key}: {(error.strerror or str(error)).lower()}") from error


def load_pem(context: ssl.SSLContext, pem: Pem, source: Path) -> None:
    """Load a certificate in memory and its key into a context; `source` names it in errors.

    Raises:
        TlsError: its key does not belong to it.
    """
    try:
        # Two files, because OpenSSL reads the certificates and the key each from where a file is.
        with _nameless(pem.certificates) as certificates, _nameless(pem.key) as key:
            paths = (f"/dev/fd/{file.fileno()}" for file in (certificates, key))
            context.load_cert_chain(*paths, password=pem.password)
    except ssl.SSLError as error:
        raise TlsError(f"{source}: {_why_no_key(error)}") from error
    except OSError as error:
        raise TlsError(f"{source}: no temporary file: {error.strerror or error}") from error


def _nameless(data: bytes) -> IO[bytes]:
    """Return an open file without a name that has this content."""
    memory: Callable[[str], int] | None = getattr(os, "memfd_create", None)  # Linux
    file = open(memory("kproxy"), "w+b") if memory else tempfile.TemporaryFile()
    file.write(data)
    file.seek(0)
    return file


def load_trust(context: ssl.SSLContext, trust: Trust) -> None:
    """Load trusted authorities into a context.

    Raises:
        TlsError: the file cannot be read, or holds no certificate.
    """
    path = trust.authorities
    data = trust.pem.encode("ascii", "ignore") if trust.pem else _read(path)
    if data.startswith(jks.MAGIC):
        data = _jks_pem(path, data, trust.password)
    elif _PEM not in data:
        store = _pkcs12(path, data, trust.password)
        found = [each.certificate for each in store.additional_certs]
        data = b"".join(certificate_pem(each) for each in found)
    try:
        context.load_verify_locations(cadata=data.decode("ascii", "ignore"))
    except (ssl.SSLError, ValueError) as error:  # the latter where there is none
        raise TlsError(f"{path} holds no certificate of an authority") from error


def _jks_pem(path: Path, data: bytes, password: str | None) -> bytes:
    try:
        found = jks.trusted(data, password)
    except jks.JksError as error:
        raise TlsError(f"{path} is a Java KeyStore, and {error}") from error
    return "".join(map(ssl.DER_cert_to_PEM_cert, found)).encode()


def load_revoked(context: ssl.SSLContext, path: Path) -> None:
    """Load revocation lists into a context, and have a peer's certificate checked against that of
    its authority.

    Raises:
        TlsError: the file cannot be read, or holds anything but revocation lists.
    """
    if set(_PEM_LABEL.findall(_read(path))) != {b"X509 CRL"}:  # a certificate would be trusted
        raise TlsError(f"{path} does not hold revocation lists in PEM, and nothing else")
    try:
        context.load_verify_locations(cafile=path)
    except (ssl.SSLError, OSError) as error:
        raise TlsError(f"{path} holds a damaged revocation list") from error
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _pem(identity: Identity) -> Pem:
    path = identity.certificate
    store = _pkcs12(path, _read(path), identity.password)
    if store.key is None or store.cert is None:
        raise TlsError(f"{path} holds no private key with its certificate")
    chain = [store.cert, *store.additional_certs]
    certificates = b"".join(certificate_pem(each.certificate) for each in chain)
    return encrypt_key(certificates, store.key)


def encrypt_key(certificates: bytes, key: PrivateKeyTypes) -> Pem:
    """Return an identity with its key encrypted by a one-time password."""
    from cryptography.hazmat.primitives import serialization

    password = secrets.token_urlsafe(32)
    data = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password.encode()),
    )
    return Pem(certificates, data, password)


def _pkcs12(path: Path, data: bytes, password: str | None) -> PKCS12KeyAndCertificates:
    if data.startswith(jks.MAGIC):
        raise TlsError(
            f"{path} is a Java KeyStore; convert it:"
            f" keytool -importkeystore -srckeystore {path} -destkeystore {path.stem}.p12"
            " -deststoretype PKCS12"
        )
    try:
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError as error:
        raise TlsError(f"{path} is not PEM; PKCS12 needs {EXTRA}") from error
    try:
        return pkcs12.load_pkcs12(data, password.encode() if password is not None else None)
    except ValueError as error:
        what = "it cannot be read"
        if "password" in str(error).lower():
            what = "its password is wrong" if password is not None else "it needs a password"
        raise TlsError(f"{path} is not PEM, and as PKCS12 {what}") from error


def certificate_pem(certificate: Certificate) -> bytes:
    """Return a certificate in PEM."""
    from cryptography.hazmat.primitives import serialization

    return certificate.public_bytes(serialization.Encoding.PEM)


def _read(path: Path) -> bytes:
    try:
        if not path.is_file():  # a pipe would be waited for
            what = "is no regular file" if path.exists() else "no such file or directory"
            raise TlsError(f"{path}: {what}")
        return path.read_bytes()
    except OSError as error:
        raise TlsError(f"{path}: {(error.strerror or str(error)).lower()}") from error


def _why_no_key(error: ssl.SSLError, encrypted: bool = False, with_password: bool = False) -> str:
    """Return the reason why OpenSSL does not take a certificate with its key."""
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the key is not that of the certificate"
    if encrypted:  # OpenSSL says no more than that it failed
        return (
            "the password is wrong" if with_password else f"the key needs a password: {_PASSWORDS}"
        )
    return "no certificate with its private key in PEM"
