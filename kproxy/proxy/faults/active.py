"""A rule at work: checked and compiled, which exchanges it hits, and what it has done.

Invariants: a decision is a function of the seed, the rule's name and the match's ordinal, the first
being 1. Two runs with the same seed and the same traffic decide alike, and a rule more or less
changes nothing for the others. `times` alone counts what has happened, not what was decided: a
rule that another has won over keeps its turn. Nobody but the rule changes its counters.
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
    """A number from 0 up to 1, the same one for the same arguments; `draw` counts several."""
    text = f"{seed}\0{name}\0{ordinal}\0{draw}".encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(text, digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) * _UNIT


@attrs.define(eq=False, kw_only=True)
class Active:
    """A rule at work. `prepare` makes it; what it has done begins with nothing."""

    rule: Rule
    """In the words of its author."""
    name: str
    """Its own among the rules."""
    warnings: tuple[str, ...] = ()

    # ── what it does

    key: str
    """The action's."""
    action: Action
    value: object
    """Behind the action's key, parsed."""
    phase: str | None
    level: str | None

    # ── whom it means

    api_keys: frozenset[int] | None
    """The APIs; None: all for which its action works."""
    versions: Accepts | None
    client_ids: Accepts | None
    node_ids: Accepts | None
    where: Filter | None
    matcher: Matcher

    # ── which of the matches it hits

    probability: float = 1.0
    skip: int = 0
    """So many matches pass first."""
    every: int = 1
    """Of the rest, each n-th."""
    times: int | None = None
    """No more than so many hits."""
    start_after_ns: int = 0
    """Nothing is hit for so long after the rule was loaded (or enabled)."""
    duration_ns: int | None = None
    """And nothing after so long from then."""

    # ── what it has done

    fault_id: int = attrs.field(default=0, init=False)
    """Names it in recordings; never given to another."""
    enabled: bool = attrs.field(default=True, init=False)
    matched: int = attrs.field(default=0, init=False)
    fired: int = attrs.field(default=0, init=False)
    since_ns: int | None = attrs.field(default=None, init=False)
    """When its time began to run; None: with the first request that it means."""

    # ── meaning

    def phase_of(self, api_key: int) -> str:
        """When it acts on an API."""
        phases = self.action.phases
        return phases.of(api_key) if isinstance(phases, PhaseByApi) else self.phase or phases[0]

    def level_of(self, api_key: int) -> str | None:
        """Where it puts a code in an API; None: where that API usually has them."""
        if self.level is None and self.action.levels is not None:
            return self.action.levels.usual(api_key, self.value)
        return self.level

    def can_mean(self, api_key: int, api_version: int) -> bool:
        """Whether requests of this kind can be meant at all."""
        action, keys = self.action, self.matcher.keys
        if self.api_keys is not None and api_key not in self.api_keys:
            return False
        if self.versions is not None and not self.versions(api_version):
            return False
        if keys or action.known_only:
            known = shape(api_key, api_version)
            if known is None or not keys <= known.asked | known.open_keys:
                return False
        if action.levels is not None:
            level = self.level_of(api_key)
            if not action.levels.has_place(api_key, api_version, level, keys):
                return False
        return action.can(api_key, api_version)

    def follows(self, api_key: int) -> bool:
        """Whether it looks at the partitions of a Fetch, so that its session must be followed."""
        if api_key not in sessions.FETCHES:
            return False
        return bool(self.matcher.keys & _SESSION_KEYS) or self.level_of(api_key) in _SESSION_KEYS

    def means(self, view: RequestView) -> bool:
        """Whether it means the connection and the client of a request, and its filter the rest."""
        context = view.context
        if self.node_ids is not None:
            if context.node_id is None or not self.node_ids(context.node_id):
                return False
        if self.client_ids is not None:
            if view.client_id is None or not self.client_ids(view.client_id):
                return False
        return self.where is None or self.where.matches(view.arriving)

    # ── hitting

    def match(self, now: int) -> int:
        """Count a match; return its ordinal."""
        self.matched += 1
        if self.since_ns is None:
            self.since_ns = now
        return self.matched

    def hits(self, seed: int, ordinal: int, now: int) -> bool:
        """Whether the match of this ordinal is hit: by chance, by the time, and while it may."""
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
        """Count that it has acted, or is about to."""
        self.fired += 1

    def take_back(self) -> None:
        """It was about to act, and did not."""
        self.fired -= 1

    # ── changing

    def begin(self, fault_id: int, now: int | None) -> None:
        """Go to work."""
        self.fault_id, self.since_ns = fault_id, now

    def become(self, other: Active) -> None:
        """Do as another rule does; what it has done stays, and so do those who hold it."""
        for field in attrs.fields(Active):
            if field.init:
                setattr(self, field.name, getattr(other, field.name))

    def enable(self, enabled: bool, now: int | None) -> None:
        """Decide, or no longer; the time begins again when it is enabled."""
        if enabled and not self.enabled:
            self.since_ns = now
        self.enabled = enabled

    def reset(self, now: int | None) -> None:
        """Begin again, with nothing done."""
        self.matched = self.fired = 0
        self.since_ns = now
