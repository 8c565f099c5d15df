"""What clients did after each hit of a fault rule.

::

    hits, opened connections ─┐
    exchanges of the clients ─┴─▶ recoveries ─▶ rows: retries, reconnects, when it worked again

The API works again with the client's next request of it that no rule touched and that succeeds,
within `FAULT_SECONDS`; the column `retries` counts the requests of that API up to it. They may ask
something else: whether the same was asked again, findings and `kproxy why fault:NAME` say.
An exchange that a rule only made late, or sent twice, is its own success. The table `faults` of
`kproxy analyze` says the same.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from typing import Any

import attrs

from kproxy.exchange.entries import CONNECTIONS, EVENTS, Note
from kproxy.exchange.exchange import Exchange
from kproxy.report.data import Row
from kproxy.units import moment
from kproxy.why.sentences import host_of

FAULT_SECONDS = 30
"""Time after a fault in which a client's requests count as its consequence."""
_COMPLETE = frozenset({"latency", "bandwidth", "throttle", "duplicate"})
"""Actions after which an exchange is still complete."""

Client = tuple[str, str | None, str]
"""A recording, a client id and a host."""
Try = tuple[int, int, bool]
"""The time and number of an exchange, and whether it succeeded untouched."""


@attrs.frozen
class Hit:
    """A fault rule that fired on an exchange."""

    recording: str
    time_us: int
    number: int
    rule: str | None
    action: str | None


@attrs.define(eq=False)
class FaultNotes:
    """The notes that recoveries are told from."""

    hits: list[Hit] = attrs.field(factory=list)
    opened: list[tuple[str, int, int]] = attrs.field(factory=list)
    """Recording, number and time of connections that were opened."""

    def add(self, note: Note, recording: str) -> None:
        """Take a note of a recording."""
        body, time_us = note.body, note.time_ns // 1000
        event = body.get("event")
        if note.channel == EVENTS and event == "fault":
            number = body.get("number")
            if number is not None:
                names = body.get("rule"), body.get("action")
                self.hits.append(Hit(recording, time_us, number, *names))
        elif note.channel == CONNECTIONS and event in ("opened", "open"):
            connection = body.get("connection")
            if connection is not None:
                self.opened.append((recording, connection, time_us))


@attrs.frozen
class Tried:
    """What recoveries need to know of an exchange."""

    recording: str
    time_us: int
    number: int
    connection: int
    client_id: str | None
    api: str | None
    topics: tuple[str, ...]
    good: bool
    touched: bool
    host: str = ""

    @classmethod
    def of(cls, exchange: Exchange, recording: str) -> Tried:
        """Return what is needed of an exchange."""
        answered = exchange.response_bytes is not None or exchange.one_way
        return cls(
            recording, exchange.time_ns // 1000, exchange.number, exchange.connection,
            exchange.client_id, exchange.api, tuple(exchange.topics),
            answered and not exchange.errors and not exchange.left_open,
            bool(exchange.row.fault_ids), host_of(exchange),
        )  # fmt: skip


def recoveries(notes: FaultNotes, tried: list[Tried]) -> list[Row]:
    """Return a row for each hit, in the order of their times, from the exchanges of recordings."""
    clients: dict[tuple[str, int], Client] = {}
    hit_numbers = {(hit.recording, hit.number) for hit in notes.hits}
    exchanges: dict[tuple[str, int], Tried] = {}
    tries: defaultdict[tuple[Client, str | None], list[Try]] = defaultdict(list)
    for each in sorted(tried, key=lambda each: (each.time_us, each.number)):
        client = each.recording, each.client_id, each.host
        clients.setdefault((each.recording, each.connection), client)
        if (each.recording, each.number) in hit_numbers:
            exchanges[each.recording, each.number] = each
        tries[client, each.api].append((each.time_us, each.number, each.good and not each.touched))
    opened: defaultdict[Client, list[int]] = defaultdict(list)
    for recording, connection, time_us in sorted(notes.opened, key=lambda each: each[2]):
        if (recording, connection) in clients:
            opened[clients[recording, connection]].append(time_us)
    order = sorted(notes.hits, key=lambda hit: (hit.time_us, hit.number))
    return [_row(hit, exchanges.get((hit.recording, hit.number)), tries, opened) for hit in order]


_LAST = 1 << 63


def _row(
    hit: Hit,
    exchange: Tried | None,
    tries: dict[tuple[Client, str | None], list[Try]],
    opened: dict[Client, list[int]],
) -> Row:
    row: dict[str, Any] = {
        "recording": hit.recording, "fault": hit.rule, "time": moment(hit.time_us * 1000),
        "us": hit.time_us, "number": hit.number, "client_id": None, "api": None, "topics": [],
        "retries": 0, "reconnects": 0, "recovered_number": None, "recovered_ms": None,
    }  # fmt: skip
    if exchange is None:
        return row
    client = hit.recording, exchange.client_id, exchange.host
    until_us = hit.time_us + FAULT_SECONDS * 1_000_000
    row |= {"client_id": exchange.client_id, "api": exchange.api, "topics": list(exchange.topics)}
    times = opened.get(client, [])
    row["reconnects"] = bisect_right(times, until_us) - bisect_right(times, hit.time_us)
    if hit.action in _COMPLETE and exchange.good:
        return row | {"recovered_number": hit.number, "recovered_ms": 0.0}
    found = tries[client, exchange.api]
    own = bisect_right(found, (exchange.time_us, exchange.number, True))
    end = bisect_right(found, (until_us, _LAST, True))
    for at in range(bisect_right(found, (hit.time_us, _LAST, True)), end):
        time_us, number, good = found[at]
        if good:
            recovered_ms = round((time_us - hit.time_us) / 1000, 3)
            row |= {"recovered_number": number, "recovered_ms": recovered_ms}
            end = at + 1
            break
    return row | {"retries": max(0, end - own)}
