"""Secrets, blanked out of a frame before anything keeps it.

A frame stays valid: every byte of a secret becomes `*` (or zero where the field is not text), so
that sizes, offsets and all other fields are what they were. Secrets are:

* SASL tokens both ways, raw ones included: passwords, bearer tokens, SCRAM proofs, and the salts
  that allow an attack on them offline;
* delegation tokens: ids and HMACs are a SCRAM user name and password;
* SCRAM credentials being set: salts and salted passwords;
* the mechanism of a SaslHandshake, unless it is one that exists: a client may have put its password
  there by mistake;
* the content of an Envelope, which can be any of these;
* values of configs whose key Kafka types PASSWORD or that look like a secret;
* in all frames of these APIs, bytes that no field explains: unknown tagged fields, and bytes behind
  the body. These bytes become zero.

Where such a frame cannot be walked (an unknown version, a malformed or a cut-off body), or has a
token and bytes behind its body (a length that is too small puts the token into other fields), all
of it behind the fixed part of its header is blanked out: better a lost body than a leak.

Invariant: redacting a redacted frame changes nothing (`kproxy scan` relies on it).
"""

from __future__ import annotations

import functools
import re

from kproxy.exchange.entries import Side
from kproxy.proxy.mechanisms import is_mechanism
from kproxy.wire.protocol import ProtocolError, codec, schema
from kproxy.wire.protocol.compile_locate import UNKNOWN_TAG

_HEADER_BYTES = {Side.CLIENT: 12, Side.BROKER: 8}
"""Side → the fixed part of its header: size, key, version and correlation id; of a response,
size and correlation id."""

_SECRETS: dict[tuple[str, Side], tuple[str, ...]] = {
    ("SaslHandshake", Side.CLIENT): ("mechanism",),
    ("SaslHandshake", Side.BROKER): (),  # has none, but what does not decode may be a token
    ("SaslAuthenticate", Side.CLIENT): ("auth_bytes",),
    ("SaslAuthenticate", Side.BROKER): ("auth_bytes", "error_message"),
    ("CreateDelegationToken", Side.BROKER): ("token_id", "hmac"),
    ("RenewDelegationToken", Side.CLIENT): ("hmac",),
    ("ExpireDelegationToken", Side.CLIENT): ("hmac",),
    ("DescribeDelegationToken", Side.BROKER): ("tokens.token_id", "tokens.hmac"),
    ("AlterUserScramCredentials", Side.CLIENT): (
        "upsertions.salt",
        "upsertions.salted_password",
    ),
    ("Envelope", Side.CLIENT): ("request_data", "request_principal"),
    ("Envelope", Side.BROKER): ("response_data",),
}

_CONFIGS: dict[tuple[str, Side], tuple[str, ...]] = {
    ("CreateTopics", Side.CLIENT): ("topics.configs.name", "topics.configs.value"),
    ("CreateTopics", Side.BROKER): ("topics.configs.name", "topics.configs.value"),
    ("AlterConfigs", Side.CLIENT): ("resources.configs.name", "resources.configs.value"),
    ("IncrementalAlterConfigs", Side.CLIENT): (
        "resources.configs.name",
        "resources.configs.value",
    ),
    ("DescribeConfigs", Side.BROKER): (
        "results.configs.name",
        "results.configs.value",
        "results.configs.synonyms.name",
        "results.configs.synonyms.value",
    ),
}
"""Pairs of paths: the name of a config, and the value that follows it."""

_SENSITIVE = frozenset(
    ("DescribeUserScramCredentials", *(api for api, _ in (*_SECRETS, *_CONFIGS)))
)
"""The APIs of which a request or a response has fields for secrets."""

_SECRET_KEY = re.compile(
    # whatever calls itself a secret …
    rb"passw(or)?d|passphrase|secret|credential|bearer|jaas|user\.info"
    rb"|(api|access|private|auth|account|encryption|signing|shared)[._-]?(access[._-]?)?(key|token)"
    rb"|sas[._-]?token|connection[._-]?(string|url|uri)|(^|[._-])(pwd|pass|pw|token|dsn)$"
    # … and the configs that Kafka types PASSWORD without saying so in their names
    rb"|ssl\.keystore\.(key|certificate\.chain)|ssl\.truststore\.certificates"
    rb"|delegation\.token\.master\.key",
    re.IGNORECASE,
)


