"""The story of a client: its software, connections, groups, topics, errors and silences.

Invariant: memory is bounded by the connections that are open, and by `_COUNTED_MAX` names of each
kind; lists name at most `_NAMED_MAX`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import attrs

from kproxy.exchange.endings import ConnectionEnd, connection
from kproxy.exchange.entries import CONNECTIONS, Note
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import matching
from kproxy.exchange.words import faults
from kproxy.exchange.words.wording import age, count, listed
from kproxy.history.history import History
from kproxy.history.items import Gap
from kproxy.history.log_events import writes
from kproxy.history.ref import host_of
from kproxy.history.rows import SENT, TRIED, WROTE
from kproxy.why.client_findings import (
    brief_producers,
    pending_requests,
    small_requests,
    throttled_clients,
)
from kproxy.why.sentences import (
    NOT_RECORDED,
    Abridged,
    at,
    clock,
    ended_by,
    in_order,
    named,
)
from kproxy.why.source import StorySource

_NAMED_MAX = 8
_COUNTED_MAX = 1000
_SILENCES_MAX = 3
_SILENT_MS_MIN = 1000.0
"""Shorter pauses between requests are not told."""
_CONNECTIONS_TOLD = 5
_WRITES = {WROTE: "wrote to", SENT: "sent with acks=0 to", TRIED: "tried to write to"}


@attrs.define(eq=False)
class _Story:
    client_id: str
    first: Exchange | None = None
    last: Exchange | None = None
    number: int = 0
    hosts: dict[str, None] = attrs.field(factory=dict[str, None], init=False)
    software: dict[str, None] = attrs.field(factory=dict[str, None], init=False)
    apis: Counter[str] = attrs.field(factory=Counter[str], init=False)
    names: dict[str, Counter[str]] = attrs.field(factory=dict[str, Counter[str]], init=False)
    """What it did with named things ("wrote to topics", …) → how often with each."""
    routine: Counter[str] = attrs.field(factory=Counter[str], init=False)
    """Errors by which clients and brokers come to terms."""
    only_routine: bool = attrs.field(default=True, init=False)
    """It is known to have had no other answer so far."""
    errors: Counter[tuple[str, str]] = attrs.field(factory=Counter[tuple[str, str]], init=False)
    first_errors: dict[tuple[str, str], str] = attrs.field(
        factory=dict[tuple[str, str], str], init=False
    )
    silences_of: dict[tuple[str, str], str] = attrs.field(
        factory=dict[tuple[str, str], str], init=False
    )
    """"never answered" or "not delivered", and why ("dropped by fault cut"; "" where nothing says
    it) → the first."""
    silence_counts: Counter[tuple[str, str]] = attrs.field(
        factory=Counter[tuple[str, str]], init=False
    )
    opened: dict[int, tuple[int, str]] = attrs.field(factory=dict[int, tuple[int, str]], init=False)
    """Connections of any client that are open → since when, and to which broker."""
    own: dict[int, int] = attrs.field(factory=dict[int, int], init=False)
    """Its open connections → requests."""
    connection_count: int = 0
    connections: Abridged = attrs.field(
        factory=lambda: Abridged("connection", _CONNECTIONS_TOLD), init=False
    )
    silences: list[tuple[int, int, str]] = attrs.field(
        factory=list[tuple[int, int, str]], init=False
    )
    """The longest: duration in nanoseconds, start, and the request after it."""
    busy_until_ns: int = 0

    def note(self, note: Note) -> None:
        """Take a note of a connection."""
        body = note.body
        if note.channel == CONNECTIONS and body.get("event") in ("opened", "open"):
            node = body.get("node_id")
            to = f"broker {node}" if isinstance(node, int) else "a bootstrap address"
            self.opened.setdefault(connection(body), (note.time_ns, to))

    def add(self, exchange: Exchange) -> None:
        """Take the next exchange of the client."""
        self.first = self.first or exchange
        self.number += 1
        if self.last is None or exchange.time_ns >= self.last.time_ns:
            self.last = exchange
        self.hosts[host_of(exchange) or "?"] = None
        if name := getattr(exchange.request, "client_software_name", ""):
            version = getattr(exchange.request, "client_software_version", "")
            self.software[f"{name} {version}".strip()] = None
        if exchange.api is not None:
            _count(self.apis, f"{exchange.api} v{exchange.api_version}")
        self._use(exchange)
        if exchange.response_bytes is not None:
            self.only_routine &= exchange.routine
        if exchange.connection not in self.own:
            self.connection_count += 1
        self.own[exchange.connection] = self.own.get(exchange.connection, 0) + 1
        for error in exchange.errors:
            by_rule = f" ({made})" if (made := faults.made(exchange)) else ""
            key = f"{exchange.api or '?'}{by_rule}", error
            if exchange.routine:
                self.routine[f"{error} of {key[0]}"] += 1
            elif key in self.errors or len(self.errors) < _COUNTED_MAX:
                self.errors[key] += 1
                self.first_errors.setdefault(key, f"#{exchange.number} of {at(exchange)}")
        if exchange.undelivered:
            self._silence("not delivered", faults.undelivered(exchange), exchange)
        elif exchange.is_late:
            self._silence(faults.unlearned(exchange), "", exchange)
        elif exchange.got_no_response and not exchange.open_at_end:
            self._silence("never answered", faults.silence(exchange), exchange)

    def _silence(self, what: str, why: str, exchange: Exchange) -> None:
        self.silences_of.setdefault((what, why), named(exchange))
        self.silence_counts[what, why] += 1

    def _use(self, exchange: Exchange) -> None:
        used = {(f"{_WRITES[each.outcome]} topics", each.where.topic) for each in writes(exchange)}
        if exchange.api == "Fetch":
            used = {("fetched from topics", topic) for topic in exchange.topics}
        for did, topic in sorted(used):
            _count(self.names.setdefault(did, Counter()), topic)
        for group in exchange.groups:
            _count(self.names.setdefault("named groups", Counter()), group)
        for name in exchange.transactional_ids:
            _count(self.names.setdefault("named transactional ids", Counter()), name)

    def end(self, end: ConnectionEnd) -> None:
        """Take the end of a connection of any client."""
        since, to = self.opened.pop(end.connection, (0, "?"))
        requests = self.own.pop(end.connection, 0)
        if requests:
            began = f"opened at {clock(since)}" if since else f"whose begin {NOT_RECORDED}"
            text = f"connection {end.connection} to {to}, {began}, with"
            text += f" {count(requests, 'request')}, ended {ended_by(end)}."
            self.connections.say(end.time_ns, text)


def _count(counter: Counter[str], name: str) -> None:
    counter[name if name in counter or len(counter) < _COUNTED_MAX else "others"] += 1


def client_story(source: StorySource, value: str) -> Iterator[str]:
    """Yield the story of the clients that have a client id."""
    story, history = _Story(value), History()
    for item in source.read(matching("client_id", value), story.note):
        history.add(item)
        if isinstance(item, ConnectionEnd):
            story.end(item)
        elif isinstance(item, Gap):
            # What it asked, and was answered, in the gap is not known.
            story.busy_until_ns, story.only_routine = 0, False
        elif item.client_id == value:
            _add_silence(story, item)
            story.add(item)
    if story.first is not None and story.last is not None:
        yield from _lines(story, story.first, story.last)
        for proved in (throttled_clients, pending_requests, small_requests, brief_producers):
            yield from (each.whole for each in proved(history))


def _add_silence(story: _Story, exchange: Exchange) -> None:
    """Take the time from the latest answer until a request, if the client asked nothing in it.
    Requests come here in order of completion: one that began before is no end of a silence."""
    silent_ns, name = exchange.time_ns - story.busy_until_ns, named(exchange)
    # What began in a silence, such as a long poll, proves that it was none.
    story.silences[:] = [each for each in story.silences if each[0] + each[1] <= exchange.time_ns]
    if story.busy_until_ns and silent_ns >= _SILENT_MS_MIN * 1e6:
        story.silences.append((silent_ns, story.busy_until_ns, name))
    story.silences.sort(reverse=True)
    del story.silences[_SILENCES_MAX:]
    story.busy_until_ns = max(story.busy_until_ns, exchange.completed_ns, exchange.time_ns)


def _lines(story: _Story, first: Exchange, last: Exchange) -> Iterator[str]:
    hosts = listed(sorted(story.hosts), _NAMED_MAX)
    yield (
        f"Client {story.client_id} ({hosts}): {count(story.number, 'request')} on"
        f" {count(story.connection_count, 'connection')}, from {named(first)} of {at(first)} to"
        f" {named(last)} of {at(last)}."
    )
    if len(story.hosts) > 1:
        yield "It has several hosts, so it may be several clients of one name."
    software = listed(story.software, _NAMED_MAX)
    yield f"Its software is {software}." if software else f"Its software {NOT_RECORDED}."
    apis = [f"{api} ×{times}" for api, times in story.apis.most_common()]
    yield f"It used {listed(apis, 2 * _NAMED_MAX)}."
    for did, names in story.names.items():
        found = [f"{name} ({count(times, 'request')})" for name, times in names.most_common()]
        yield f"It {did}: {listed(found, _NAMED_MAX)}."
    if story.routine:
        found = [f"{error} ×{times}" for error, times in story.routine.most_common()]
        others = " It got no other answer." if story.only_routine else ""
        yield f"Routine answers, which are no failures: {listed(found, _NAMED_MAX)}.{others}"
    for (api, error), times in story.errors.most_common(_NAMED_MAX):
        again = f" ×{times}, first" if times > 1 else ","
        yield f"{error} of {api}{again} {story.first_errors[api, error]}."
    for (what, why), first_one in story.silences_of.items():
        times = story.silence_counts[what, why]
        came = what != "never answered"
        noun = "response" if came else "request"
        text = f"{count(times, noun)} {'was' if times == 1 else 'were'} {what}"
        because = f" ({why})" if why else ""
        yield f"{text}, first {'that of ' if came else ''}{first_one}{because}."
    for silent_ns, from_ns, until in sorted(story.silences, key=lambda each: each[1]):
        yield f"{clock(from_ns)} it asked nothing for {age(silent_ns / 1e6)}, until {until}."
    yield from in_order(story.connections)
    if story.own:
        numbers = listed([str(each) for each in sorted(story.own)], _NAMED_MAX)
        what = "Connection" if len(story.own) == 1 else "Connections"
        yield f"{what} {numbers}: the end {NOT_RECORDED}."
