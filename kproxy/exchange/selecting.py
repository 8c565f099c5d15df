"""The entries that match a filter, while they pass: `run --only`.

::

    entries ─▶ EntrySelection.keep ─▶ matching entries, notes, ApiVersions, Metadata

The header of a request decides about both halves of its exchange; runs are split.

Invariants: all notes are kept, so that a reader knows every connection. Memory is bounded by what
is open and pending.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import attrs

from kproxy.exchange import facts
from kproxy.exchange.arriving import ArrivingRequest
from kproxy.exchange.entries import (
    CONNECTIONS,
    FRAGMENT,
    MORE,
    NO_API,
    NO_RESPONSE,
    RAW_SASL,
    SASL_TOKEN,
    UNANSWERED,
    Entry,
    Frame,
    FrameRun,
    Note,
    Side,
)
from kproxy.exchange.filter import Filter
from kproxy.exchange.filter.terms import terms_of
from kproxy.exchange.recording_context import Peer, RecordingContext
from kproxy.wire.protocol import api_name

ALWAYS = frozenset((3, 18))
"""Metadata and ApiVersions: without them the other exchanges cannot be understood."""
_VARYING_KEYS = frozenset(("number", "time", "request_bytes", "correlation_id"))
"""Filter keys with a value of their own in each request of a connection."""
_KINDS_MAX = 256
"""Verdicts remembered per connection."""
_CLIENT_ID = 14
"""Offset of the client id's text in a request."""

_Kind = tuple[int, int, bytes]
"""ApiKey, version, and the bytes of the client id."""


@attrs.define(eq=False)
class _FilteredConnection:
    """A connection: what notes tell of it, and the requests left out on it."""

    number: int
    peer: Peer
    left_out: set[int] = attrs.field(factory=set)
    """Numbers of the pending requests whose responses are left out, too."""
    in_pieces: tuple[int, bool] = (0, False)
    """The number of the request that arrives in pieces, and whether it is kept."""
    verdicts: dict[_Kind, bool] = attrs.field(factory=dict)


