"""A rule at work: what it has seen and done, and whether a request is for it at all."""

from __future__ import annotations

import attrs

from kproxy.proxy.faults import sessions
from kproxy.proxy.faults.errors import PARTITION, TOPIC
from kproxy.proxy.faults.prepare import Prepared
from kproxy.proxy.faults.view import RequestView

_SESSION_KEYS = frozenset((TOPIC, PARTITION))


@attrs.define(eq=False)
class Active:
    """A rule at work, and what it has done."""

    fault_id: int
    """Names it in recordings; never given to another."""
    prepared: Prepared
    enabled: bool = True
    matched: int = 0
    fired: int = 0
    since_ns: int | None = None
    """When its time began to run; None: with the first request that it means."""

    @property
    def name(self) -> str:
        """Its name, its own among the rules."""
        return self.prepared.name

    def match(self, now: int) -> int:
        """Count a match; return its ordinal."""
        self.matched += 1
        if self.since_ns is None:
            self.since_ns = now
        return self.matched

    def is_due(self, now: int) -> bool:
        """Whether it may fire: it is its time, and it has not fired as often as it may."""
        trigger = self.prepared.trigger
        if trigger.times is not None and self.fired >= trigger.times:
            return False
        return trigger.is_time(now - (self.since_ns or 0))

    def follows(self, api_key: int) -> bool:
        """Whether it looks at the partitions of a Fetch, so that its session must be followed."""
        if api_key not in sessions.FETCHES:
            return False
        prepared = self.prepared
        return bool(prepared.matcher.keys & _SESSION_KEYS) or (
            prepared.key == "error" and prepared.level_of(api_key) in (TOPIC, PARTITION)
        )

    def means(self, view: RequestView) -> bool:
        """Whether it means the connection and the client of a request, and its filter the rest."""
        prepared, context = self.prepared, view.context
        if prepared.node_ids is not None:
            if context.node_id is None or not prepared.node_ids(context.node_id):
                return False
        if prepared.client_ids is not None:
            if view.client_id is None or not prepared.client_ids(view.client_id):
                return False
        return prepared.where is None or prepared.where.matches(view.arriving)
