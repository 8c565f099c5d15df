"""What restricts TLS to brokers, the log of keys, and the name of a peer."""

from __future__ import annotations

import datetime
import socket
import ssl
import threading
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from kproxy.net.tls.contexts import broker_contexts
from kproxy.net.tls.peer import peer_name
from kproxy.net.tls.settings import BrokerTls, Identity, TlsError, Trust
from kproxy.net.tls.stores import load_identity


class Broker:
    """A listener that speaks TLS, with an authority of its own."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.ca = folder / "ca.pem"
        self.authority.cert_pem.write_to_path(str(self.ca))
        self.leaf = self.authority.issue_cert("localhost")  # it has no common name
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.leaf.configure_cert(self.context)

    def shake(self, **restrictions: object) -> tuple[str | None, str | None, str | None]:
        """Agree with kproxy; return the version, the cipher and the broker's name."""
        tls = BrokerTls(**{"trust": Trust(self.ca)} | restrictions)
        ours, theirs = socket.socketpair()
        ours.settimeout(20), theirs.settimeout(20)
        thread = threading.Thread(target=self._serve, args=(theirs,))
        thread.start()
        try:
            context = broker_contexts(tls, print).context()
            with context.wrap_socket(ours, server_hostname="localhost") as it:
                return it.version(), (it.cipher() or ("",))[0], peer_name(it)
        finally:
            ours.close()
            thread.join()

    def _serve(self, theirs: socket.socket) -> None:
        with theirs:
            try:
                with self.context.wrap_socket(theirs, server_side=True) as tls:
                    tls.recv(1)
            except OSError:
                pass

    def revoked(self, path: Path, serial: int) -> Path:
        """Write a list that revokes the certificate of this number."""
        now = datetime.datetime.now(datetime.UTC)
        key = serialization.load_pem_private_key(self.authority.private_key_pem.bytes(), None)
        ca = x509.load_pem_x509_certificate(self.authority.cert_pem.bytes())
        one = x509.RevokedCertificateBuilder(serial, now).build()
        crl = x509.CertificateRevocationListBuilder(
            ca.subject, now, now + datetime.timedelta(days=1), revoked_certificates=[one]
        ).sign(key, hashes.SHA256())  # type: ignore[arg-type]
        path.write_bytes(crl.public_bytes(serialization.Encoding.PEM))
        return path

    @property
    def serial(self) -> int:
        """The number of the broker's certificate."""
        pem = self.leaf.cert_chain_pems[0].bytes()
        return x509.load_pem_x509_certificate(pem).serial_number


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    """A broker by TLS."""
    return Broker(tmp_path)


def test_versions_and_ciphers_are_restricted(broker: Broker) -> None:
    old = ssl.TLSVersion.TLSv1_2
    cipher = "ECDHE-ECDSA-AES128-GCM-SHA256"
    assert broker.shake()[0] == "TLSv1.3"
    assert broker.shake(versions=(old, old), ciphers=cipher)[:2] == ("TLSv1.2", cipher)
    with pytest.raises(TlsError, match=r"ssl\.cipher\.suites: OpenSSL has none of NO-SUCH"):
        broker.shake(ciphers="NO-SUCH")


def test_a_revoked_certificate_is_refused(broker: Broker, tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="revoked"):
        broker.shake(revoked=broker.revoked(tmp_path / "its.crl", broker.serial))
    broker.shake(revoked=broker.revoked(tmp_path / "anothers.crl", broker.serial + 1))
    other = Broker(tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get certificate CRL"):
        broker.shake(
            trust=Trust(_both(tmp_path, broker)),
            revoked=other.revoked(tmp_path / "other.crl", other.serial),
        )
    with pytest.raises(TlsError, match="does not hold revocation lists in PEM, and nothing else"):
        broker.shake(revoked=broker.ca)  # it would be trusted


def _both(folder: Path, broker: Broker) -> Path:
    path = folder / "again.pem"
    broker.authority.cert_pem.write_to_path(str(path))
    return path


def test_a_peer_without_a_common_name_has_its_alternative_name(broker: Broker) -> None:
    assert broker.shake()[2] == "localhost"
    assert broker.shake(verified=False)[2] == "localhost"  # OpenSSL decodes nothing then


def test_a_key_log_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("of another day\n")
    path.chmod(0o640)
    with pytest.raises(TlsError, match=r"others may open .*keys \(mode 0640\): chmod 600 it"):
        broker_contexts(BrokerTls(key_log=path), print)
    path.chmod(0o600)
    broker_contexts(BrokerTls(key_log=path), print)
    assert path.read_text().startswith("of another day\n"), "keys are appended"
    with pytest.raises(TlsError, match="is no regular file"):
        broker_contexts(BrokerTls(key_log=tmp_path), print)


@pytest.mark.parametrize(
    ("password", "reason"), [("wrong", "the password is wrong"), (None, "the key needs a password")]
)
def test_a_wrong_password_of_a_pem_key_is_said(
    password: str | None, reason: str, broker: Broker, tmp_path: Path
) -> None:
    key = serialization.load_pem_private_key(broker.leaf.private_key_pem.bytes(), None)
    lock = serialization.BestAvailableEncryption(b"secret")
    for form in (serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.TraditionalOpenSSL):
        path = tmp_path / "key.pem"
        path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, lock))
        certificate = tmp_path / "cert.pem"
        certificate.write_bytes(broker.leaf.cert_chain_pems[0].bytes())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        with pytest.raises(TlsError, match=reason):
            load_identity(context, Identity(certificate, path, password))
        load_identity(context, Identity(certificate, path, "secret"))
