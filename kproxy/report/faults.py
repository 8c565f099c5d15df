"""What clients did after each hit of a fault rule.

::

    hits, opened connections ─┐
    exchanges of a recording ─┴─▶ Recoveries ─▶ rows: retries, reconnects, when it worked again

The API works again with the client's next request of it that no rule touched and that succeeds,
within `FAULT_SECONDS`; the column `retries` counts the requests of that API up to it. They may ask
something else: whether the same was asked again, findings and `kproxy why fault:NAME` say.
An exchange that a rule only made late, or sent twice, is its own success. The table `faults` of
`kproxy analyze` says the same.

Invariant: of an exchange that no rule touched, 16 bytes are kept, and nothing before the first
rule.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import defaultdict
from typing import Any

import attrs

from kproxy.exchange.endings import connection_start
from kproxy.exchange.entries import EVENTS, Note
from kproxy.exchange.exchange import Exchange
from kproxy.history.attempts import COMPLETE, FAULT_SECONDS, SUCCEEDED, outcome, own_success
from kproxy.history.ref import Client, client_of
from kproxy.report.data import Row
from kproxy.units import moment

_RULES = frozenset(("fault_rules", "fault"))
_Try = tuple[int, int, bool]
"""Time and number of an exchange, and whether it succeeded untouched."""
_LAST = 1 << 63


@attrs.frozen
class _Touched:
    """An exchange that a rule hit."""

    time_us: int
    client: Client
    client_id: str | None
    api: str | None
    topics: list[str]
    own: frozenset[str]
    """Actions after which it succeeded itself."""


_NOT_RECORDED = _Touched(0, ("", ""), None, None, [], frozenset())


@attrs.define(eq=False)
class _Tries:
    """The requests of a client for an API: their times, and their numbers, negative unless they
    succeeded and no rule touched them."""

    times_us: array[int] = attrs.field(factory=lambda: array("q"))
    numbers: array[int] = attrs.field(factory=lambda: array("q"))

    def in_order(self) -> list[_Try]:
        """Return time, number and success of each, in order of time."""
        found = zip(self.times_us, self.numbers, strict=True)
        return sorted((time_us, abs(number), number > 0) for time_us, number in found)


@attrs.define(eq=False)
class Recoveries:
    """Hits of fault rules in a recording, and what its clients did, in order of completion."""

    recording: str
    _hits: list[Note] = attrs.field(factory=list[Note], init=False)
    _hit_numbers: set[int] = attrs.field(factory=set[int], init=False)
    _opened_us: dict[int, int] = attrs.field(factory=dict[int, int], init=False)
    """Connection → when it was opened: later files say again that it is open."""
    _clients: dict[int, Client] = attrs.field(factory=dict[int, Client], init=False)
    """Connection → its client."""
    _tries: dict[tuple[Client, str | None], _Tries] = attrs.field(
        factory=lambda: defaultdict(_Tries), init=False
    )
    _touched: dict[int, _Touched] = attrs.field(factory=dict[int, _Touched], init=False)
    """Exchanges that rules touched."""
    _has_rules: bool = attrs.field(default=False, init=False)

    def note(self, note: Note) -> None:
        """Take the next note."""
        event = note.body.get("event")
        if note.channel == EVENTS and event in _RULES:
            self._has_rules = True
            if event == "fault" and note.body.get("number") is not None:
                self._hits.append(note)
                self._hit_numbers.add(note.body["number"])
        elif (start := connection_start(note)) is not None:
            self._opened_us.setdefault(start.connection, start.time_ns // 1000)

    def add(self, exchange: Exchange) -> None:
        """Take the next exchange."""
        if not self._has_rules or exchange.is_copy:
            return
        client, number, time_us = client_of(exchange), exchange.number, exchange.time_ns // 1000
        self._clients.setdefault(exchange.connection, client)
        tries = self._tries[client, exchange.api]
        is_good = outcome(exchange) == SUCCEEDED and not exchange.row.fault_ids
        tries.times_us.append(time_us)
        tries.numbers.append(number if is_good else -number)
        if exchange.row.fault_ids or number in self._hit_numbers:
            own = frozenset(each for each in COMPLETE if own_success(exchange, each))
            about = exchange.client_id, exchange.api, list(exchange.topics)
            self._touched[number] = _Touched(time_us, client, *about, own)

    def rows(self) -> list[Row]:
        """Return a row for each hit, in the order of their times."""
        opened: dict[Client, list[int]] = {}
        for number, time_us in sorted(self._opened_us.items(), key=lambda each: each[1]):
            if number in self._clients:
                opened.setdefault(self._clients[number], []).append(time_us)
        hits = sorted(self._hits, key=lambda hit: (hit.time_ns, hit.body["number"]))
        wanted = {(each.client, each.api) for each in self._touched.values()}
        tries = {key: self._tries[key].in_order() for key in wanted}
        return [self._row(hit, opened, tries) for hit in hits]

    def _row(self, hit: Note, opened: dict[Client, list[int]], tries: dict[Any, list[_Try]]) -> Row:
        number, time_us = hit.body["number"], hit.time_ns // 1000
        exchange = self._touched.get(number, _NOT_RECORDED)
        row: Row = {
            "recording": self.recording, "fault": hit.body.get("rule"),
            "time": moment(time_us * 1000), "us": time_us, "number": number,
            "client_id": exchange.client_id, "api": exchange.api, "topics": exchange.topics,
            "retries": 0, "reconnects": 0, "recovered_number": None, "recovered_ms": None,
        }  # fmt: skip
        if exchange is _NOT_RECORDED:
            return row
        until_us = time_us + FAULT_SECONDS * 1_000_000
        times = opened.get(exchange.client, [])
        row["reconnects"] = bisect_right(times, until_us) - bisect_right(times, time_us)
        if hit.body.get("action") in exchange.own:
            return row | {"recovered_number": number, "recovered_ms": 0.0}
        found = tries.get((exchange.client, exchange.api), [])
        own = bisect_right(found, (exchange.time_us, number, True))
        end = bisect_right(found, (until_us, _LAST, True))
        for at in range(bisect_right(found, (time_us, _LAST, True)), end):
            at_us, its_number, good = found[at]
            if good:
                recovered_ms = round((at_us - time_us) / 1000, 3)
                row |= {"recovered_number": its_number, "recovered_ms": recovered_ms}
                end = at + 1
                break
        return row | {"retries": max(0, end - own)}
