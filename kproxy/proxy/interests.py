"""The interests of the machine in the frames of an API, besides sending them on: a bit set.

Decided once per (api_key, api_version) from the schema and the rules, so that a frame costs one
look-up::

    interests[api_key, api_version] & REQUEST_BITS      0: the short-cut takes it

The cluster owns the one `Interests`, and with it the rules: connections ask here for both. They are
asked afresh after the rules have changed.
"""

from __future__ import annotations

from kproxy.exchange.entities import tells_topic_ids
from kproxy.proxy import redact, rewrite
from kproxy.proxy.verdicts import Decider
from kproxy.wire.protocol import is_known

UNKNOWN = 1  # no schema: recorded opaque
SECRET_REQUEST = 2
SECRET_RESPONSE = 4
PRODUCE = 8  # may have no response (acks=0)
ADDRESSES = 16  # responses carry broker addresses
BEHIND_RECORDS = 32  # … after a field of unbounded size
RULES = 64  # a fault rule decides about it
VERSIONS = 128  # ApiVersions: what kproxy cannot rewrite must not be negotiated
TOPIC_IDS = 256  # responses tell which topic an id stands for

REQUEST_BITS = UNKNOWN | SECRET_REQUEST | PRODUCE | RULES
RESPONSE_BITS = UNKNOWN | SECRET_RESPONSE | ADDRESSES | VERSIONS | TOPIC_IDS
"""The bits that matter for one direction."""

PRODUCE_KEY = 0
VERSIONS_KEY = 18

_KINDS_MAX = 4096
"""At most this many kinds are cached: a client may send any key and version."""


class Interests(dict[tuple[int, int], int]):
    """(api_key, api_version) → the interests in its frames."""

    def __init__(self, rules: Decider | None = None, passive: bool = False) -> None:
        super().__init__()
        self._never = ADDRESSES | BEHIND_RECORDS | VERSIONS if passive else 0
        """The interests of a machine that rewrites; a passive one sees what has passed already."""
        self.rules = rules
        """The rules of all connections."""
        self._generation = 0 if rules is None else rules.generation

    def refresh(self) -> None:
        """Drop the cached interests if the rules have changed."""
        if self.rules is not None and self.rules.generation != self._generation:
            self._generation = self.rules.generation
            self.clear()

    def closed(self, connection: int) -> None:
        """Have the rules forget a connection."""
        if self.rules is not None:
            self.rules.closed(connection)

    def __missing__(self, kind: tuple[int, int]) -> int:
        if len(self) >= _KINDS_MAX:
            self.clear()
        wanted = _without_rules(*kind) & ~self._never
        if self.rules is not None and self.rules.wants(*kind):
            wanted |= RULES
        self[kind] = wanted
        return wanted


def _without_rules(api_key: int, api_version: int) -> int:
    """Return the interests that do not depend on rules."""
    wanted = 0 if is_known(api_key, api_version) else UNKNOWN
    if redact.is_sensitive(api_key):
        wanted |= SECRET_REQUEST | SECRET_RESPONSE
    if api_key == PRODUCE_KEY:
        wanted |= PRODUCE
    if api_key == VERSIONS_KEY:
        wanted |= VERSIONS
    if tells_topic_ids(api_key, api_version):
        wanted |= TOPIC_IDS
    fields = rewrite.address_fields(api_key, api_version)
    if fields:
        wanted |= ADDRESSES | (BEHIND_RECORDS if fields.behind_records else 0)
    return wanted
