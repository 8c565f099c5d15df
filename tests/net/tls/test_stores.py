"""Keys and certificates from PKCS12, with nothing decrypted left on a disk; kproxy's own CA."""

from __future__ import annotations

import base64
import contextlib
import os
import ssl
import tempfile
import threading
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from kproxy.net.tls import authority
from kproxy.net.tls.settings import Identity, TlsError, Trust
from kproxy.net.tls.stores import load_identity, load_trust


def stores(folder: Path) -> tuple[Path, Path]:
    """A keystore and a truststore in PKCS12, by another writer than ours."""
    ca = trustme.CA()
    leaf = ca.issue_cert("localhost")
    key = serialization.load_pem_private_key(leaf.private_key_pem.bytes(), None)
    chain = [x509.load_pem_x509_certificate(each.bytes()) for each in leaf.cert_chain_pems]
    lock = serialization.BestAvailableEncryption(b"secret")
    keystore = folder / "key.p12"
    keystore.write_bytes(
        pkcs12.serialize_key_and_certificates(b"k", key, chain[0], chain[1:], lock)
    )
    truststore = folder / "trust.p12"
    trusted = [pkcs12.PKCS12Certificate(x509.load_pem_x509_certificate(ca.cert_pem.bytes()), b"c")]
    truststore.write_bytes(pkcs12.serialize_java_truststore(trusted, lock))
    return keystore, truststore


def shake(server: ssl.SSLContext, client: ssl.SSLContext) -> dict:
    """Have two contexts agree; what the client sees of the server."""
    ways = [ssl.MemoryBIO(), ssl.MemoryBIO()]
    ends = [
        client.wrap_bio(ways[0], ways[1], server_hostname="localhost"),
        server.wrap_bio(ways[1], ways[0], server_side=True),
    ]
    for _ in range(3):
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    return ends[0].getpeercert() or {}


