"""What came of a failure: the same asked again, and what the client did meanwhile.

failed or unanswered exchange ─▶ later exchanges of the same client ─▶ sentences
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from kproxy.exchange.endings import connection
from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.entries import CONNECTIONS, Note
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import matching
from kproxy.exchange.words.failures import WHOLE, failures, place_text
from kproxy.exchange.words.wording import age, count, listed
from kproxy.why import again
from kproxy.why.again import Parts
from kproxy.why.sentences import named
from kproxy.why.source import Source

_MEANWHILE_MAX = 5
"""Requests named that the client sent meanwhile."""
_MEANWHILE_SECONDS = 2
"""What a client did this long after a failure is told where it did not ask again."""
_REJOINED_AFTER = ("Heartbeat", "SyncGroup", "OffsetCommit")
"""Requests of members, who join again instead of asking the same again."""
_TELLING = frozenset(
    [
        "Metadata",
        "FindCoordinator",
        "InitProducerId",
        "JoinGroup",
        "LeaveGroup",
        "EndTxn",
        "ListOffsets",
        "OffsetForLeaderEpoch",
        "OffsetFetch",
        "CreateTopics",
        "SaslHandshake",
    ]
)
"""APIs with which clients react to failures; the others are what they do anyway."""

_AGAIN = {
    "Produce": ("sent the same batch again with", "sends the same batch{of} again"),
    "Fetch": ("asked for the same offset again with", "asks for the same offset{of} again"),
    "JoinGroup": ("joined again, as the same member, with", "joins as the same member"),
    "Heartbeat": ("sent the next one of this generation,", "is of this member and generation"),
    "OffsetCommit": ("committed the same offset again with", "commits the same offset{of} again"),
}
_OTHER = ("asked the same again with", "asks the same{of} again")
"""API → the words for a second attempt, and for none."""


@attrs.define(eq=False)
class _Attempts:
    """The later requests that ask for the same, up to the first that succeeds."""

    place: TopicPartition
    wanted: Parts
    by_records: bool
    found: list[Exchange] = attrs.field(factory=list[Exchange])
    """The first and the last."""
    count: int = 0
    is_over: bool = False
    session: int = 0
    """The fetch session in which later requests ask for the same without naming it; 0: none."""

    has_more: bool = False
    """True if the first of them has other records as well."""

    def add(self, later: Exchange) -> None:
        """Take a later request of the same API."""
        if self.is_over or not (
            again.asks_for(later, self.wanted, self.by_records) or self._is_implied(later)
        ):
            return
        if not self.found and later.api == "Produce":
            its = again.parts(later, self.by_records, {self.place}).get(self.place, set())
            self.has_more = its > self.wanted[self.place]
        self.found[1:] = [later]
        self.count += 1
        self.is_over = _outcome(later, self.place) in (_SUCCESS, _GIVEN_ID)

    def _is_implied(self, later: Exchange) -> bool:
        if not self.session or again.fetch_session(later.request) != self.session:
            return False
        if again.mentions(later, self.place):  # with another offset, or for the last time
            self.session = 0
        return self.session != 0

    @property
    def key(self) -> tuple[int, ...]:
        """Equal for places that were asked for again in the same requests."""
        return (self.count, self.by_records, self.has_more, *(each.number for each in self.found))


@attrs.define(eq=False)
class _Later:
    """What the same client did after an exchange."""

    opened_ns: dict[int, int] = attrs.field(factory=dict[int, int])
    """Connection → when it was opened."""
    meanwhile: list[Exchange] = attrs.field(factory=list[Exchange])
    rejoined: Exchange | None = None
    """The first JoinGroup for the same group."""

    def note(self, note: Note) -> None:
        """Take the next note of the recording."""
        if note.channel == CONNECTIONS and note.body.get("event") == "opened":
            self.opened_ns.setdefault(connection(note.body), note.time_ns)


_SUCCESS, _GIVEN_ID = "succeeded", "was given a member id"


def aftermath(
    source: Source, exchange: Exchange, places: Iterable[TopicPartition]
) -> Iterator[str]:
    """Yield what came of an exchange of which these places failed."""
    if not again.is_comparable(exchange):
        return
    chains = [*_chains(exchange, places, False)]
    if exchange.api == "Produce" and again.is_numbered(exchange):
        chains += _chains(exchange, [each.place for each in chains], True)
    later = _Later()
    unlearned = exchange.unanswered is not None or exchange.undelivered or exchange.is_late
    last_ns = exchange.time_ns if unlearned else exchange.completed_ns
    wanted = matching("client_id", exchange.client_id) if exchange.client_id else None
    is_over = False
    for each in source.read(wanted, later.note):
        if not isinstance(each, Exchange) or each.number <= exchange.number:
            continue
        if each.time_ns < last_ns or not again.same_client(exchange, each):
            continue
        is_over = is_over or again.separates(each, exchange)
        own = each.connection == exchange.connection or not again.is_anonymous(exchange)
        if each.api == exchange.api and own and not is_over:
            for chain in chains:
                chain.add(each)
        if later.rejoined is None and _rejoins(each, exchange):
            later.rejoined = each
        if len(later.meanwhile) <= _MEANWHILE_MAX and _is_telling(each, exchange, later):
            later.meanwhile.append(each)
    chosen = list(_chosen(chains))
    asked_again = any(each.found for each in chosen)
    rejoins = exchange.api in _REJOINED_AFTER and not asked_again
    if asked_again or exchange.api != "Heartbeat":
        yield from _attempts(exchange, chosen)
    if rejoins:
        yield _rejoined(exchange, later.rejoined)
    yield from _meanwhile(exchange, chosen, later)


def _rejoins(each: Exchange, exchange: Exchange) -> bool:
    """Return whether the member whose request failed joins its group again."""
    if each.api != "JoinGroup" or each.request is None or each.groups != exchange.groups:
        return False
    member = getattr(exchange.request, "member_id", "")
    same = bool(member) and each.request.member_id == member
    return same or each.connection == exchange.connection


def _rejoined(exchange: Exchange, joined: Exchange | None) -> str:
    group = listed(exchange.groups)
    if joined is None:
        return f"The recording shows no later JoinGroup of this member for group {group}."
    text = f"{_later(exchange, joined)} later {_who(exchange)} joined group {group} again with"
    return f"{text} {named(joined)}, which {_outcome(joined, WHOLE)}."


def _chains(
    exchange: Exchange, places: Iterable[TopicPartition], by_records: bool
) -> Iterator[_Attempts]:
    found = again.asked_for(again.wanted(exchange, by_records), places)
    session = again.fetch_session(exchange.response)
    for place, identities in found.items():
        yield _Attempts(place, {place: identities}, by_records, session=session)


def _chosen(chains: list[_Attempts]) -> Iterator[_Attempts]:
    """Yield the attempts of each place: by sequence numbers, else by records."""
    by_place: dict[TopicPartition, _Attempts] = {}
    for each in chains:
        if not by_place.setdefault(each.place, each).found:
            by_place[each.place] = each if each.found else by_place[each.place]
    yield from by_place.values()


def _attempts(exchange: Exchange, chains: list[_Attempts]) -> Iterator[str]:
    groups: dict[tuple[int, ...], list[_Attempts]] = {}
    for each in chains:
        groups.setdefault(each.key, []).append(each)
    for together in groups.values():
        text = place_text(tuple(each.place for each in together))
        subject = f"{text}: " if len(groups) > 1 and text else ""
        yield subject + _attempt(exchange, together)


def _attempt(exchange: Exchange, together: list[_Attempts]) -> str:
    words, none = _AGAIN.get(exchange.api or "", _OTHER)
    chain = together[0]
    if not chain.found:
        places = place_text(tuple(each.place for each in together))
        none = none.format(of=f" of {places}" if places else "")
        of = "on its connection" if again.is_anonymous(exchange) else f"of {_who(exchange)}"
        return f"The recording shows no later request {of} that {none}."
    if chain.has_more:
        words = words.replace("batch again", "records again, among others,")
    elif chain.by_records:
        words = words.replace("batch", "records")
    elif again.is_anonymous(exchange):
        words = _OTHER[0]
    first, last = chain.found[0], chain.found[-1]
    text = f"{_later(exchange, first)} later {_who(exchange)} {words} {named(first)}, which"
    text += f" {_together(first, together)}"
    if chain.count > 1:
        more = f"{count(chain.count + 1, 'attempt')} in all; the last, #{last.number},"
        text += f". There were {more} {_later(exchange, last)} after this one,"
        text += f" {_together(last, together)}"
    return f"{text}."


def _who(exchange: Exchange) -> str:
    """Return the name under which a client, and others like it on its host, are recognised."""
    return f"client {exchange.client_id}" if exchange.client_id else "the client"


def _together(later: Exchange, chains: list[_Attempts]) -> str:
    """Return how a request ended for several places."""
    return listed(dict.fromkeys(_outcome(later, each.place) for each in chains))


def _later(exchange: Exchange, later: Exchange) -> str:
    return age(max(0.0, (later.time_ns - exchange.time_ns) / 1e6))


def _outcome(later: Exchange, place: TopicPartition) -> str:
    """Return how a request ended for a place."""
    if later.one_way:
        return "has no response (acks=0)"
    if later.open_at_end:
        return "has no response before the recording ends"
    if later.unanswered is not None:
        return "was never answered"
    if later.response is None:
        return "has a response that could not be read"
    if later.undelivered:
        return "was answered, but the response did not reach the client"
    failed = [
        each.error
        for each in failures(later)
        if place == WHOLE
        or any(one in (place, WHOLE) or one == (place.topic, -1) for one in each.places)
    ]
    if failed == [again.GIVES_ID]:
        return _GIVEN_ID
    return f"failed with {listed(failed)}" if failed else _SUCCESS


# ── meanwhile ────────────────────────────────────────────────────────────────────────────────


def _is_telling(each: Exchange, exchange: Exchange, later: _Later) -> bool:
    if each.api == exchange.api:
        return False
    return each.api in _TELLING or _connects(each, exchange, later)


def _connects(each: Exchange, exchange: Exchange, later: _Later) -> bool:
    opened_ns = later.opened_ns.get(each.connection, 0)
    return each.api == "ApiVersions" and opened_ns > exchange.time_ns


def _meanwhile(exchange: Exchange, chains: list[_Attempts], later: _Later) -> Iterator[str]:
    again_ns = [each.found[0].time_ns for each in chains if each.found]
    end_ns = exchange.completed_ns + _MEANWHILE_SECONDS * 1_000_000_000
    until_ns = min(again_ns, default=end_ns)
    done = [each for each in later.meanwhile if each.time_ns < until_ns]
    if chains and again_ns == [] and exchange.api in _REJOINED_AFTER:
        done = [each for each in done if each is not later.rejoined]
    if not done:
        return
    named_ones = [_named(each, exchange, later) for each in sorted(done, key=lambda e: e.time_ns)]
    more = " and more" if len(named_ones) > _MEANWHILE_MAX else ""
    when = "Before that" if again_ns else f"In the {_MEANWHILE_SECONDS} s after it"
    done_text = listed(named_ones[:_MEANWHILE_MAX], _MEANWHILE_MAX)
    yield f"{when} {_who(exchange)} sent {done_text}{more}."


def _named(each: Exchange, exchange: Exchange, later: _Later) -> str:
    if not _connects(each, exchange, later):
        return named(each)
    to = "a bootstrap address" if each.node_id is None else f"broker {each.node_id}"
    return f"{named(each)} on a new connection to {to}"
