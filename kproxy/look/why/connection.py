"""The story of a connection: its client and broker, its requests, its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import attrs

from kproxy.exchange.endings import ConnectionEnd, ConnectionStart, SideEnd, connection
from kproxy.exchange.entries import Note
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import matching
from kproxy.exchange.words import faults
from kproxy.exchange.words.wording import age, count, listed
from kproxy.history.connections import Connections
from kproxy.history.items import Gap
from kproxy.history.ref import Ref
from kproxy.look.why.sentences import (
    NOT_RECORDED,
    at,
    clock,
    count_in,
    leads_to,
    named,
    software_of,
    users,
)
from kproxy.look.why.source import StorySource

_HOW = {
    "eof": "closed its side",
    "reset": "reset the connection",
    "down": "could not be reached",
    "defect": "failed",
}
_SILENT_MS_MIN = 1.0
"""A shorter time between the last answer and the end is no silence."""
_UNANSWERED_TOLD = 3
"""Requests without an answer that are named; others are counted."""


@attrs.define(eq=False)
class _Seen:
    """What the exchanges of a connection have shown so far."""

    apis: Counter[str] = attrs.Factory(Counter)
    errors: Counter[str] = attrs.Factory(Counter)
    users: Counter[str] = attrs.Factory(Counter)
    first: Exchange | None = None
    """The first to be completed."""
    busy: Exchange | None = None
    """The one that last showed that the connection was in use; None behind a gap."""
    newest: Exchange | None = None
    """The one that was asked last; None behind a gap."""
    waiting: Exchange | None = None
    """The first whose client got no response."""
    unanswered: list[Ref] = attrs.Factory(list)
    """The first of them."""
    unanswered_count: int = 0

    def add(self, exchange: Exchange) -> None:
        """Take the next exchange."""
        self.first = self.first or exchange
        self.busy = max(filter(None, (self.busy, exchange)), key=_busy_ns)
        self.newest = max(filter(None, (self.newest, exchange)), key=lambda one: one.number)
        if exchange.got_no_response or exchange.is_late:
            self.waiting = min(filter(None, (self.waiting, exchange)), key=lambda one: one.time_ns)
        self.apis[exchange.api or "half a header"] += 1
        self.errors.update(exchange.errors)
        if exchange.user:
            count_in(self.users, exchange.user)
        if exchange.unanswered is not None:
            self.unanswered_count += 1
            if len(self.unanswered) < _UNANSWERED_TOLD:
                self.unanswered.append(Ref.of(exchange))

    def add_gap(self) -> None:
        """Take a gap, in which the connection may have been in use."""
        self.busy = self.newest = None


def connection_story(source: StorySource, value: str) -> Iterator[str]:
    """Yield the story of the connection with a number."""
    number, connections, seen = int(value), Connections(), _Seen()

    def on_note(note: Note) -> None:
        if connection(note.body) == number:
            connections.note(note)

    for each in source.read(matching("connection", value), on_note):
        if isinstance(each, Gap):
            seen.add_gap()
        elif each.connection != number:
            continue
        elif isinstance(each, ConnectionEnd):
            connections.end(each)
        else:
            seen.add(each)
    found = connections.get(number)
    if seen.first is None and found is None:
        return
    start, end = (found.start, found.end) if found is not None else (None, None)
    yield from _opened(start, number, seen.first)
    yield from users(seen.users)
    if seen.first is None:
        unread = "Nothing was read from it, for its broker could not be reached."
        yield unread if end is not None and end.is_unreached else "Nothing was asked on it."
    else:
        yield from _asked(seen)
    yield from _ended(end, seen)


def _asked(seen: _Seen) -> Iterator[str]:
    """Yield what was asked, and what came of it."""
    done = ", ".join(f"{api} {times}" for api, times in seen.apis.most_common())
    yield f"It had {count(sum(seen.apis.values()), 'request')}: {done}."
    if seen.errors:
        found = (f"{name} ×{times}" for name, times in seen.errors.most_common())
        yield f"Errors: {listed(found)}."
    for each in seen.unanswered:
        if each.fate.open_at_end:
            yield f"The recording ends before an answer to {named(each)} of {at(each)}."
        else:
            yield f"{named(each)} of {at(each)} was never answered."
    if (more := seen.unanswered_count - _UNANSWERED_TOLD) > 0:
        yield f"There is no answer to {more} more either."


def _opened(start: ConnectionStart | None, number: int, first: Exchange | None) -> Iterator[str]:
    if start is None:
        yield f"When connection {number} was opened {NOT_RECORDED}."
    else:
        began = "was open already" if start.was_open else "was opened"
        yield (
            f"Connection {number} {began} at {clock(start.time_ns)}, from"
            f" {start.client_address or '?'} to {start.broker_address or 'no broker'}"
            f" ({leads_to(start.node_id)})."
        )
        yield from _tls(start)
        if start.login:
            yield f"kproxy logged in at the broker with {start.login}, not the client."
    if first is not None and first.client_id:
        software = software_of(first)
        yield f"Its client is {first.client_id}{f' ({software})' if software else ''}."


def _tls(start: ConnectionStart) -> Iterator[str]:
    """Yield the version, cipher and peer of each side that spoke TLS."""
    for side, tls in start.tls.items():
        text = f"The {side} and kproxy spoke {tls.get('version')} with {tls.get('cipher')}"
        if tls.get("peer"):
            text += f"; the {side}'s certificate is of {tls['peer']}"
        if side == "broker" and not tls.get("verified"):
            text += "; its certificate was not verified"
        yield f"{text}."


def _sides(end: ConnectionEnd) -> Iterator[str]:
    """Yield who ended the connection, and how, in order; the reason is of the first that failed."""
    if end.first is None:
        yield f"Who ended it {NOT_RECORDED}" + (f": {end.reason}." if end.reason else ".")
        return
    failed = next((each for each in end.ends if each.how != "eof"), end.first)
    parts: list[str] = []
    for each in end.ends:
        who = "kproxy" if each.side == "proxy" else f"the {each.side}"
        text = f"{who} {_HOW.get(each.how, 'ended it')} ({each.how}"
        if each is failed and end.reason and not end.reason.startswith(each.how):
            text += f": {end.reason}"
        later = age((each.time_ns - end.first.time_ns) / 1e6)
        parts.append(f"{text})" if each is end.first else f"{later} later {text})")
    yield f"First {'; '.join(parts)}."


def _busy_ns(exchange: Exchange) -> int:
    """Return when an exchange last showed that its connection was in use."""
    return exchange.time_ns if exchange.unanswered is not None else exchange.completed_ns


def _ended(end: ConnectionEnd | None, seen: _Seen) -> Iterator[str]:
    """Yield the end of a connection: who ended it, and what it had done before."""
    if end is None:
        yield "Its end is not in the recording."
        return
    yield f"It ended at {clock(end.time_ns if end.first is None else end.first.time_ns)}."
    yield from _sides(end)
    waited = _waited(end.first, seen)
    if waited:
        yield waited
        return
    if end.first is not None and seen.busy is not None and seen.newest is not None:
        silent_ms = (end.first.time_ns - _busy_ns(seen.busy)) / 1e6
        if silent_ms >= _SILENT_MS_MIN:
            yield f"Before that it was silent for {age(silent_ms)}, since {named(seen.busy)}."
        else:
            yield f"The last request on it was {named(seen.newest)} of {at(seen.newest)}."
    if end.first is None or (end.first.side != "proxy" and not end.reason):
        yield f"Why {NOT_RECORDED}."


def _waited(first: SideEnd | None, seen: _Seen) -> str:
    """Say how long a client that ended its side first had waited for a response; "" if it had
    not."""
    waiting = seen.waiting
    if first is None or first.side != "client" or waiting is None or seen.busy is None:
        return ""
    waited_ms = (first.time_ns - waiting.time_ns) / 1e6
    if waited_ms < _SILENT_MS_MIN:
        return ""
    by_rule = [*faults.marks(waiting), *filter(None, [faults.silence(waiting)])]
    how = f" ({', '.join(by_rule)})" if waiting.row.fault_ids else ""
    return (
        f"Its client had then waited {age(waited_ms)} for the response to"
        f" {named(waiting)} of {at(waiting)}{how}."
    )