@functools.lru_cache(maxsize=256)
def is_sensitive(api_key: int) -> bool:
    """Return whether frames of this API can hold secrets: requests or responses, in any version."""
    return schema.api_name(api_key) in _SENSITIVE


def has_token(api_key: int, side: Side) -> bool:
    """Return whether requests or responses of this API carry a token that other fields follow.

    SCRAM credentials are left out: librdkafka sends bytes behind their body.
    """
    api = schema.api_name(api_key)
    return (api, side) in _SECRETS and api != "AlterUserScramCredentials"


def redact(frame: bytes, side: Side, api_key: int, api_version: int) -> bytes | None:
    """Return the frame with its secrets blanked out, or None if it holds none.

    A frame that cannot be walked comes back with everything behind its header blanked.
    """
    direction = schema.REQUEST if side is Side.CLIENT else schema.RESPONSE
    message = schema.message(api_key, direction)
    if message is None or api_version not in message.versions:
        return blank(frame, side)
    fields = schema.api_name(api_key), side
    paths = _SECRETS.get(fields) or _CONFIGS.get(fields) or ()
    try:
        header, body = _walk_header(frame, side, api_key, api_version)
        spans, end = codec.locate(message, api_version, paths, unknown_tags=True)(frame, body)
    except ProtocolError:
        return blank(frame, side)
    if end < len(frame) and has_token(api_key, side):
        return blank(frame, side)  # a length may be too small, and any field hold what is behind it
    secret = _config_values(frame, spans) if fields in _CONFIGS else _contents(spans)
    if schema.api_name(api_key) == "SaslHandshake":
        secret = [place for place in secret if not is_mechanism(frame[slice(*place)])]
    unexplained = [span[2:] for span in (*header, *spans) if span[0] == UNKNOWN_TAG]
    unexplained.append((end, len(frame)))
    redacted = bytearray(frame)
    for places, filling in ((secret, b"*"), (unexplained, b"\0")):
        for start, stop in places:
            redacted[start:stop] = filling * (stop - start)
    return bytes(redacted) if any(start < stop for start, stop in (*secret, *unexplained)) else None


def has_header(request: bytes) -> bool:
    """Return whether a request has the header that all APIs and versions begin with."""
    try:
        codec.locate(schema.named("RequestHeader"), 1, ())(request, codec.SIZE_BYTES)
    except ProtocolError:
        return False
    return True


def decodes(request: bytes, api_key: int, api_version: int) -> bool:
    """Return whether a request is what its API and version say. Bytes that no field explains,
    which `redact` makes zero, may follow."""
    message = schema.message(api_key, schema.REQUEST)
    if message is None or api_version not in message.versions:
        return False
    try:
        _, body = _walk_header(request, Side.CLIENT, api_key, api_version)
        codec.locate(message, api_version, ())(request, body)
    except ProtocolError:
        return False
    return True


def blank(frame: bytes, side: Side) -> bytes:
    """Return the frame with all that follows the fixed part of its header set to zero."""
    kept = _HEADER_BYTES[side]
    return frame[:kept] + bytes(max(0, len(frame) - kept))


def blank_token(frame: bytes) -> bytes:
    """Return a SASL token that has no Kafka header, only a size, with every byte a `*`."""
    return frame[:4] + b"*" * (len(frame) - 4)


def _walk_header(
    frame: bytes, side: Side, api_key: int, api_version: int
) -> tuple[list[codec.Span], int]:
    """Walk the header of a frame: the spans of its unknown tags, and where the body starts."""
    if side is Side.CLIENT:
        name, version = "RequestHeader", codec.request_header_version(api_key, api_version)
    else:
        name, version = "ResponseHeader", codec.response_header_version(api_key, api_version)
    walk = codec.locate(schema.named(name), version, (), unknown_tags=True)
    return walk(frame, codec.SIZE_BYTES)


def _contents(spans: list[codec.Span]) -> list[tuple[int, int]]:
    return [(content, end) for index, _, content, end in spans if index >= 0]


def _config_values(frame: bytes, spans: list[codec.Span]) -> list[tuple[int, int]]:
    secret: list[tuple[int, int]] = []
    keys: dict[int, bytes] = {}
    for index, _, content, end in spans:
        if index < 0:
            continue
        if index % 2 == 0:
            keys[index] = frame[content:end]
            # Synonyms have names of their own (a broker-wide default, say), but belong to the key.
            if index == 0:
                keys.pop(2, None)
        elif any(_SECRET_KEY.search(key) for key in keys.values()):
            secret.append((content, end))
    return secret
