"""Connections: whose they are, how their clients logged in, how they began and how they ended.

::

    note, exchange, ConnectionEnd ─▶ ClientConnection: start · client · versions · login · end
                            └▶ Failed: TLS, logins and connections that failed, by client; brokers
                               that were not reached

Invariant: at most `_KEPT_MAX` connections are kept; of more, those on which nothing was asked are
dropped first, then those that ended first.
Failures are counted by client and reason, at most `_FAILED_MAX` kinds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import TypeVar

import attrs

from kproxy.exchange.derived import POLLS
from kproxy.exchange.endings import ConnectionEnd, ConnectionStart, connection_start
from kproxy.exchange.entries import Note
from kproxy.history.kept import one_of
from kproxy.history.ref import Client, Ref
from kproxy.history.rows import Authenticated, Denied, Handshake, Versions

Key = TypeVar("Key")
LOGIN_APIS = frozenset(("SaslHandshake", "SaslAuthenticate"))
_BEFORE_LOGIN = LOGIN_APIS | {"ApiVersions"}
_KEPT_MAX = 10_000
_FAILED_MAX = 1000
TLS, LOGIN, MISTAKE = "TLS", "login", "mistake"
"""What failed: TLS; a login; or a connection of whose end kproxy names the likely mistake."""
_NAMES_MISTAKE = ("the client ", "the broker ", "a frame ", "a request ")
"""How the reasons of such ends begin: others are errors of a socket (`proxy.diagnosis`)."""


@attrs.define(eq=False)
class ClientConnection:
    """A connection of a client to a broker."""

    number: int
    client: Client
    """Without a client id until it has asked something."""
    start: ConnectionStart | None = None
    requests: int = 0
    versions: tuple[Ref, Versions] | None = None
    """What its broker takes, and the ApiVersions that told it."""
    handshake: tuple[Ref, Handshake] | None = None
    """The last one that the broker accepted."""
    authenticated: Ref | None = None
    """The last step of the login after it that the broker accepted."""
    refused: Ref | None = None
    """The first step of a login that failed."""
    let_in: Ref | None = None
    """The first exchange that is more than a login."""
    end: ConnectionEnd | None = None
    unanswered: Failed | None = None
    """Requests that were never answered, polls aside."""


@attrs.define(eq=False)
class Failed:
    """Connections of a client, or to a broker, that failed for one reason."""

    first: ConnectionEnd | Ref
    last: ConnectionEnd | Ref
    times: int = 0
    mechanism: str = ""
    """Of logins, with those that the broker offers in its place."""
    offered: tuple[str, ...] = ()
    later: int = 0
    """Logins whose first message the broker had taken."""


@attrs.define(eq=False)
class Connections:
    """The connections of a recording."""

    failed: dict[tuple[str, Client, str], Failed] = attrs.Factory(dict)
    """What failed, the client, and the reason → how often."""
    denials: dict[tuple[Client, str | None, str | None, Denied], Failed] = attrs.Factory(dict)
    """The client, its user, the API, and what a broker refused → how often."""
    unreached: dict[int | None, Failed] = attrs.Factory(dict)
    """The node (None: a bootstrap address) → connections that ended since it answered nobody."""
    cut_off: Failed | None = None
    """The requests that had no answer when kproxy was stopped."""
    used: int = 0
    """Connections on which something was asked."""
    latest_ns: int = 0
    """The latest arrival of a request."""
    _by_number: OrderedDict[int, ClientConnection] = attrs.field(factory=OrderedDict, init=False)
    _unused: OrderedDict[int, None] = attrs.field(factory=OrderedDict, init=False)
    """Those on which nothing was asked."""
    _ended: OrderedDict[int, None] = attrs.field(factory=OrderedDict, init=False)
    """Those that are over, in order."""
    _versions: dict[Versions, Versions] = attrs.field(factory=dict, init=False)
    """Each once: those of all brokers are the same."""

    def __iter__(self) -> Iterator[ClientConnection]:
        return iter(self._by_number.values())

    def get(self, number: int) -> ClientConnection | None:
        """Return the connection with a number."""
        return self._by_number.get(number)

    def opened_ns(self, number: int) -> int:
        """Return when a connection was opened; 0 if that is not known."""
        found = self._by_number.get(number)
        start = None if found is None else found.start
        return 0 if start is None or start.was_open else start.time_ns

    def note(self, note: Note) -> None:
        """Take a note, which may tell how a connection began."""
        start = connection_start(note)
        if start is not None:
            found = self._of(start.connection)
            found.start = found.start or start

    def see(self, ref: Ref) -> None:
        """Take the next exchange, before its rows."""
        found = self._of(ref.connection)
        if not found.requests:
            found.client = ref.client
            self.used += 1
            del self._unused[ref.connection]
        found.requests += 1
        self.latest_ns = max(self.latest_ns, ref.time_ns)
        fate = ref.fate
        is_open = fate.open_at_end or fate.silence or ref.api in POLLS
        if fate.unanswered is not None and not is_open:
            found.unanswered = found.unanswered or Failed(ref, ref)
            found.unanswered.times += 1
        if found.let_in is None and ref.is_answered and ref.api not in _BEFORE_LOGIN:
            found.let_in = ref

    def end(self, end: ConnectionEnd) -> None:
        """Take the end of a connection."""
        found = self._of(end.connection)
        if not found.requests:
            found.client = end.client_host, ""
        found.end = end
        if found.unanswered and any(each.how == "stopped" for each in end.ends):
            self.cut_off = self.cut_off or Failed(found.unanswered.first, end)
            self.cut_off.times += found.unanswered.times
        if end.is_unreached:
            _count(self.unreached, end.node_id, end)
        elif end.tls_failed:
            _count(self.failed, (TLS, found.client, end.reason), end)
        elif _names_mistake(end.reason) and found.refused is None:
            _count(self.failed, (MISTAKE, found.client, end.reason), end)
        self._ended[end.connection] = None

    def _of(self, number: int) -> ClientConnection:
        """Return the connection with a number, in the place of another one if there are many."""
        found = self._by_number.get(number)
        if found is None:
            if len(self._by_number) >= _KEPT_MAX:
                dropped = next(iter(self._unused or self._ended or self._by_number))
                for each in (self._by_number, self._unused, self._ended):
                    each.pop(dropped, None)
            found = self._by_number[number] = ClientConnection(number, ("", ""))
            self._unused[number] = None
        return found

    def versions(self, ref: Ref, row: Versions) -> None:
        """Take the versions that a broker takes."""
        self._by_number[ref.connection].versions = ref, self._versions.setdefault(row, row)

    def denied(self, ref: Ref, row: Denied) -> None:
        """Take that a user may not do something."""
        _count(self.denials, (ref.client, ref.user, ref.api, row), ref)

    def handshake(self, ref: Ref, row: Handshake) -> None:
        """Take the choice of a mechanism."""
        connection = self._by_number[ref.connection]
        if row.error:
            failed = self._refused(connection, ref, row.mechanism, row.error)
            failed.offered = row.offered
        else:
            connection.handshake, connection.authenticated = (ref, row), None

    def authenticated(self, ref: Ref, row: Authenticated) -> None:
        """Take a step of a login."""
        connection = self._by_number[ref.connection]
        if row.error:
            mechanism = connection.handshake[1].mechanism if connection.handshake else ""
            failed = self._refused(connection, ref, mechanism, row.error)
            failed.later += connection.authenticated is not None
        else:
            connection.authenticated = ref

    def _refused(
        self, connection: ClientConnection, ref: Ref, mechanism: str, error: str
    ) -> Failed:
        connection.refused = connection.refused or ref
        failed = _count(self.failed, (LOGIN, ref.client, error), ref)
        failed.mechanism = mechanism
        return failed


def _names_mistake(reason: str) -> bool:
    return reason.startswith(_NAMES_MISTAKE) and not reason.startswith("the client has ended")


def _count(found: dict[Key, Failed], key: Key, one: ConnectionEnd | Ref) -> Failed:
    failed = one_of(found, key, _FAILED_MAX, lambda: Failed(one, one))
    failed.last = one
    failed.times += 1
    return failed
