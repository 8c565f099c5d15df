"""The interface of every machine: events in, actions out, and a time at which to wake it.

::

    accepted · dialled · not_dialled · logged_in · receive · all_sent · closed · listening ·
    not_listening · probed · wake · stop
          │
          ▼
    Machine ──▶ [Dial, Send, Eof, Pause, Resume, Close, Listen, Refuse, …]   (`actions`)

The proxy (`cluster.Cluster`) is one, a replaying broker is another. The performer of the actions,
with sockets (`net.pump`) or in memory as the tests do, relies on nothing but this interface, and
performs every action through one table, action → function.

Invariants: a machine knows no socket, file, clock or chance. `now` is integer nanoseconds and never
runs backwards. The actions of an event are performed in order, before the next event; an event for
a connection that the machine has closed leads to nothing. A connection that waits for its Dial is
not read from; when the machine closes it the dialling ends. A machine that is a client opens its
connections itself: by a Dial with a number that is new.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NoReturn, Protocol

import attrs

from kproxy.exchange.entries import Side
from kproxy.proxy.actions import Action, Address, Log
from kproxy.proxy.authenticate import LoginSession


@attrs.frozen
class TlsSession:
    """The result of a side's TLS handshake; it is recorded, so it holds no key and no secret."""

    version: str
    """The version in OpenSSL's words: TLSv1.3."""
    cipher: str
    peer: str | None
    """The name in the peer's certificate (`tls.peer`); None: it showed none."""
    name_verified: bool
    """Whether its certificate had to be for the host that was dialled."""
    verified: bool
    """The peer had to show a certificate that is trusted."""
    subject: str = ""
    """The distinguished name in that certificate; it is recorded with `record_users` alone."""


@attrs.frozen
class Accepted:
    """A client that connected to the listener of a node."""

    number: int
    """Names the connection from here on, and is never used again."""
    node_id: int | None
    """None: bootstrap."""
    address: str
    local_address: Address
    """Ours."""
    tls: TlsSession | None = None


@attrs.frozen
class OpenConnection:
    """The present state of a connection, for people."""

    number: int
    client_address: str
    client_id: str | None
    node_id: int | None
    broker_address: str | None
    opened_ns: int
    last_ns: int
    """The time at which something last arrived, or left late."""
    pending_requests: int
    user: str | None = None
    """The user as whom the client has logged in; None: unknown."""


class Machine(Protocol):
    """A sans-IO state machine over connections."""

    @property
    def next_wake(self) -> int | None:
        """The exact time of the next `wake`; None: not before another event."""
        ...

    @property
    def busy(self) -> bool:
        """True while a client waits for a response; a stop waits a while for these."""
        ...

    def accepted(self, client: Accepted, now: int) -> list[Action]:
        """Take a client that connected. If no Dial is among the actions, the connection has one
        end, and the client is read from at once."""
        ...

    def rejected(self, client: Accepted, reason: str, now: int) -> list[Action]:
        """Take note of a client, as in `accepted`, whose handshake failed: it is gone again."""
        ...

    def dialled(
        self,
        number: int,
        broker: Address,
        now: int,
        tls: TlsSession | None = None,
        login: LoginSession | None = None,
    ) -> list[Action]:
        """Take the success of a Dial, at this address; `login` is kproxy's own."""
        ...

    def logged_in(self, number: int, login: LoginSession, now: int) -> list[Action]:
        """Take the success of a LogIn; after a failure its connection is `closed`."""
        ...

    def not_dialled(self, number: int, reason: str, refused: bool, now: int) -> list[Action]:
        """Take the failure of a Dial; `refused`: each of its addresses refuses connections."""
        ...

    def receive(self, number: int, side: Side, data: bytes, now: int) -> list[Action]:
        """Take bytes that arrived on a connection from one side."""
        ...

    def all_sent(self, number: int, side: Side, now: int) -> list[Action]:
        """Take note that one side has taken all that was sent to it, which it did not at once."""
        ...

    def closed(self, number: int, side: Side, how: str, reason: str, now: int) -> list[Action]:
        """Take the end of one side: it half-closed ("eof") or broke (any other `how`)."""
        ...

    def listening(self, node_id: int, address: Address, now: int) -> list[Action]:
        """Take the success of a Listen: the listener is open."""
        ...

    def not_listening(self, node_id: int, reason: str, now: int) -> list[Action]:
        """Take the failure of a Listen: the listener could not be opened."""
        ...

    def probed(
        self,
        node_id: int | None,
        addresses: Sequence[Address],
        failure: str,
        login_failed: bool,
        now: int,
    ) -> list[Action]:
        """Take the result of a Probe: why it failed ("": it did not), and whether at the login."""
        ...

    def wake(self, now: int) -> list[Action]:
        """Do what is due at `next_wake`, which is later than `now` afterwards, or None."""
        ...

    def drain(self, now: int) -> list[Action]:
        """Take no further request, and close each connection as soon as nothing is due on it: the
        program is about to end."""
        ...

    def stop(self, now: int) -> list[Action]:
        """Close every connection: the program ends."""
        ...


class OpenMachine(Machine, Protocol):
    """A machine whose connections an operator can see and end."""

    @property
    def reachable(self) -> Mapping[int | None, bool]:
        """Node id (None: bootstrap) of each known broker → True if the last attempt to reach it
        succeeded."""
        ...

    @property
    def connections(self) -> Iterator[OpenConnection]:
        """The open connections, the oldest first."""
        ...

    def end(self, number: int, now: int) -> list[Action]:
        """End a connection for the operator; do nothing if it is not open."""
        ...


class StartingMachine(OpenMachine, Protocol):
    """A machine that has listeners before a client has come."""

    def start(self, now: int) -> list[Action]:
        """Return the actions of the start: listeners."""
        ...


class ClientSideOnly:
    """The events that a machine without brokers behind it, which neither dials nor probes, ignores:
    what `Machine` and `OpenMachine` want of it all the same."""

    @property
    def busy(self) -> bool:
        """Always False: no response is worth waiting for at a stop."""
        return False

    @property
    def reachable(self) -> dict[int | None, bool]:
        """Empty: there are no brokers behind this one."""
        return {}

    def drain(self, now: int) -> list[Action]:
        """Do nothing: see `busy`."""
        return []

    def rejected(self, client: Accepted, reason: str, now: int) -> list[Action]:
        """Log a client whose TLS handshake failed."""
        text = f"connection {client.number} from {client.address}: TLS failed: {reason}"
        return [Log(text, "warning")]

    def dialled(
        self,
        number: int,
        broker: Address,
        now: int,
        tls: TlsSession | None = None,
        login: LoginSession | None = None,
    ) -> list[Action]:
        """Never: this machine does not dial."""
        return []

    def logged_in(self, number: int, login: LoginSession, now: int) -> list[Action]:
        """Never: this machine does not log in."""
        return []

    def not_dialled(self, number: int, reason: str, refused: bool, now: int) -> list[Action]:
        """Never: this machine does not dial."""
        return []

    def probed(
        self,
        node_id: int | None,
        addresses: Sequence[Address],
        failure: str,
        login_failed: bool,
        now: int,
    ) -> list[Action]:
        """Never: this machine does not probe."""
        return []


def unperformed(performer: object, action: object) -> NoReturn:
    """Refuse an action that is missing in a table of performers.

    Raises:
        TypeError: always.
    """
    raise TypeError(f"{type(performer).__name__} performs no {type(action).__name__}")