class EntrySelection:
    """Keeps the entries that match a filter; it must be given all entries, in order."""

    def __init__(self, wanted: Filter) -> None:
        """Keep the entries that match this filter, which looks at connections and headers only."""
        self._filter = wanted
        self._repeats = _VARYING_KEYS.isdisjoint(term.name for term in terms_of(wanted.node))
        self._context = RecordingContext()
        self._connections: dict[int, _FilteredConnection] = {}

    def keep(self, entries: Iterable[Entry]) -> list[Entry]:
        """Return the entries that match."""
        kept: list[Entry] = []
        for entry in entries:
            if isinstance(entry, FrameRun):
                kept += self._parts(entry)
            elif isinstance(entry, Note):
                if entry.channel == CONNECTIONS:
                    self._context.note(entry)
                for closed in self._context.take_closed():
                    self._connections.pop(closed, None)
                kept.append(entry)
            elif self._keeps(entry):
                kept.append(entry)
        return kept

    def _connection(self, number: int) -> _FilteredConnection:
        connection = self._connections.get(number)
        if connection is None:
            peer = self._context.peer(number)
            connection = self._connections[number] = _FilteredConnection(number, peer)
        return connection

    # ── frames

    def _keeps(self, frame: Frame) -> bool:
        connection = self._connection(frame.connection)
        if frame.side is Side.BROKER:
            kept = frame.number not in connection.left_out
            if not frame.flags & MORE:
                connection.left_out.discard(frame.number)
            return kept
        if frame.flags & FRAGMENT and connection.in_pieces[0] == frame.number:
            return connection.in_pieces[1]
        kept = self._matches_header(connection, frame)
        if frame.flags & FRAGMENT:
            connection.in_pieces = frame.number, kept
        if not kept and not frame.flags & (NO_RESPONSE | UNANSWERED):
            connection.left_out.add(frame.number)
        return kept

    def _matches_header(self, connection: _FilteredConnection, frame: Frame) -> bool:
        """Return whether a request matches, by its header."""
        data = frame.data
        header = data[_CLIENT_ID - 2 : _CLIENT_ID]
        length = int.from_bytes(header, signed=True) if len(header) == 2 else 0
        client_id = data[_CLIENT_ID - 2 : _CLIENT_ID + max(0, length)]
        return self._matches(
            connection,
            (frame.api_key, frame.api_version, client_id),
            frame.number,
            frame.correlation_id,
            frame.frame_bytes,
            frame.flags,
            frame.received_ns,
        )

    # ── runs

    def _parts(self, run: FrameRun) -> Iterable[FrameRun]:
        """Return the parts of a run that are kept; the run itself, if all of it is."""
        connection = self._connection(run.connection)
        left_out = connection.left_out
        if run.side is Side.CLIENT:
            verdicts = list(self._requests(connection, run))
        elif left_out:
            numbers = range(run.number, run.number + len(run))
            verdicts = [number not in left_out for number in numbers]
            left_out.difference_update(numbers)
        else:
            return (run,)
        return (run,) if all(verdicts) else _split(run, verdicts)

    def _requests(self, connection: _FilteredConnection, run: FrameRun) -> Iterator[bool]:
        at, data, received_ns = 0, run.data, run.times.received_ns
        requests = run.requests
        api_key, api_version, flags = requests.api_key, requests.api_version, requests.flags
        for nth, size in enumerate(run.sizes, run.nth):
            number, correlation_id = requests.number + nth, requests.correlation_ids[nth]
            text = at + _CLIENT_ID
            length = int.from_bytes(data[text - 2 : text], signed=True)
            client_id = data[text - 2 : min(text + max(0, length), at + size)]
            kind = api_key, api_version, client_id
            known = connection.verdicts.get(kind) if self._repeats else None
            if known is None:
                known = self._matches(
                    connection, kind, number, correlation_id, size, flags, received_ns
                )
            if not known and not flags & NO_RESPONSE:
                connection.left_out.add(number)
            yield known
            at += size

    def _matches(
        self,
        connection: _FilteredConnection,
        kind: _Kind,
        number: int,
        correlation_id: int,
        request_bytes: int,
        flags: int,
        received_ns: int,
    ) -> bool:
        """Return whether a request matches the filter."""
        api_key, api_version, client_id = kind
        is_token = bool(flags & RAW_SASL)
        named = not is_token and api_key != NO_API
        head = bytes(_CLIENT_ID - 2) + client_id
        peer = connection.peer
        if peer.client_id is None and named:  # as in `pairing`: the first one holds
            peer.client_id = facts.client_id_of(api_key, api_version, head)[1]
            connection.verdicts.clear()
        if api_key in ALWAYS:
            return True
        request = ArrivingRequest(
            api=SASL_TOKEN if is_token else api_name(api_key) if named else None,
            api_key=api_key if named else None,
            api_version=api_version if named else None,
            correlation_id=correlation_id if named else None,
            client_id=peer.client_id,
            request_bytes=request_bytes,
            number=number,
            connection=connection.number,
            node_id=peer.node_id,
            client_address=peer.client_address,
            time_ns=received_ns,
        )
        kept = self._filter.matches(request)
        if self._repeats and named:
            if len(connection.verdicts) >= _KINDS_MAX:
                connection.verdicts.clear()
            connection.verdicts[kind] = kept
        return kept


def _split(run: FrameRun, verdicts: Sequence[bool]) -> Iterator[FrameRun]:
    """Yield the kept parts of a run, neighbours together."""
    data, at, first, start = run.data, 0, 0, 0
    for position, kept in enumerate([*verdicts, False]):
        if not kept:
            if first < position:
                yield attrs.evolve(
                    run,
                    pieces=[data[start:at]],
                    nth=run.nth + first,
                    sizes=run.sizes[first:position],
                )
            first = position + 1
        if position < len(verdicts):
            at += run.sizes[position]
            if not kept:
                start = at
