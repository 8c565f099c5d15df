"""Attempts: a request, the later requests of its client that ask the same, and how each ended.

::

    request ─▶ what it asks for (`identities`) ─┐
    later requests of the same client ──────────┴─▶ first · last Attempt ─▶ outcome

A part counts: clients put what they ask into other requests when they ask again. Nothing is an
attempt behind the first that succeeded, nor where the same would be about something else: a
transaction has ended meanwhile.
"""

from __future__ import annotations

import attrs

from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.entries import UNKNOWN_NS
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.words.failures import WHOLE, failures
from kproxy.exchange.words.wording import listed
from kproxy.history.identities import (
    GIVES_ID,
    Asked,
    Parts,
    fetch_session,
    is_anonymous,
    mentions,
    separates,
)
from kproxy.history.ref import client_of

# ── how an exchange ended ────────────────────────────────────────────────────────────────────

SUCCEEDED, GIVEN_ID = "succeeded", "was given a member id"


def outcome(exchange: Exchange, place: TopicPartition = WHOLE) -> str:
    """Return how an exchange ended for its client, as a part of a sentence; `SUCCEEDED` only where
    the recording proves it."""
    if exchange.one_way:
        return "has no response (acks=0)"
    if exchange.left_open:
        return "has no response before the recording ends"
    if exchange.unanswered is not None:
        return "was never answered"
    if exchange.undelivered:
        return "was answered, but the response did not reach the client"
    failed = [
        each.error
        for each in (failures(exchange) if exchange.errors else ())
        if place == WHOLE
        or any(one in (place, WHOLE) or one == (place.topic, -1) for one in each.places)
    ]
    if exchange.response is None and not failed:
        return "has a response that could not be read"
    if failed == [GIVES_ID]:
        return GIVEN_ID
    if failed:
        return f"failed with {listed(failed)}"
    return "was answered when the client had ended its side" if exchange.is_late else SUCCEEDED


FAULT_SECONDS = 30
"""Time after a hit of a fault rule in which its client's requests count as its consequence."""
COMPLETE = {
    "latency": "it was late, and succeeded",
    "bandwidth": "it was late, and succeeded",
    "throttle": "it succeeded",
    "duplicate": "it succeeded",
    "truncate": "it succeeded",
    "hide_api": "it succeeded",
    "max_version": "it succeeded",
}
"""Actions of fault rules after which an exchange may still be complete, and what its own success is
called."""


def own_success(exchange: Exchange, action: str | None) -> str:
    """Return what the success of an exchange is called that is the same in spite of what a rule did
    to it; "" if it is not."""
    if action == "truncate" and exchange.row.fault_ns == UNKNOWN_NS:
        return ""  # the recording is too old to tell whether a frame left in part
    return COMPLETE.get(action or "", "") if outcome(exchange) == SUCCEEDED else ""


def works_again(exchange: Exchange) -> bool:
    """Return whether an exchange after a hit shows that its API works: it succeeded, and no rule
    touched it."""
    return outcome(exchange) == SUCCEEDED and not exchange.row.fault_ids


# ── who asked, and what asks the same ────────────────────────────────────────────────────────


def same_client(one: Exchange, other: Exchange) -> bool:
    """Return whether two exchanges are of one client, or of two on one host with one client id."""
    return one.connection == other.connection or client_of(one) == client_of(other)


@attrs.frozen(eq=False)
class Attempt:
    """A later request that asks the same as another, or a part of it."""

    number: int
    name: str
    """API and number: `Produce #15`."""
    time_ns: int
    outcome: str
    by_records: bool
    """True if it has the same records with other sequence numbers."""
    is_part: bool
    """True if it does not ask for all of it."""
    has_more: bool
    """True if it has other records for the same partitions as well."""


@attrs.define(eq=False)
class Attempts:
    """The attempts that follow a request: of them all, or of those for one place."""

    request: Exchange
    wanted: Asked | None
    place: TopicPartition = WHOLE
    session: int = 0
    """The fetch session in which later requests ask for the place without naming it; 0: none."""
    first: Attempt | None = None
    last: Attempt | None = None
    count: int = 0
    is_over: bool = False
    is_maybe: bool = False
    """True if a later request has records of it, but as others, if its numbers are right."""

    @property
    def is_none(self) -> bool:
        """True if it is known that nothing asked for the same."""
        return self.wanted is not None and self.first is None and not self.is_maybe

    def add(self, later: Exchange, asked: Asked | None) -> None:
        """Take a later request of the same client, and what it asks for."""
        self.is_over = self.is_over or separates(later, self.request)
        if self.is_over or later.api != self.request.api:
            return
        if later.connection != self.request.connection and is_anonymous(self.request):
            return
        own = self.wanted
        if own is None or asked is None:
            return
        if _shared(own.parts, asked.parts):
            self._take(later, own.parts, asked.parts, False)
        elif _shared(own.by_records, asked.by_records):
            self.is_maybe = True
            if own.producers.isdisjoint(asked.producers):
                self._take(later, own.by_records, asked.by_records, True)
        elif self._is_implied(later):
            self._take(later, {}, {}, False)

    def _take(self, later: Exchange, own: Parts, its: Parts, by_records: bool) -> None:
        ended = outcome(later, self.place)
        is_part = any(not each <= its.get(place, set()) for place, each in own.items())
        more = any(its.get(place, set()) - each for place, each in own.items())
        self.last = Attempt(
            later.number, f"{later.api} #{later.number}", later.time_ns, ended, by_records, is_part,
            more and later.api == "Produce",
        )  # fmt: skip
        self.first = self.first or self.last
        self.count += 1
        self.is_over = ended in (SUCCEEDED, GIVEN_ID)

    def _is_implied(self, later: Exchange) -> bool:
        if not self.session or fetch_session(later.request) != self.session:
            return False
        if mentions(later, self.place):  # with another offset, or for the last time
            self.session = 0
        return self.session != 0

    def asks_other(self, later: Exchange, asked: Asked | None) -> bool:
        """Return whether a request of the same API is known to ask for something else."""
        if any(fetch_session(each.request) for each in (self.request, later)):
            return False  # it lists only what has changed
        own = self.wanted
        if own is None or asked is None or not own.parts or not asked.parts:
            return False
        return not (_shared(own.parts, asked.parts) or _shared(own.by_records, asked.by_records))


def _shared(own: Parts, its: Parts) -> bool:
    return any(not each.isdisjoint(its.get(place, ())) for place, each in own.items())
