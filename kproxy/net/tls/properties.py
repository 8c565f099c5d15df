"""The properties file of a Kafka client, as settings of kproxy.

::

    client.properties ─▶ ClientProperties: bootstrap, TLS, the keys that kproxy uses, the others

Both dialects are read: Java's (`ssl.truststore.location`) and librdkafka's (`ssl.ca.location`).
Credentials are those of `credentials`; all other values are dropped when the file is read.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import attrs

from kproxy.net.tls.credentials import PROPERTIES as CREDENTIALS
from kproxy.net.tls.settings import VERSIONS, BrokerTls, Identity, TlsError, Trust
from kproxy.net.tls.stores import EXTRA

_TLS = ("ssl.", "enable.ssl.")
"""The beginnings of keys about TLS."""
_NAME = re.compile(r"[a-z][a-z0-9]*([._-][a-z0-9]+)+|acks|retries")
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_BOOTSTRAP = ("bootstrap.servers", "metadata.broker.list")
_TRUST = ("ssl.truststore.location", "ssl.ca.location")
_TRUST_INLINE = ("ssl.truststore.certificates", "ssl.ca.pem")
_CERTIFICATE = ("ssl.keystore.location", "ssl.certificate.location")
_KEY = ("ssl.key.location",)
_TRUST_PASSWORD = ("ssl.truststore.password",)
_KEY_PASSWORD = ("ssl.key.password", "ssl.keystore.password")
_ENDPOINT = "ssl.endpoint.identification.algorithm"
_VERIFICATION = "enable.ssl.certificate.verification"
_KEY_INLINE = ("ssl.keystore.key", "ssl.key.pem", "ssl.certificate.pem")
_PROTOCOL = "security.protocol"
_REVOKED = ("ssl.crl.location",)
_CIPHERS = "ssl.cipher.suites"
_ENABLED = "ssl.enabled.protocols"
_NEWEST = "ssl.protocol"
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_UP_TO = {"TLSv1.2": ("TLSv1.2",), "TLSv1.3": tuple(_VERSIONS), "TLS": tuple(_VERSIONS)}
"""Value of `ssl.protocol` → the versions that it allows."""
_JAVAS_CIPHER = re.compile(r"\b(TLS|SSL)_")
"""How names of cipher suites begin that are not OpenSSL's for TLS 1.2."""
_USED = frozenset(
    (
        *(*_BOOTSTRAP, *_TRUST, *_TRUST_INLINE, *_TRUST_PASSWORD, *_CERTIFICATE, *_KEY),
        *(*_KEY_PASSWORD, *_KEY_INLINE, *_REVOKED, _PROTOCOL, _ENDPOINT, _VERIFICATION, _CIPHERS),
        *(_ENABLED, _NEWEST, "ssl.truststore.type", "ssl.keystore.type"),
    )
)


@attrs.frozen
class ClientProperties:
    """The content of a properties file, as far as kproxy uses it."""

    bootstrap: str | None
    """The bootstrap servers as written there: HOST:PORT[,…]."""
    protocol: str
    """security.protocol, in capitals."""
    tls: BrokerTls | None
    """TLS to brokers; None: they speak plaintext."""
    used: list[str]
    """The keys that kproxy uses."""
    unapplied: list[str]
    """Keys about TLS that have no effect on kproxy's connections to brokers."""
    left: list[str]
    """The others, which are the client's."""
    path: Path
    files: Mapping[Path, str]
    """The files that it names → the key that names each."""
    credentials: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    """What it says of a login (`credentials`); empty where the listener takes none."""

    def lines(self) -> Iterator[str]:
        """Yield lines for the user on what becomes of the keys of the file."""
        used = sorted({*self.used, *self.credentials})
        yield f"{self.path}: uses {', '.join(used) or 'nothing'}"
        why = "" if self.tls else f" ({self.protocol} is without TLS)"
        if self.unapplied:
            yield f"does NOT apply to brokers{why}: {', '.join(self.unapplied)}"
        if left := [key for key in self.left if key not in self.credentials]:
            yield f"leaves to your client: {', '.join(left)}"

    def missing_file(self, tls: BrokerTls) -> str:
        """Return a sentence on a file that is not there, but that these settings use; "" if there
        is none."""
        identity = tls.identity
        used = [tls.revoked, tls.trust and tls.trust.authorities]
        used += [identity.certificate, identity.key] if identity else []
        missing = (
            f"{self.path}: {key} names {path}, which is not there"
            for path, key in self.files.items()
            if path in used and not path.exists()
        )
        return next(missing, "")


def read_properties(path: Path) -> ClientProperties:
    """Read a file of properties.

    Raises:
        TlsError: it cannot be read, or has a setting that kproxy does not support.
    """
    try:
        import javaproperties
    except ImportError as error:
        raise TlsError(f"to read {path} needs {EXTRA}") from error
    try:
        with path.open("rb") as file:
            found: dict[str, str] = javaproperties.load(file)
    except OSError as error:
        raise TlsError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    except ValueError:  # whose text may have a piece of a secret
        raise TlsError(f"{path} is no file of properties (lines of key=value)") from None
    keys = sorted(found)
    values = {key: value.strip() for key, value in found.items() if key in _USED}
    protocol = values.get(_PROTOCOL, "PLAINTEXT").upper()
    if protocol not in _PROTOCOLS:
        raise TlsError(f"{path}: {_PROTOCOL} is one of {', '.join(_PROTOCOLS)}")
    speaks_tls = protocol.endswith("SSL")
    login = protocol.startswith("SASL") and {
        key: v for key, v in found.items() if key in CREDENTIALS
    }
    used = [key for key in keys if key in values and _is_applied(key, values, speaks_tls)]
    others = [key for key in keys if key not in used]
    tls, files = _checked_tls(path, values) if speaks_tls else (None, {})
    return ClientProperties(
        _first(values, _BOOTSTRAP),
        protocol,
        tls,
        used,
        _shown([key for key in others if key.startswith(_TLS)]),
        _shown([key for key in others if not key.startswith(_TLS)]),
        path,
        files,
        login or {},
    )


