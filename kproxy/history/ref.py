"""What a history keeps of an exchange: which it was, when, of whom, and what came of it.

Invariant: neither bodies nor frames are kept, so that memory does not grow with them.
"""

from __future__ import annotations

import functools
from datetime import datetime

import attrs

from kproxy.exchange import delivered
from kproxy.exchange.endings import Unanswered
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.words import faults
from kproxy.units import moment

Client = tuple[str, str]
"""Host and client id: what is known of a client on all of its connections."""


@functools.lru_cache(1000)
def _client(address: str | None, client_id: str | None) -> Client:
    return (address or "").rpartition(":")[0], client_id or ""


def host_of(exchange: Exchange | Ref) -> str:
    """Return the host of an exchange's client, without the port; "" if it is not known."""
    return client_of(exchange)[0]


def client_of(exchange: Exchange | Ref) -> Client:
    """Return who sent a request."""
    return _client(exchange.client_address, exchange.client_id)


@attrs.frozen(eq=False)
class Fate:
    """What came of an exchange that did not go its ordinary way."""

    kept: bool = False
    """True if a fault rule kept the request from the broker."""
    may_have_reached: bool = True
    """False if the broker has certainly not got the request."""
    unanswered: Unanswered | None = None
    open_at_end: bool = False
    one_way: bool = False
    injected: bool = False
    """True if kproxy made the response: the broker did not."""
    is_copy: bool = False
    """True if kproxy sent the request a second time for a rule."""
    may_be_lost: bool = False
    """True if the client may not have got the response whole."""
    is_changed: bool = False
    """True if the client got another response than the broker sent."""
    broker_errors: tuple[str, ...] | None = None
    """The broker's errors, where a rule had the client told others."""
    made: str = ""
    """Who made the errors, if not the broker: see `words.faults`, as for the next three."""
    silence: str = ""
    undelivered: str = ""
    unlearned: str = ""


_ORDINARY = Fate()


@attrs.define(eq=False)  # frozen ones take twice as long to make; nobody changes it
class Ref:
    """An exchange, as far as sentences name it."""

    number: int
    api: str | None
    time_ns: int
    """Arrival of the request."""
    sent_ns: int
    """When it was sent on; 0 if it was not."""
    answered_ns: int
    """Arrival of the response; that of the request where there is none."""
    completed_ns: int
    connection: int
    node_id: int | None
    client_id: str | None
    client_address: str | None
    user: str | None
    is_answered: bool
    """True if there is a response that can be read."""
    errors: tuple[str, ...]
    """Kafka's names of the errors that the client was told."""
    routine: bool
    """True if the errors are those by which clients and brokers come to terms."""
    fate: Fate

    @classmethod
    def of(cls, exchange: Exchange) -> Ref:
        """Return what is kept of an exchange."""
        row, time_ns = exchange.row, exchange.time_ns
        return cls(
            row.number, exchange.api, time_ns, row.request_sent_ns,
            row.response_received_ns or time_ns, exchange.completed_ns,
            row.connection, exchange.node_id, exchange.client_id, exchange.client_address,
            exchange.user, exchange.response is not None, tuple(exchange.facts.errors),
            exchange.routine, _fate(exchange),
        )  # fmt: skip

    @property
    def time(self) -> datetime:
        """Arrival of the request, UTC."""
        return moment(self.time_ns)

    @property
    def client(self) -> Client:
        """The client, on whatever connection."""
        return _client(self.client_address, self.client_id)

    @property
    def broker_errors(self) -> tuple[str, ...]:
        """The errors of the broker, whatever a rule had the client told."""
        told = self.fate.broker_errors
        return self.errors if told is None else told

    @property
    def is_taken(self) -> bool:
        """True if a broker has answered: what it refused is told by errors."""
        return self.is_answered and not self.fate.kept and not self.fate.injected

    @property
    def may_have_worked(self) -> bool:
        """True if no answer says whether the broker did what was asked."""
        return not self.is_answered and self.fate.may_have_reached


def _fate(exchange: Exchange) -> Fate:
    if exchange.ordinary:
        return _ORDINARY
    broker_errors = exchange.broker_errors
    return Fate(
        kept=delivered.kept(exchange),
        may_have_reached=delivered.may_have_reached(exchange),
        unanswered=exchange.unanswered,
        open_at_end=exchange.open_at_end,
        one_way=exchange.one_way,
        injected=exchange.injected,
        is_copy=exchange.is_copy,
        may_be_lost=exchange.may_be_lost,
        is_changed=exchange.response_told is not None,
        broker_errors=None if broker_errors is None else tuple(broker_errors),
        made=faults.made(exchange),
        silence=faults.silence(exchange),
        undelivered=faults.undelivered(exchange),
        unlearned=faults.unlearned(exchange),
    )
