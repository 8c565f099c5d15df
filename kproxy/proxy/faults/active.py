"""A rule at work: checked and compiled, with its decisions and its counters.

Invariants: a decision is a function of the seed, the rule's name and the match's ordinal, the first
being 1. Two runs with the same seed and the same traffic decide alike, and adding or removing a
rule changes nothing for the others. Only `times` counts effects, not decisions: a rule that lost to
another one keeps its turn. Only the rule changes its counters.
"""

from __future__ import annotations

import hashlib

import attrs

from kproxy.exchange.filter import Filter
from kproxy.proxy.faults import sessions
from kproxy.proxy.faults.action import Action, PhaseByApi
from kproxy.proxy.faults.errors import PARTITION, TOPIC
from kproxy.proxy.faults.items import shape
from kproxy.proxy.faults.match import Accepts, Matcher
from kproxy.proxy.faults.rule import Rule
from kproxy.proxy.faults.view import RequestView

_UNIT = 1 / (1 << 53)
_SESSION_KEYS = frozenset((TOPIC, PARTITION))


def chance(seed: int, name: str, ordinal: int, draw: int = 0) -> float:
    """Return a number from 0 up to 1, the same for the same arguments; `draw` numbers several."""
    text = f"{seed}\0{name}\0{ordinal}\0{draw}".encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(text, digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) * _UNIT


@attrs.define(eq=False, kw_only=True)
class Active:
    """A rule at work. `prepare` makes it, with all counters at 0."""

    rule: Rule
    """The rule in the words of its author."""
    name: str
    """A name that no other rule has."""
    warnings: tuple[str, ...] = ()

    # ── the action

    key: str
    """The key of the action."""
    action: Action
    value: object
    """The parsed value of the action's key."""
    phase: str | None
    level: str | None

    # ── the requests that it matches

    api_keys: frozenset[int] | None
    """The keys of its APIs; None: all for which its action works."""
    versions: Accepts | None
    client_ids: Accepts | None
    node_ids: Accepts | None
    where: Filter | None
    matcher: Matcher

    # ── the matches that it hits

    probability: float = 1.0
    skip: int = 0
    """This many matches pass first."""
    every: int = 1
    """Each n-th of the other matches is hit."""
    times: int | None = None
    """The most hits; None: no limit."""
    start_after_ns: int = 0
    """Nothing is hit for this long after the rule was loaded (or enabled)."""
    duration_ns: int | None = None
    """Nothing is hit when this much time has passed since then."""

    # ── its counters

    fault_id: int = attrs.field(default=0, init=False)
    """Its id in recordings; no other rule ever gets it."""
    enabled: bool = attrs.field(default=True, init=False)
    matched: int = attrs.field(default=0, init=False)
    fired: int = attrs.field(default=0, init=False)
    asked_again: int = attrs.field(default=0, init=False)
    """The hits of a request that its client sent again, as the next one, after it was hit."""
    since_ns: int | None = attrs.field(default=None, init=False)
    """The time from which its spans count; None: the first request that it matches."""

    _last_hits: dict[int, tuple[int, int]] = attrs.field(factory=dict, init=False)
    """Connection → correlation id and hash of the request that was hit last on it."""

    # ── matching

    def phase_of(self, api_key: int) -> str:
        """Return the phase in which it acts on an API."""
        phases = self.action.phases
        return phases.of(api_key) if isinstance(phases, PhaseByApi) else self.phase or phases[0]

    def level_of(self, api_key: int) -> str | None:
        """Return the level of its code in an API; None: the level that the API usually has."""
        if self.level is None and self.action.levels is not None:
            return self.action.levels.usual(api_key, self.value)
        return self.level

    def can_match(self, api_key: int, api_version: int) -> bool:
        """Return whether the rule can match any request of this kind."""
        action, keys = self.action, self.matcher.keys
        if self.api_keys is not None and api_key not in self.api_keys:
            return False
        if self.versions is not None and not self.versions(api_version):
            return False
        if keys or action.known_only:
            found = shape(api_key, api_version)
            if found is None or not keys <= found.request_keys | found.open_keys:
                return False
        if action.levels is not None:
            level = self.level_of(api_key)
            if not action.levels.has_place(api_key, api_version, level, keys):
                return False
        return action.can(api_key, api_version)

    def needs_sessions(self, api_key: int) -> bool:
        """Return whether it matches partitions of a Fetch, so that sessions must be followed."""
        if api_key not in sessions.FETCHES:
            return False
        return bool(self.matcher.keys & _SESSION_KEYS) or self.level_of(api_key) in _SESSION_KEYS

    def matches_header(self, view: RequestView) -> bool:
        """Return whether it matches the broker and the client of a request, and its filter too."""
        context = view.context
        if self.node_ids is not None:
            if context.node_id is None or not self.node_ids(context.node_id):
                return False
        if self.client_ids is not None:
            if view.client_id is None or not self.client_ids(view.client_id):
                return False
        return self.where is None or self.where.matches(view.arriving)

    # ── hitting

    def count_match(self, now: int) -> int:
        """Count a match; return its ordinal."""
        self.matched += 1
        if self.since_ns is None:
            self.since_ns = now
        return self.matched

    def hits(self, seed: int, ordinal: int, now: int) -> bool:
        """Return whether it hits the match of this ordinal, by counters, time and chance."""
        if self.times is not None and self.fired >= self.times:
            return False
        since = now - (self.since_ns or 0) - self.start_after_ns
        if since < 0 or (self.duration_ns is not None and since >= self.duration_ns):
            return False
        counted = ordinal - self.skip
        if counted <= 0 or counted % self.every:
            return False
        return self.probability >= 1 or chance(seed, self.name, ordinal) < self.probability

    def fire(self) -> None:
        """Count an effect, or one that is about to come."""
        self.fired += 1

    def count_again(self, view: RequestView) -> None:
        """Count the hit of a request if it is the one that was hit just before, sent again: the
        next correlation id, and the same bytes; a client has one Fetch at a time, in a session.
        After an error only: otherwise that is how clients poll."""
        if self.action.levels is None:
            return
        frame, connection = view.frame, view.context.connection
        correlation_id = int.from_bytes(frame[8:12], signed=True)
        same = view.api_key if view.api_key in sessions.FETCHES else hash(bytes(frame[12:]))
        if self._last_hits.get(connection) == (correlation_id - 1, same):
            self.asked_again += 1
        self._last_hits[connection] = correlation_id, same

    def forget(self, connection: int) -> None:
        """Forget a connection, which has ended."""
        self._last_hits.pop(connection, None)

    def take_back(self) -> None:
        """Uncount an effect that did not come."""
        self.fired -= 1

    # ── changing

    def begin(self, fault_id: int, now: int | None) -> None:
        """Give the rule its id; its time runs from now."""
        self.fault_id, self.since_ns = fault_id, now

    def become(self, other: Active) -> None:
        """Take over the words of another rule; the counters stay, and this object."""
        for field in attrs.fields(Active):
            if field.init:
                setattr(self, field.name, getattr(other, field.name))

    def enable(self, enabled: bool, now: int | None) -> None:
        """Enable or disable the rule; its time begins again when it is enabled."""
        if enabled and not self.enabled:
            self.since_ns = now
        self.enabled = enabled

    def reset(self, now: int | None) -> None:
        """Set the counters to 0; its time runs from now."""
        self.matched = self.fired = self.asked_again = 0
        self.since_ns = now
