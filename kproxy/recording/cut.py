"""Cuts a recording: the exchanges that match a filter, and those that a replay of them needs.

::

    recording ─▶ first pass: connections and clients of matching exchanges, their fetch sessions
              ─▶ second pass: exchanges and notes, as they are ─▶ a new recording, complete

Beside the matching exchanges these stay: the first exchanges of the same clients (ApiVersions,
SASL, Metadata, coordinators, producer ids) and the ends of their transactions; the Fetch that began
a session with matching Fetches, for these name only what has changed; the notes on the connections
that are left, on topic ids, schemas, fault rules and losses. Exchanges keep their numbers, times,
flags and bytes.

Invariants: memory does not grow with the recording beyond its connections and fetch sessions. The
new file is whole or not there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs

from kproxy.exchange import endings, notes
from kproxy.exchange.entries import (
    CONNECTIONS,
    EVENTS,
    OPEN_AT_END,
    SASL_TOKEN,
    UNANSWERED,
    Entry,
    ExchangeRow,
    Frame,
    Note,
)
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import Filter, parse
from kproxy.exchange.filter.terms import grouped
from kproxy.recording.encoding import end_of, with_row
from kproxy.recording.exchanges import Reader
from kproxy.recording.files import RecordingError
from kproxy.recording.layout import CHUNK_BYTES
from kproxy.recording.notices import CAPTURED
from kproxy.recording.paths import Paths, by_recording, size_of
from kproxy.recording.reader import starting
from kproxy.recording.writer import Writer
from kproxy.wire.payloads.schemas import NOTE

_BEGINNINGS = (
    *("ApiVersions", "SaslHandshake", "SaslAuthenticate", SASL_TOKEN),
    *("Metadata", "FindCoordinator", "InitProducerId", "EndTxn"),
)
"""APIs that a replay needs beside the matching exchanges, of the same clients."""
_KEPT_EVENTS = frozenset(
    {"topic_id", NOTE, "fault_rules", "outage", "lost", "stood_still", "clock_step"}
)
"""Events whose notes every cut-out has, whichever exchanges are in it; notes on connections stay
with their connections."""


def cut(
    paths: Paths,
    to: Path,
    wanted: Filter | None,
    library_version: str,
    on_note: Callable[[Note], None] = lambda note: None,
    on_progress: Callable[[int], None] = lambda done: None,
    metadata: Mapping[str, str] | None = None,
) -> int:
    """Write a recording of the exchanges that match a filter to a path that is free; return their
    number. `on_note` gets the notes, as in `read`; `on_progress` gets the progress, in bytes of the
    recording. `metadata` is further text for the new file.

    Raises:
        RecordingError: a path is no recording, is damaged, or of another recording than the rest.
        OSError: the new file cannot be written.
    """
    found, *others = by_recording(paths)
    files = found.paths
    if others:
        what = f"is not of the same recording as {files[-1]}: export them one by one"
        raise RecordingError(others[0].paths[0], None, what)
    head = found.head
    half = size_of(files) // 2
    kept = None
    if wanted is not None:
        begun = starting(wanted, [found])
        kept = _kept_exchanges(files, begun, lambda done: on_progress(done // 2), on_note)
    about = dict(CAPTURED.items() & head.metadata.items())
    about |= ({} if wanted is None else {"filter": str(wanted)}) | dict(metadata or {})
    writer = Writer(
        to,
        start_ns=head.start_ns,
        schema_id=head.schema_id,
        library_version=library_version,
        metadata=about,
    )
    try:
        copy = _Copier(writer)

        def both(note: Note) -> None:
            on_note(note)
            copy.note(note)

        narrow = None if kept is None else kept.narrow
        reader = Reader(
            both, narrow, lambda done: on_progress(half + done // 2 if narrow else done)
        )
        # What was left out is told once, by the first pass.
        found_here = (exchange for file in files for exchange in reader.file(file, len(files) > 1))
        for exchange in itertools.chain(found_here, reader.left()):
            if kept is None or kept.has(exchange):
                copy.exchange(exchange)
        copy.flush()
        writer.close()
    finally:
        writer.abandon()
    return copy.exchanges


# ---------------------------------------------------------------- the exchanges to keep


@attrs.define(eq=False)
class _KeptExchanges:
    """The exchanges to keep."""

    wanted: Filter
    connections: set[int] = attrs.field(factory=set)
    clients: set[str] = attrs.field(factory=set)
    numbers: set[int] = attrs.field(factory=set)
    """Numbers of exchanges that began a fetch session."""

    def take(self, exchange: Exchange) -> None:
        """Take an exchange that matches the filter."""
        self.connections.add(exchange.connection)
        if exchange.client_id is not None:
            self.clients.add(exchange.client_id)

    @property
    def narrow(self) -> Filter:
        """A filter for all exchanges that may stay; headers suffice for the terms that it adds."""
        numbers = f" or number:{','.join(map(str, self.numbers))}" if self.numbers else ""
        return _or(self.wanted, f"api:{','.join(_BEGINNINGS)}{numbers}")

    def has(self, exchange: Exchange) -> bool:
        """Return whether an exchange stays."""
        if exchange.api in _BEGINNINGS:
            if exchange.connection in self.connections or exchange.client_id in self.clients:
                return True
        return exchange.number in self.numbers or self.wanted.matches(exchange)


def _kept_exchanges(
    files: list[Path],
    wanted: Filter,
    on_progress: Callable[[int], None],
    on_note: Callable[[Note], None],
) -> _KeptExchanges:
    kept = _KeptExchanges(wanted)
    sessions: dict[tuple[int | None, int], int] = {}
    """The number of the exchange that began a session, by broker and session id."""

    def on_unread(note: Note) -> None:
        if note.body.get("event") == "unread":  # the others are told by who reads it again
            on_note(note)

    for exchange in Reader(on_unread, _or(wanted, "api:Fetch"), on_progress).files(files):
        fetch = exchange.request if exchange.api == "Fetch" else None
        if fetch is not None and getattr(fetch, "session_epoch", -1) == 0:
            began = getattr(exchange.response, "session_id", 0)
            sessions[exchange.node_id, began] = exchange.number
        if wanted.matches(exchange):
            kept.take(exchange)
            session_id = getattr(fetch, "session_id", 0)
            if session_id and (exchange.node_id, session_id) in sessions:
                kept.numbers.add(sessions[exchange.node_id, session_id])
    return kept


def _or(wanted: Filter, text: str) -> Filter:
    return Filter(grouped([wanted.node, parse(text).node], one=True))


# ---------------------------------------------------------------- writing what stays


class _Copier:
    """Writes exchanges and notes as they are."""

    def __init__(self, writer: Writer) -> None:
        self.exchanges = 0
        self._writer = writer
        self._entries: list[Entry] = []
        self._bytes = 0
        self._held: dict[int, list[Note]] = {}
        """Notes on connections without an exchange that has stayed so far."""
        self._connections: set[int] = set()
        """Connections with an exchange that has stayed."""
        self._pending: list[ExchangeRow] = []
        """What is known only from a note that it was pending when a file began."""

    def note(self, note: Note) -> None:
        """Take a note; one on a connection stays if an exchange of that connection does."""
        event = note.body.get("event")
        if note.channel == EVENTS:
            if event in _KEPT_EVENTS:
                self._entries.append(note)
        elif note.channel == CONNECTIONS:
            number = endings.connection(note.body)
            if number in self._connections:
                self._entries.append(note)
            elif event != "closed":
                self._held.setdefault(number, []).append(note)
            if event == "closed":
                self._held.pop(number, None)
                self._connections.discard(number)

    def exchange(self, exchange: Exchange) -> None:
        """Write an exchange: its frames, as far as they are recorded, or its end."""
        self.exchanges += 1
        self._connections.add(exchange.connection)
        self._entries += self._held.pop(exchange.connection, ())
        request, response = exchange.frames
        row = exchange.row
        if request is not None:
            self._add(attrs.evolve(request, sent_ns=row.request_sent_ns or request.sent_ns))
        if response is not None:
            self._add(with_row(response, row))
        elif row.response_flags & UNANSWERED and not row.response_flags & OPEN_AT_END:
            self._add(end_of(row))
        elif request is None:
            self._pending.append(row._replace(request_position=0, response_position=0))
        if self._bytes >= CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what has not been written yet."""
        if self._pending:
            time_ns = max(row.request_received_ns for row in self._pending)
            self._entries.append(notes.pending(time_ns, self._pending))
            self._pending = []
        self._writer.write(self._entries)
        self._entries, self._bytes = [], 0

    def _add(self, frame: Frame) -> None:
        self._entries.append(frame)
        self._bytes += sum(map(len, frame.pieces))
