"""What came of a failure: the same asked again, and what the client did meanwhile.

failed or unanswered exchange ─▶ later exchanges of the same client ─▶ sentences
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import matching
from kproxy.exchange.words.failures import place_text
from kproxy.exchange.words.wording import age, count, listed
from kproxy.history import identities
from kproxy.history.attempts import Attempt, Attempts, outcome, same_client
from kproxy.history.connections import Connections
from kproxy.history.ref import Ref
from kproxy.look.why.sentences import leads_to, named
from kproxy.look.why.source import StorySource

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
class _Later:
    """What the same client did after an exchange."""

    connections: Connections = attrs.Factory(Connections)
    meanwhile: list[Exchange] = attrs.Factory(list)
    rejoined: Exchange | None = None
    """The first JoinGroup for the same group."""


def aftermath(
    source: StorySource, exchange: Exchange, places: Iterable[TopicPartition]
) -> Iterator[str]:
    """Yield what came of an exchange of which these places failed."""
    wanted = identities.wanted(exchange)
    if wanted is None:
        return
    session = identities.fetch_session(exchange.response)
    attempts = [
        Attempts(exchange, wanted.at(place), place, session=session)
        for place in identities.asked_at(wanted.parts, places)
    ]
    later = _Later()
    unlearned = exchange.unanswered is not None or exchange.undelivered or exchange.is_late
    last_ns = exchange.time_ns if unlearned else exchange.completed_ns
    its = matching("client_id", exchange.client_id) if exchange.client_id else None
    for each in source.read(its, later.connections.note):
        if not isinstance(each, Exchange) or each.number <= exchange.number:
            continue
        if each.time_ns < last_ns or not same_client(exchange, each):
            continue
        later.connections.see(Ref.of(each))
        asked = identities.asked(each, wanted.parts) if each.api == exchange.api else None
        for one in attempts:
            one.add(each, asked)
        if later.rejoined is None and _rejoins(each, exchange):
            later.rejoined = each
        if len(later.meanwhile) <= _MEANWHILE_MAX and _is_telling(each, exchange, later):
            later.meanwhile.append(each)
    asked_again = any(each.first for each in attempts)
    if asked_again or exchange.api != "Heartbeat":
        yield from _attempts(exchange, attempts)
    if exchange.api in _REJOINED_AFTER and not asked_again:
        yield _rejoined(exchange, later.rejoined)
    yield from _meanwhile(exchange, attempts, later)


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
    text = (
        f"{_after(exchange, joined.time_ns)} later {_who(exchange)} joined group {group} again with"
    )
    return f"{text} {named(joined)}, which {outcome(joined)}."


def _attempts(exchange: Exchange, found: list[Attempts]) -> Iterator[str]:
    """Yield the attempts, of places that were asked for again by the same requests together."""
    groups: dict[Any, list[Attempts]] = {}
    for each in found:
        same = each.first and attrs.astuple(attrs.evolve(each.first, outcome=""))
        groups.setdefault((each.count, same, each.last and each.last.number), []).append(each)
    for together in groups.values():
        text = place_text(tuple(each.place for each in together))
        subject = f"{text}: " if len(groups) > 1 and text else ""
        yield subject + _attempt(exchange, together)


def _attempt(exchange: Exchange, together: list[Attempts]) -> str:
    words, none = _AGAIN.get(exchange.api or "", _OTHER)
    first, last, count_ = together[0].first, together[0].last, together[0].count
    anonymous = identities.is_anonymous(exchange)
    if first is None or last is None:
        places = place_text(tuple(each.place for each in together))
        none = none.format(of=f" of {places}" if places else "")
        of = "on its connection" if anonymous else f"of {_who(exchange)}"
        return f"The recording shows no later request {of} that {none}."
    if first.has_more:
        words = words.replace("batch again", "records again, among others,")
    elif first.by_records or first.is_part:
        words = words.replace("batch", "records")
    elif anonymous:
        words = _OTHER[0]
    if first.is_part:
        words = words.replace("the same", "a part of the same")
    text = f"{_after(exchange, first.time_ns)} later {_who(exchange)} {words}"
    text += f" {first.name}, which {_outcomes(each.first for each in together)}"
    if count_ > 1:
        more = f"{count(count_ + 1, 'attempt')} in all; the last, #{last.number},"
        text += f". There were {more} {_after(exchange, last.time_ns)} after this one,"
        text += f" {_outcomes(each.last for each in together)}"
    return f"{text}."


def _who(exchange: Exchange) -> str:
    """Return the name under which a client, and others like it on its host, are recognised."""
    return f"client {exchange.client_id}" if exchange.client_id else "the client"


def _outcomes(found: Iterable[Attempt | None]) -> str:
    """Return how a request ended for several places."""
    return listed(dict.fromkeys(each.outcome for each in found if each is not None))


def _after(exchange: Exchange, time_ns: int) -> str:
    return age(max(0.0, (time_ns - exchange.time_ns) / 1e6))


# ── meanwhile ────────────────────────────────────────────────────────────────────────────────


def _is_telling(each: Exchange, exchange: Exchange, later: _Later) -> bool:
    if each.api == exchange.api:
        return False
    return each.api in _TELLING or _connects(each, exchange, later)


def _connects(each: Exchange, exchange: Exchange, later: _Later) -> bool:
    opened_ns = later.connections.opened_ns(each.connection)
    return each.api == "ApiVersions" and opened_ns > exchange.time_ns


def _meanwhile(exchange: Exchange, attempts: list[Attempts], later: _Later) -> Iterator[str]:
    again_ns = [each.first.time_ns for each in attempts if each.first]
    end_ns = exchange.completed_ns + _MEANWHILE_SECONDS * 1_000_000_000
    until_ns = min(again_ns, default=end_ns)
    done = [each for each in later.meanwhile if each.time_ns < until_ns]
    if not again_ns and exchange.api in _REJOINED_AFTER:
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
    return f"{named(each)} on a new connection to {leads_to(each.node_id)}"
