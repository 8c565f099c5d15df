"""What fault rules did to an exchange, in words: no more than the recording proves.

::

    flags, times, rules of an exchange ─┬─ undelivered ─▶ dropped by fault eater
                                        ├─ silence ─────▶ kept from the broker by fault eater
                                        ├─ held ────────▶ held 300 ms behind #12
                                        └─ changed ─────▶ changed for the client by fault liar

At most one rule does something to an exchange besides delaying it, which any number may do. So the
rule that dropped or cut a frame is the one that is not known to delay. A response that did not
leave for another reason, or too late, because its client had hung up, is nobody's doing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kproxy.exchange.entries import SILENCED, UNKNOWN_NS, WITHHELD
from kproxy.exchange.words.wording import age, listed
from kproxy.printable import printable

if TYPE_CHECKING:
    from kproxy.exchange.exchange import Exchange

_HELD_MS_MIN = 0.5
_SILENCED = "a fault had silenced or ended its connection"


def marks(exchange: Exchange) -> Iterator[str]:
    """Yield what rules did to an exchange, besides `silence`, and the rules of which nothing else
    is said."""
    changed = _changed(exchange)
    yield from filter(None, (unlearned(exchange), held(exchange), changed))
    row = exchange.row
    told = set[int]()
    if changed or (row.request_flags | row.response_flags) & WITHHELD:
        told.update(_rules(exchange, delaying=False))
    if _is_held(exchange):
        told.update(_rules(exchange, delaying=True))
    for fault_id in row.fault_ids:
        if fault_id not in told:
            yield f"fault {printable(exchange.topic_names.rule(fault_id))}"


def _changed(exchange: Exchange) -> str:
    """Say that the client got something else than the broker's answer, which a line tells, if a
    rule changed more of it than errors; else ""."""
    if exchange.response_told is None or exchange.broker_errors is not None:
        return ""
    return f"changed for the client by {_named(exchange, False)}"


def undelivered(exchange: Exchange) -> str:
    """Say why a response did not reach the client, or not whole; "" if it did, or may have."""
    if not exchange.undelivered:
        return ""
    row = exchange.row
    if row.response_flags & WITHHELD:
        return f"{'cut off' if row.response_sent_ns else 'dropped'} by {_named(exchange, False)}"
    if row.response_flags & SILENCED:
        return f"not delivered: {_SILENCED}"
    # Recordings from before the flags do not tell what a rule did, from what it did not.
    unknown = row.fault_ids and row.fault_ns == UNKNOWN_NS
    return "not delivered" if unknown else "not delivered: its connection ended first"


def unlearned(exchange: Exchange) -> str:
    """Say why a client did not learn of its response, or likely did not; "" if it did, or may
    have."""
    late = "sent to a client that had ended its side" if exchange.is_late else ""
    return undelivered(exchange) or late


def copied(exchange: Exchange) -> str:
    """Say that kproxy sent the request, if it did, and for which rule; else ""."""
    if not exchange.is_copy:
        return ""
    return f"kproxy sent this copy of a request ({_named(exchange, False)})"


def silence(exchange: Exchange) -> str:
    """Say why a request was not answered, if a rule is to blame; else ""."""
    row = exchange.row
    if row.request_flags & WITHHELD:
        what = "cut off on its way to" if row.request_sent_ns else "kept from"
        return f"{what} the broker by {_named(exchange, False)}"
    return _SILENCED if (row.request_flags | row.response_flags) & SILENCED else ""


def held(exchange: Exchange) -> str:
    """Say how long rules held an exchange, if they did, and behind which other one."""
    if not _is_held(exchange):
        return ""
    held_age, behind = age(exchange.fault_ms or 0.0), exchange.held_behind
    if behind is not None:
        return f"held {held_age} behind #{behind}, which a fault delayed"
    return f"held {held_age} by {_named(exchange, True)}" if exchange.faults else ""


def made(exchange: Exchange) -> str:
    """Say that errors are not the broker's, if a rule made them: `made by kproxy, fault err`."""
    if not exchange.injected and exchange.broker_errors is None:
        return ""
    return f"made by kproxy{f', {_named(exchange, False)}' if exchange.faults else ''}"


def acting(exchange: Exchange) -> list[str]:
    """Return the names of the rules that did something else than to delay an exchange."""
    return [exchange.topic_names.rule(each) for each in _rules(exchange, delaying=False)]


def _is_held(exchange: Exchange) -> bool:
    return (exchange.fault_ms or 0.0) >= _HELD_MS_MIN


def _rules(exchange: Exchange, delaying: bool) -> Sequence[int]:
    """Return the rules that delayed an exchange, or the one that did something else: all of its
    rules, where the recording does not tell which."""
    names, ids = exchange.topic_names, exchange.row.fault_ids
    return [each for each in ids if names.delays(each) in (delaying, None)] or ids


def _named(exchange: Exchange, delaying: bool) -> str:
    """Name these rules."""
    found = _rules(exchange, delaying)
    told = listed([printable(exchange.topic_names.rule(each)) for each in found])
    return f"{'fault' if len(found) == 1 else 'faults'} {told}"
