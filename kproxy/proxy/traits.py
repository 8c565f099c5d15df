"""What the machine does with the frames of an API besides passing them on, as a bit set.

Decided once per (api_key, api_version) from the schema, so that a frame costs one look-up.
"""

from __future__ import annotations

import functools

from kproxy.exchange.entries import Side
from kproxy.protocol import is_known
from kproxy.proxy import redact, rewrite

UNKNOWN = 1  # no schema: recorded opaque
SECRET_REQUEST = 2
SECRET_RESPONSE = 4
PRODUCE = 8  # may have no response (acks=0)
HANDSHAKE = 16  # SaslHandshake v0: tokens without headers follow
ADDRESSES = 32  # responses carry broker addresses
BEHIND_RECORDS = 64  # … after a field of unbounded size

REQUEST_TRAITS = UNKNOWN | SECRET_REQUEST | PRODUCE | HANDSHAKE
RESPONSE_TRAITS = UNKNOWN | SECRET_RESPONSE | HANDSHAKE | ADDRESSES
"""The traits that matter for one direction."""

PRODUCE_KEY = 0
HANDSHAKE_KEY = 17


@functools.lru_cache(maxsize=4096)
def traits(api_key: int, api_version: int) -> int:
    """Return the traits of one version of an API, known or not."""
    found = 0 if is_known(api_key, api_version) else UNKNOWN
    if redact.is_sensitive(api_key, Side.CLIENT):
        found |= SECRET_REQUEST
    if redact.is_sensitive(api_key, Side.BROKER):
        found |= SECRET_RESPONSE
    if api_key == PRODUCE_KEY:
        found |= PRODUCE
    if api_key == HANDSHAKE_KEY and api_version == 0:
        found |= HANDSHAKE
    fields = rewrite.address_fields(api_key, api_version)
    if fields:
        found |= ADDRESSES | (BEHIND_RECORDS if fields.behind_records else 0)
    return found