def _is_applied(key: str, values: Mapping[str, str], speaks_tls: bool) -> bool:
    """Return whether a key that kproxy knows has an effect."""
    if key == _CIPHERS and _JAVAS_CIPHER.search(values.get(key, "")):
        return False
    return speaks_tls or not key.startswith(_TLS)


def _shown(keys: Sequence[str]) -> list[str]:
    """Return the names among keys; a line of a folded secret is none, and is not shown."""
    names = [key for key in keys if _NAME.fullmatch(key)]
    hidden = len(keys) - len(names)
    return [*names, f"{hidden} more"] if hidden else names


def _broker_tls(path: Path, values: Mapping[str, str]) -> BrokerTls:
    """Return the settings of TLS.

    Raises:
        TlsError: the file itself holds a private key.
    """
    inline = _first_key(values, _KEY_INLINE)
    if inline:
        where = "ssl.keystore.location, or ssl.certificate.location and ssl.key.location"
        raise TlsError(f"{path}: put what is in {inline} into a file of its own, named by {where}")
    verified = values.get(_VERIFICATION, "true").lower() != "false"
    return BrokerTls(
        _trust(path, values),
        _identity(path, values),
        verified=verified,
        names_verified=values.get(_ENDPOINT, "https").lower() not in ("", "none"),
        revoked=_file(path, values, _REVOKED),
        versions=_versions(path, values),
        ciphers=(values.get(_CIPHERS) or None) if _is_applied(_CIPHERS, values, True) else None,
    )


def _versions(path: Path, values: Mapping[str, str]) -> tuple[ssl.TLSVersion, ssl.TLSVersion]:
    """Return the oldest and the newest version that is allowed.

    Raises:
        TlsError: none is allowed that kproxy speaks.
    """
    enabled = values.get(_ENABLED) or ",".join(_VERSIONS)
    up_to = _UP_TO.get(values.get(_NEWEST) or "TLS", ())
    allowed = [name for name in up_to if name in re.split(r"\s*,\s*", enabled)]
    if not allowed:
        what = f"{_ENABLED} and {_NEWEST} allow neither {' nor '.join(_VERSIONS)}"
        raise TlsError(f"{path}: {what}, and kproxy speaks no other version")
    if allowed == list(_VERSIONS):
        return VERSIONS
    return _VERSIONS[allowed[0]], _VERSIONS[allowed[-1]]


def _checked_tls(path: Path, values: Mapping[str, str]) -> tuple[BrokerTls, dict[Path, str]]:
    try:
        return _broker_tls(path, values), _files(path, values)
    except (ValueError, RuntimeError):  # a path that nothing can have, the home of nobody
        raise TlsError(f"{path} names a file that cannot be") from None


def _trust(path: Path, values: Mapping[str, str]) -> Trust | None:
    pem = _first(values, _TRUST_INLINE)
    if pem:
        return Trust(path, pem=pem)
    location = _file(path, values, _TRUST)
    return Trust(location, _first(values, _TRUST_PASSWORD)) if location else None


def _identity(path: Path, values: Mapping[str, str]) -> Identity | None:
    certificate = _file(path, values, _CERTIFICATE)
    if not certificate:
        return None
    key = _file(path, values, _KEY)
    # A key in a file of its own has its own password; a store is opened by the store's.
    passwords = _KEY_PASSWORD if key else _KEY_PASSWORD[::-1]
    return Identity(certificate, key, _first(values, passwords))


def _files(path: Path, values: Mapping[str, str]) -> dict[Path, str]:
    found: dict[Path, str] = {}
    for keys in (_TRUST, _CERTIFICATE, _KEY, _REVOKED):
        key, location = _first_key(values, keys), _file(path, values, keys)
        if key and location:
            found[location] = key
    return found


def _file(path: Path, values: Mapping[str, str], keys: tuple[str, ...]) -> Path | None:
    """Return the file that the first of these keys names; None: none, or the system's."""
    location = _first(values, keys)
    if not location or (keys == _TRUST and location == "probe"):  # librdkafka's word for that
        return None
    return _beside(path, location)


def _beside(path: Path, location: str) -> Path:
    """Return a file at its path, or else the one beside the properties."""
    found = Path(location).expanduser()
    beside = path.parent / found
    return beside if not found.exists() and beside.exists() else found


def _first(values: Mapping[str, str], keys: tuple[str, ...]) -> str | None:
    key = _first_key(values, keys)
    return values[key] if key else None


def _first_key(values: Mapping[str, str], keys: tuple[str, ...]) -> str | None:
    return next((key for key in keys if values.get(key)), None)
