"""What every machine is: events in, actions out, and a time at which it wants to be woken.

::

    accepted · dialled · not_dialled · receive · closed · listening · not_listening · probed ·
    wake · stop
          │
          ▼
    Machine ──▶ [Dial, Send, Eof, Pause, Resume, Close, Listen, Refuse, …]   (`actions`)

The proxy (`cluster.Cluster`) is one, a replaying broker is another. Whoever performs the actions,
with sockets (`net.pump`) or in memory as the tests do, knows nothing more of them than this, and
performs every action through one table, action → function.

Invariants: a machine knows no socket, file, clock or chance. `now` is integer nanoseconds and never
runs backwards. The actions of an event are performed in order, before the next event; an event for
a connection that the machine has closed leads to nothing. A connection that waits for its Dial is
not read from; when the machine closes it the dialling ends. A machine that is a client opens its
connections itself: by a Dial with a number that is new.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NoReturn, Protocol

import attrs

from kproxy.exchange.entries import Side
from kproxy.proxy.actions import Action, Address

if TYPE_CHECKING:
    from kproxy.proxy.connection import OpenConnection


@attrs.frozen
class TlsSession:
    """What the handshake of one side agreed on; recorded, so it holds no key and no secret."""

    version: str
    """As OpenSSL names it: TLSv1.3."""
    cipher: str
    peer: str | None
    """The common name in the peer's certificate; None: it showed none, or nobody checked it."""
    verified: bool
    """Whether the peer had to show a certificate that is trusted."""


class Machine(Protocol):
    """A sans-IO state machine over connections."""

    @property
    def next_wake(self) -> int | None:
        """When `wake` wants to be called, to the nanosecond; None: not before another event."""
        ...

    @property
    def busy(self) -> bool:
        """Whether a response is due that a client waits for: a stop waits a while for these."""
        ...

    def accepted(
        self,
        number: int,
        node_id: int | None,
        client_address: str,
        local_address: Address,
        now: int,
        tls: TlsSession | None = None,
    ) -> list[Action]:
        """A client connected to the listener of a node (None: bootstrap), at our `local_address`.

        `number` names the connection from here on and is never used again. If no Dial is among the
        actions, the connection has one end, and the client is read from at once.
        """
        ...

    def rejected(
        self,
        number: int,
        node_id: int | None,
        client_address: str,
        local_address: Address,
        reason: str,
        now: int,
    ) -> list[Action]:
        """A client came, as in `accepted`, and its handshake failed: it is gone again."""
        ...

    def dialled(
        self, number: int, broker: Address, now: int, tls: TlsSession | None = None
    ) -> list[Action]:
        """The Dial of a connection succeeded, at this address."""
        ...

    def not_dialled(self, number: int, reason: str, refused: bool, now: int) -> list[Action]:
        """No address of a Dial answered; `refused`: each of them refuses connections."""
        ...

    def receive(self, number: int, side: Side, data: bytes, now: int) -> list[Action]:
        """Bytes arrived on a connection from one side."""
        ...

    def closed(self, number: int, side: Side, how: str, reason: str, now: int) -> list[Action]:
        """One side of a connection half-closed ("eof") or broke (another word for how)."""
        ...

    def listening(self, node_id: int, address: Address, now: int) -> list[Action]:
        """The listener of a Listen is open."""
        ...

    def not_listening(self, node_id: int, reason: str, now: int) -> list[Action]:
        """The listener of a Listen could not be opened."""
        ...

    def probed(self, node_id: int, address: Address, answers: bool, now: int) -> list[Action]:
        """The Probe of a node has ended; `answers`: somebody takes connections there."""
        ...

    def wake(self, now: int) -> list[Action]:
        """`next_wake` has come (or passed). It is later than `now` afterwards, or None."""
        ...

    def stop(self, now: int) -> list[Action]:
        """Whoever runs the machine ends: close every connection."""
        ...


class OpenMachine(Machine, Protocol):
    """A machine that an operator can look into."""

    @property
    def reachable(self) -> Mapping[int | None, bool]:
        """Whether the last attempt to reach a node (None: bootstrap) succeeded."""
        ...

    @property
    def connections(self) -> Iterator[OpenConnection]:
        """The open connections, the oldest first."""
        ...

    def end(self, number: int, now: int) -> list[Action]:
        """The operator ends a connection; nothing happens if it is not open."""
        ...


def unperformed(performer: object, action: object) -> NoReturn:
    """Stand in for what is missing in a table of performers.

    Raises:
        TypeError: always.
    """
    raise TypeError(f"{type(performer).__name__} performs no {type(action).__name__}")
