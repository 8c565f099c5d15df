"""The table of faults: a recording that has some is read once more, whole, by one task.

    hits of rules, exchanges ─┬─▶ Recoveries, as in the report ─┬─▶ rows
                              └─▶ what brokers took ────────────┘

All exchanges of a client tell what it did after a fault; a task has those of its stretches only.

Invariant: memory grows with the exchanges of such a recording, by some 50 bytes each.
"""

from __future__ import annotations

import itertools
import json
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence

import attrs

from kproxy.exchange.derived import UNKNOWN
from kproxy.exchange.exchange import Exchange
from kproxy.history.ref import Client, client_of
from kproxy.look.report.data import Row
from kproxy.look.report.faults import FAULT_SECONDS, Recoveries
from kproxy.tables.reading import everything, names_file
from kproxy.tables.splits import BatchRange

_WINDOW_US = FAULT_SECONDS * 1_000_000


def rows(stretches: Sequence[BatchRange]) -> Iterator[Row]:
    """Yield the rows of a recording, of which these are the stretches, in the order of the hits.

    Raises: RecordingError.
    """
    recoveries, services = Recoveries(stretches[0].recording), Services()
    for stretch in stretches:
        rules = (note for note in stretch.notes if note.body.get("event") == "fault_rules")
        with names_file(stretch):
            for item in itertools.chain(rules, everything(stretch)):
                if isinstance(item, Exchange):
                    recoveries.add(item)
                    services.add(item)
                else:
                    recoveries.note(item)
    for hit, row in recoveries.rows():
        before_ms, after_ms = services.around(row["number"], row["us"])
        yield row | {
            "connection": hit.body.get("connection"), "service_ms_before": before_ms,
            "service_ms_after": after_ms, "body": json.dumps(hit.body),
        }  # fmt: skip


@attrs.define(eq=False)
class Services:
    """What brokers took for the requests of the clients of a recording."""

    _taken: defaultdict[Client, array[int]] = attrs.field(
        factory=lambda: defaultdict(lambda: array("q")), init=False
    )
    """Client → time, number and service time of each request, in microseconds."""
    _touched: dict[int, tuple[Client, int]] = attrs.field(factory=dict, init=False)
    """Number of an exchange that a rule touched → its client and time."""
    _sums: dict[Client, list[tuple[int, int, int]]] = attrs.field(factory=dict, init=False)
    """The clients of `_touched` → time and number of each request, and the sum up to it."""

    def add(self, exchange: Exchange) -> None:
        """Take the next exchange."""
        client, time_us = client_of(exchange), exchange.time_ns // 1000
        if exchange.durations.service_us != UNKNOWN:
            self._taken[client].extend((time_us, exchange.number, exchange.durations.service_us))
        if exchange.row.fault_ids:
            self._touched[exchange.number] = client, time_us

    def around(self, number: int, hit_us: int) -> tuple[float | None, float | None]:
        """Return what brokers took on average before and after an exchange that was hit."""
        if number not in self._touched:
            return None, None
        client, time_us = self._touched[number]
        if client not in self._sums:
            each = [iter(self._taken[client])] * 3
            sums, found = 0, [(0, 0, 0)]
            for at_us, its_number, service_us in sorted(zip(*each, strict=True)):
                sums += service_us
                found.append((at_us, its_number, sums))
            self._sums[client] = found
        found = self._sums[client]
        first, itself, behind, end = (
            bisect_left(found, place, 1)
            for place in (
                (hit_us - _WINDOW_US,), (time_us, number), (time_us, number + 1),
                (hit_us + _WINDOW_US + 1,),
            )
        )  # fmt: skip
        return _mean_ms(found, first, itself), _mean_ms(found, behind, end)


def _mean_ms(sums: list[tuple[int, int, int]], start: int, end: int) -> float | None:
    """Return the mean of what lies between two places."""
    if end <= start:
        return None
    return round((sums[end - 1][2] - sums[start - 1][2]) / (end - start) / 1000, 3)