def test_a_key_and_its_authority_come_out_of_pkcs12(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keystore, truststore = stores(tmp_path)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    written: list[bytes] = []

    class Watching(ssl.SSLContext):
        def load_cert_chain(self, certfile, keyfile=None, password=None) -> None:
            assert not list(temporary.iterdir())
            for path in (Path(certfile), Path(keyfile)):
                assert path.stat().st_nlink == 0, "a kill would leave it behind"
                written.append(path.read_bytes())
            super().load_cert_chain(certfile, keyfile, password)

    load_identity(Watching(ssl.PROTOCOL_TLS_SERVER), Identity(keystore, password="secret"))
    load_identity(server, Identity(keystore, password="secret"))
    load_trust(client, Trust(truststore, "secret"))
    assert shake(server, client)["subjectAltName"] == (("DNS", "localhost"),)
    certificates, key = written
    assert b"CERTIFICATE" in certificates and b"KEY" not in certificates
    assert key.startswith(b"-----BEGIN ENCRYPTED PRIVATE KEY-----")


def test_a_key_is_loaded_where_there_is_no_memory_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS."""
    monkeypatch.delattr(os, "memfd_create", raising=False)
    keystore, truststore = stores(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    load_identity(server, Identity(keystore, password="secret"))
    load_trust(client, Trust(truststore, "secret"))
    assert shake(server, client)["subjectAltName"] == (("DNS", "localhost"),)


@pytest.mark.parametrize(
    ("password", "reason"), [("wrong", "its password is wrong"), (None, "it needs a password")]
)
def test_a_wrong_password_is_said(password: str | None, reason: str, tmp_path: Path) -> None:
    keystore, truststore = stores(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for load in (
        lambda: load_identity(context, Identity(keystore, password=password)),
        lambda: load_trust(context, Trust(truststore, password)),
    ):
        with pytest.raises(TlsError, match=f"as PKCS12 {reason}"):
            load()


JKS = base64.b64decode(
    """
/u3+7QAAAAIAAAABAAAAAgAFa2Fma2EAAAGiB0AcwAAFWC41MDkAAAHOMIIByjCCAW+gAwIBAgIUehuGmVGwy5v9DF
g/V/pjrT9BZRAwCgYIKoZIzj0EAwIwQDEXMBUGA1UECgwOdHJ1c3RtZSB2MS4yLjExJTAjBgNVBAsMHFRlc3Rpbmcg
Q0EgI0x1bkNGd3RZNHhxdjhPUDQwIBcNMDAwMTAxMDAwMDAwWhgPMzAwMDAxMDEwMDAwMDBaMEAxFzAVBgNVBAoMDn
RydXN0bWUgdjEuMi4xMSUwIwYDVQQLDBxUZXN0aW5nIENBICNMdW5DRnd0WTR4cXY4T1A0MFkwEwYHKoZIzj0CAQYI
KoZIzj0DAQcDQgAEK66g+hGhTmHGIZz/hSwOw8pjGxElKK3MBOLWPabgcoVm1u8GighJ5+em9uT2kNWuHrpRTL/RC0
H3qsGK32gboKNFMEMwHQYDVR0OBBYEFMomtXML62+nYXr6cIjNvKuerdSGMBIGA1UdEwEB/wQIMAYBAf8CAQkwDgYD
VR0PAQH/BAQDAgGGMAoGCCqGSM49BAMCA0kAMEYCIQD2Lwp4JlS9pWOltQTaw2/9PciqwDyz15gNYCqJg3oHXAIhAN
LBEct5M4p9O7+J5N+KNOnVpCPDuDWZ9T0C2YXSWO4QgTHqdU8988tTaW+j8bEKj/b2lKU=
"""
)
"""A truststore that keytool of Java 17 has written, with one authority of trustme; "changeit"."""


@pytest.mark.parametrize("password", ["changeit", None])  # Java takes none, too
def test_authorities_come_out_of_a_java_keystore(password: str | None, tmp_path: Path) -> None:
    (tmp_path / "trust.jks").write_bytes(JKS)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    load_trust(context, Trust(tmp_path / "trust.jks", password))
    (found,) = context.get_ca_certs()
    names = dict(pair for part in found["subject"] for pair in part)
    assert names["organizationName"] == "trustme v1.2.1"


def test_a_java_keystore_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "trust.jks"
    path.write_bytes(JKS)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with pytest.raises(TlsError, match="is a Java KeyStore, and its password is wrong"):
        load_trust(context, Trust(path, "wrong"))
    for length in range(4, len(JKS) - 20, 9):
        path.write_bytes(JKS[:length])
        with pytest.raises(TlsError, match="is a Java KeyStore, and it "):
            load_trust(context, Trust(path))
    for at in range(4, 40):
        path.write_bytes(JKS[:at] + b"\xff" + JKS[at + 1 :])
        with contextlib.suppress(TlsError):
            load_trust(context, Trust(path))


def test_a_ca_is_made_once_and_is_its_owners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    old = os.umask(0)
    try:
        racing = [threading.Thread(target=authority.make_leaf, args=(["x"],)) for _ in range(4)]
        for thread in racing:
            thread.start()
        for thread in racing:
            thread.join()
    finally:
        os.umask(old)
    path = authority.authority_file()
    made = path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert list(path.parent.iterdir()) == [path]
    ca, truststore = authority.write_for_clients(tmp_path / "out")
    assert path.read_bytes() == made and b"PRIVATE" not in ca.read_bytes()
    for trust in (Trust(ca), Trust(truststore, authority.TRUSTSTORE_PASSWORD)):
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python 3.13 does
        long = ".".join(["kafka"] * 20)  # a common name has 64 characters at most
        _load_leaf(server, [long, "localhost", "127.0.0.1"])
        load_trust(client, trust)
        names = shake(server, client)["subjectAltName"]
        assert names == (("DNS", long), ("DNS", "localhost"), ("IP Address", "127.0.0.1"))


def _load_leaf(context: ssl.SSLContext, names: list[str]) -> None:
    from kproxy.net.tls.stores import load_pem

    load_pem(context, authority.make_leaf(names), Path("leaf"))


def test_a_file_that_is_not_ours_is_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = tmp_path / "certs"
    folder.mkdir()
    (folder / "ca.pem").write_text("the company's")
    with pytest.raises(TlsError, match=r"ca\.pem is not of kproxy and stays as it is"):
        authority.write_for_clients(folder)
    assert (folder / "ca.pem").read_text() == "the company's"
    with pytest.raises(TlsError, match="stays as it is"):
        authority.write_for_clients(authority.authority_file().parent)
    assert authority.write_for_clients(tmp_path / "new") == authority.write_for_clients(
        tmp_path / "new"
    )
    # Nor is kproxy's own key, where what was written is a link to it now.
    made = authority.authority_file().read_bytes()
    (tmp_path / "new" / "ca.pem").unlink()
    (tmp_path / "new" / "ca.pem").symlink_to(authority.authority_file())
    with pytest.raises(TlsError, match="stays as it is"):
        authority.write_for_clients(tmp_path / "new")
    assert authority.authority_file().read_bytes() == made


def test_a_ca_that_cannot_be_written_says_where_it_is_to_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/proc/there-is-none")
    with pytest.raises(TlsError, match=r"/proc/there-is-none/kproxy/ca\.pem: .*XDG_CONFIG_HOME"):
        authority.make_leaf(["localhost"])


def test_a_damaged_ca_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = authority.authority_file()
    path.parent.mkdir()
    path.write_text("nothing")
    with pytest.raises(TlsError, match="is damaged; delete it"):
        authority.make_leaf(["x"])
