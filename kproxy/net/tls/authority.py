"""kproxy's own CA, for clients that speak TLS to kproxy.

::

    the user's config folder: ca.pem (certificate and key, 0600), made once
        ├─ make_leaf(names), at each start and every 60 days, in memory ─▶ listeners
        └─ write_for_clients ─▶ ca.pem, truststore.p12

With this key anybody can stand between any broker and any client that trusts the CA. So the key
stays in that file, and the CA is for development and tests.

Without cryptography, to import this module raises TlsError.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import stat
import tempfile
from pathlib import Path

from kproxy.net.tls.settings import TlsError
from kproxy.net.tls.stores import EXTRA, Pem, certificate_pem, encrypt_key
from kproxy.recording.files import make_folder

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import pkcs12
except ImportError as error:
    raise TlsError(f"kproxy's own CA needs {EXTRA}") from error

_Key = ec.EllipticCurvePrivateKey
TRUSTSTORE_PASSWORD = "changeit"
"""Java's default password, for a store that holds no secret."""
_AUTHORITY_DAYS = 3650
_LEAF_DAYS = 90
_MARK = ".kproxy-certs"
"""Stands beside files that may be written again."""
_EARLIER = datetime.timedelta(hours=1)
"""Certificates are valid from this long ago, because clocks differ."""


def authority_file() -> Path:
    """Return the path of the CA, which may not exist yet."""
    config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(config) / "kproxy" / "ca.pem"


def make_leaf(names: list[str]) -> Pem:
    """Return a certificate of the CA for these host names and IP addresses, with a new key.

    Raises:
        TlsError: the CA cannot be read or written.
    """
    certificate, ca_key = _authority()
    key = ec.generate_private_key(ec.SECP256R1())
    signed = (
        _builder(names[0], certificate.subject, key, _LEAF_DAYS)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), False)
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        .add_extension(_key_usage(signs_certificates=False), True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), False
        )
        .sign(ca_key, hashes.SHA256())
    )
    return encrypt_key(certificate_pem(signed) + certificate_pem(certificate), key)


def write_for_clients(folder: Path) -> list[Path]:
    """Write the certificate of the CA for clients, in each form that they take.

    Raises:
        TlsError: the CA cannot be read or written, or the folder cannot.
    """
    certificate, _ = _authority()
    store = pkcs12.serialize_java_truststore(
        [pkcs12.PKCS12Certificate(certificate, b"kproxy")],
        serialization.BestAvailableEncryption(TRUSTSTORE_PASSWORD.encode()),
    )
    written = {folder / "ca.pem": certificate_pem(certificate), folder / "truststore.p12": store}
    try:
        for each in reversed((folder, *folder.parents)):
            each.mkdir(mode=0o755, exist_ok=True)
        for path in written:
            if path.exists() and not _is_ours(path):
                raise TlsError(f"{path} is not of kproxy and stays as it is; give another --out")
        _write(folder / _MARK, b"what kproxy certs wrote here may be written again\n")
        for path, data in written.items():
            _write(path, data)
    except OSError as error:
        raise _unusable(error) from error
    return list(written)


def _write(path: Path, data: bytes) -> None:
    """Write a file that others may read, since clients run as other users, too, and never write:
    they would say whom clients trust."""
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    with open(number, "wb") as file:
        os.fchmod(number, stat.S_IMODE(os.fstat(number).st_mode) & 0o755)
        file.write(data)


def _is_ours(path: Path) -> bool:
    """Return whether `kproxy certs` wrote this file, and it does not hold the CA's key."""
    return path.with_name(_MARK).exists() and path.resolve() != authority_file().resolve()


def _authority() -> tuple[x509.Certificate, _Key]:
    """Return the certificate and the key of the CA; make it if there is none.

    Raises:
        TlsError: it cannot be read or written.
    """
    path = authority_file()
    try:
        if not path.exists():
            _make_authority(path)
        data = path.read_bytes()
        key = serialization.load_pem_private_key(data, None)
        certificate = x509.load_pem_x509_certificate(data)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        what = "set XDG_CONFIG_HOME to a folder that kproxy may write"
        raise TlsError(f"kproxy's own CA is to be in {path}: {why}; {what}") from error
    except (ValueError, TypeError) as error:  # the latter where the key has a password
        raise TlsError(f"{path} is damaged; delete it, and kproxy makes a new CA") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TlsError(f"{path} is not kproxy's CA; move it away, and kproxy makes one")
    return certificate, key


def _make_authority(path: Path) -> None:
    """Make the CA. If two are made at once the first one stays."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kproxy CA")])
    certificate = (
        _builder("kproxy CA", name, key, _AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(_key_usage(signs_certificates=True), True)
        .sign(key, hashes.SHA256())
    )
    key_pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    make_folder(path.parent)
    with tempfile.NamedTemporaryFile(dir=path.parent) as file:  # which is 0600
        file.write(certificate_pem(certificate) + key_pem)
        file.flush()
        with contextlib.suppress(FileExistsError):
            os.link(file.name, path)


def _builder(common_name: str, issuer: x509.Name, key: _Key, days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name[:64])]),
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - _EARLIER,
        not_valid_after=now + datetime.timedelta(days=days),
    )


def _key_usage(signs_certificates: bool) -> x509.KeyUsage:
    """Return what a key may do; strict verifiers (Python 3.13) want it said."""
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        return x509.DNSName(name)
    except ValueError:
        return x509.DNSName(name.encode("idna").decode())


def _unusable(error: OSError) -> TlsError:
    return TlsError(f"{error.filename or 'a file'}: {(error.strerror or str(error)).lower()}")
