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
from collections.abc import Iterator

import attrs

from kproxy.exchange.endings import connection_start
from kproxy.exchange.entries import EVENTS, Note
from kproxy.exchange.exchange import Exchange
from kproxy.history.attempts import COMPLETE, FAULT_SECONDS, own_success, works_again
from kproxy.history.ref import Client, Ref, client_of
from kproxy.look.report.data import Row
from kproxy.units import moment

_RULES = frozenset(("fault_rules", "fault"))
_Asker = tuple[Client, str | None]
"""A client, and the API that it asked."""
_Try = tuple[int, int, bool]
"""Time and number of an exchange, and whether it succeeded untouched."""
_LAST = 1 << 63


@attrs.define(eq=False)
class Recoveries:
    """Hits of fault rules in a recording, and what its clients did, in order of completion."""

    recording: str
    _hits: list[Note] = attrs.field(factory=list, init=False)
    _hit_numbers: set[int] = attrs.field(factory=set, init=False)
    _opened_us: dict[int, int] = attrs.field(factory=dict, init=False)
    """Connection → when it was opened."""
    _clients: dict[int, Client] = attrs.field(factory=dict, init=False)
    """Connection → its client."""
    _tries: dict[_Asker, tuple[array[int], array[int]]] = attrs.field(
        factory=lambda: defaultdict(lambda: (array("q"), array("q"))), init=False
    )
    """The times of requests, and their numbers, negative unless they succeeded and no rule touched
    them."""
    _touched: dict[int, tuple[Ref, list[str], frozenset[str]]] = attrs.field(
        factory=dict, init=False
    )
    """Exchanges that rules touched: their topics, and the actions after which they succeeded."""
    _has_rules: bool = attrs.field(default=False, init=False)

    def note(self, note: Note) -> None:
        """Take the next note."""
        event = note.body.get("event")
        if note.channel == EVENTS and event in _RULES:
            self._has_rules = True
            if event == "fault" and note.body.get("number") is not None:
                self._hits.append(note)
                self._hit_numbers.add(note.body["number"])
        elif (start := connection_start(note)) is not None and not start.was_open:
            self._opened_us[start.connection] = start.time_ns // 1000

    def add(self, exchange: Exchange) -> None:
        """Take the next exchange."""
        if not self._has_rules or exchange.is_copy:
            return
        client, number = client_of(exchange), exchange.number
        self._clients.setdefault(exchange.connection, client)
        times_us, numbers = self._tries[client, exchange.api]
        times_us.append(exchange.time_ns // 1000)
        numbers.append(number if works_again(exchange) else -number)
        if exchange.row.fault_ids or number in self._hit_numbers:
            own = frozenset(each for each in COMPLETE if own_success(exchange, each))
            self._touched[number] = Ref.of(exchange), list(exchange.topics), own

    def rows(self) -> Iterator[tuple[Note, Row]]:
        """Yield each hit that names its exchange, and its row, in the order of their times."""
        opened: dict[Client, list[int]] = {}
        for number, time_us in sorted(self._opened_us.items(), key=lambda each: each[1]):
            if number in self._clients:
                opened.setdefault(self._clients[number], []).append(time_us)
        hits = sorted(self._hits, key=lambda hit: (hit.time_ns, hit.body["number"]))
        tries: dict[_Asker, list[_Try]] = {}
        for asker in {(ref.client, ref.api) for ref, _, _ in self._touched.values()}:
            found = zip(*self._tries[asker], strict=True)
            tries[asker] = sorted((time_us, abs(each), each > 0) for time_us, each in found)
        yield from ((hit, self._row(hit, opened, tries)) for hit in hits)

    def _row(
        self, hit: Note, opened: dict[Client, list[int]], tries: dict[_Asker, list[_Try]]
    ) -> Row:
        number, time_us = hit.body["number"], hit.time_ns // 1000
        row: Row = {
            "recording": self.recording, "fault": hit.body.get("rule"),
            "time": moment(time_us * 1000), "us": time_us, "number": number,
            "client_id": None, "api": None, "topics": [],
            "retries": 0, "reconnects": 0, "recovered_number": None, "recovered_ms": None,
        }  # fmt: skip
        if number not in self._touched:
            return row
        ref, topics, succeeded = self._touched[number]
        row |= {"client_id": ref.client_id, "api": ref.api, "topics": topics}
        until_us = time_us + FAULT_SECONDS * 1_000_000
        times = opened.get(ref.client, [])
        row["reconnects"] = bisect_right(times, until_us) - bisect_right(times, time_us)
        if hit.body.get("action") in succeeded:
            return row | {"recovered_number": number, "recovered_ms": 0.0}
        found = tries[ref.client, ref.api]
        own = bisect_right(found, (ref.time_ns // 1000, number, True))
        end = bisect_right(found, (until_us, _LAST, True))
        for at in range(bisect_right(found, (time_us, _LAST, True)), end):
            at_us, its_number, good = found[at]
            if good:
                recovered_ms = round((at_us - time_us) / 1000, 3)
                row |= {"recovered_number": its_number, "recovered_ms": recovered_ms}
                end = at + 1
                break
        return row | {"retries": max(0, end - own)}
