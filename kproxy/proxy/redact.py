"""Secrets, blanked out of a frame before anything keeps it.

A frame stays valid: every byte of a secret becomes `*` (or zero where the field is not text), so
that sizes, offsets and all other fields are what they were. What is secret:

* SASL tokens both ways, raw ones included: passwords, bearer tokens, SCRAM proofs, and the salts
  that allow an attack on them offline;
* delegation tokens: ids and HMACs are a SCRAM user name and password;
* SCRAM credentials being set: salts and salted passwords;
* whatever an Envelope wraps, for it can be any of these;
* values of configs whose key Kafka types PASSWORD or that look like a secret.

Where such a frame cannot be walked (an unknown version, a malformed or a cut-off body), the whole
of it behind the fixed part of its header is blanked out: better a lost body than a leaked secret.
"""

from __future__ import annotations

import functools
import re

from kproxy.exchange.entries import Side
from kproxy.protocol import ProtocolError, codec, schema

_HEADER_BYTES = {Side.CLIENT: 12, Side.BROKER: 8}
"""Size, key, version and correlation id; size and correlation id."""

_SECRETS: dict[tuple[str, Side], tuple[str, ...]] = {
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
"""Pairs of paths: a name, and the value that follows it."""

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
def is_sensitive(api_key: int, side: Side) -> bool:
    """Whether frames of this API from this side can hold secrets (in any version)."""
    name = schema.api_name(api_key)
    return (name, side) in _SECRETS or (name, side) in _CONFIGS


def redact(frame: bytes, side: Side, api_key: int, api_version: int) -> bytes | None:
    """Return the frame with its secrets blanked out, or None if it holds none.

    Total: a frame that cannot be walked comes back with everything behind its header blanked.
    """
    name = schema.api_name(api_key)
    direction = schema.REQUEST if side is Side.CLIENT else schema.RESPONSE
    message = schema.message(api_key, direction)
    if message is None or api_version not in message.versions:
        return blank(frame, side)
    try:
        if side is Side.CLIENT:
            body = codec.request_body(frame)
        else:
            body = codec.response_body(frame, api_key, api_version)
        secret = _secret_spans(frame, message, api_version, name, side, body)
    except ProtocolError:
        return blank(frame, side)
    if not secret:
        return None
    redacted = bytearray(frame)
    for start, end in secret:
        redacted[start:end] = b"*" * (end - start)
    return bytes(redacted)


def blank(frame: bytes, side: Side) -> bytes:
    """Return the frame with all that follows the fixed part of its header set to zero."""
    kept = _HEADER_BYTES[side]
    return frame[:kept] + bytes(max(0, len(frame) - kept))


def blank_token(frame: bytes) -> bytes:
    """Return a SASL token that has no Kafka header, only a size, with every byte a `*`."""
    return frame[:4] + b"*" * (len(frame) - 4)


def _secret_spans(
    frame: bytes, message: schema.Message, version: int, name: str, side: Side, body: int
) -> list[tuple[int, int]]:
    paths = _SECRETS.get((name, side))
    if paths is not None:
        spans, _ = codec.locate(message, version, paths)(frame, body)
        return [(content, end) for index, _, content, end in spans if index >= 0 and end > content]
    spans, _ = codec.locate(message, version, _CONFIGS[name, side])(frame, body)
    secret = []
    keys: dict[int, bytes] = {}
    for index, _, content, end in spans:
        if index < 0:
            continue
        if index % 2 == 0:
            keys[index] = frame[content:end]
            # Synonyms have names of their own (a broker-wide default, say), but belong to the key.
            if index == 0:
                keys.pop(2, None)
        elif end > content and any(_SECRET_KEY.search(key) for key in keys.values()):
            secret.append((content, end))
    return secret
