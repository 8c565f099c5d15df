"""The properties file of a Kafka client, as settings of kproxy.

::

    client.properties ─▶ ClientProperties: bootstrap, TLS, the keys that kproxy uses, the others

Both dialects are read: Java's (`ssl.truststore.location`) and librdkafka's (`ssl.ca.location`).
SASL credentials belong to the client, which goes on sending them itself: their values are dropped
when the file is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from kproxy.tls.settings import BrokerTls, Identity, TlsError, Trust
from kproxy.tls.stores import EXTRA

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
_USED = frozenset(
    {
        *_BOOTSTRAP,
        *_TRUST,
        *_TRUST_INLINE,
        *_CERTIFICATE,
        *_KEY,
        *_TRUST_PASSWORD,
        *_KEY_PASSWORD,
        *_KEY_INLINE,
        _ENDPOINT,
        _VERIFICATION,
        _PROTOCOL,
        "ssl.truststore.type",
        "ssl.keystore.type",
    }
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
    left: list[str]
    """The others, which are the client's."""


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
    return ClientProperties(
        _first(values, _BOOTSTRAP),
        protocol,
        _checked_tls(path, values) if protocol.endswith("SSL") else None,
        [key for key in keys if key in values],
        _shown([key for key in keys if key not in values]),
    )


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
    )


def _checked_tls(path: Path, values: Mapping[str, str]) -> BrokerTls:
    try:
        return _broker_tls(path, values)
    except (ValueError, RuntimeError):  # a path that nothing can have, the home of nobody
        raise TlsError(f"{path} names a file that cannot be") from None


def _trust(path: Path, values: Mapping[str, str]) -> Trust | None:
    pem = _first(values, _TRUST_INLINE)
    if pem:
        return Trust(path, pem=pem)
    location = _first(values, _TRUST)
    if not location or location == "probe":  # librdkafka's word for the system's
        return None
    return Trust(_beside(path, location), _first(values, _TRUST_PASSWORD))


def _identity(path: Path, values: Mapping[str, str]) -> Identity | None:
    location = _first(values, _CERTIFICATE)
    if not location:
        return None
    key = _first(values, _KEY)
    # A key in a file of its own has its own password; a store is opened by the store's.
    passwords = _KEY_PASSWORD if key else _KEY_PASSWORD[::-1]
    return Identity(
        _beside(path, location), _beside(path, key) if key else None, _first(values, passwords)
    )


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
