"""The name in a peer's certificate, for people: it proves nothing.

::

    getpeercert() ─▶ common name │ alternative names      a verified peer
    DER ─▶ the same, by `cryptography` if it is there     one that is not: OpenSSL decodes nothing
"""

from __future__ import annotations

import contextlib
import re
import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cryptography import x509


def peer_name(tls: ssl.SSLSocket | ssl.SSLObject) -> str | None:
    """Return the common name in the peer's certificate, or else its first alternative name; None:
    it showed none, or none that can be read."""
    certificate: Any = tls.getpeercert()  # its type is too wide for the loops below
    if certificate:
        subject = dict(pair for part in certificate.get("subject", ()) for pair in part)
        names = (name for _, name in certificate.get("subjectAltName", ()))
        return subject.get("commonName") or next(names, None)
    der = tls.getpeercert(binary_form=True)
    return _name_in(der) if der else None


def distinguished_name(tls: ssl.SSLSocket | ssl.SSLObject) -> str:
    """Return the subject of a verified peer as Java and Kafka's default principal write it
    (RFC 2253); "" if there is none."""
    certificate: Any = tls.getpeercert() or {}
    parts = ("+".join(map(_attribute, part)) for part in certificate.get("subject", ()))
    return ",".join(reversed([*parts]))


def _attribute(pair: tuple[str, str]) -> str:
    name, value = pair
    return f"{_KEYWORDS.get(name, name)}=" + _ESCAPED.sub(r"\\\g<0>", value)


_KEYWORDS = {
    "commonName": "CN", "countryName": "C", "domainComponent": "DC", "localityName": "L",
    "organizationName": "O", "organizationalUnitName": "OU", "stateOrProvinceName": "ST",
    "streetAddress": "STREET", "userId": "UID",
}  # fmt: skip
"""OpenSSL's name of an attribute → its keyword."""
_ESCAPED = re.compile(r'[,=+<>#;"\\]|^ | $')


def _name_in(der: bytes) -> str | None:
    try:
        from cryptography import x509
    except ImportError:
        return None
    # Nobody has checked what is in it, and cryptography has errors of many kinds for that.
    with contextlib.suppress(Exception):
        return next(_names(x509.load_der_x509_certificate(der)), None)
    return None


def _names(certificate: x509.Certificate) -> Iterator[str]:
    from cryptography import x509

    for attribute in certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME):
        if attribute.value:
            yield str(attribute.value)
    with contextlib.suppress(x509.ExtensionNotFound):
        alternative = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        yield from (str(name.value) for name in alternative.value)
