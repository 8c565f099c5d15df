"""Times in which nothing went on: clients that quotas held, brokers and kproxy that stood still.

app         ▭▭▭▭▭▭▭▭▭▭▭  told to wait
             ▬▬▬▬▬▬▬▬▬▬  a request waited for that
broker 2           ▨▨▨   stood still

Invariant: what is drawn is what the history counts: the rows of clients, those that waited longest
first, and what stood still below them.
"""

from __future__ import annotations

from functools import partial

from kproxy.exchange.words.wording import age, count
from kproxy.look.pictures.bounded import Bar, BarRow
from kproxy.look.pictures.drawing import ROW, Panel, bar_rows
from kproxy.look.pictures.series import STILL, TOLD, WAITED, Series

_CLIENTS_DRAWN = 6
_MEANING = {TOLD: "told to wait (quota)", WAITED: "a request waited for that", STILL: "stood still"}


def waiting_rows(series: Series, client_id: str | None = None) -> list[BarRow]:
    """Return the rows of clients, of one name or those that waited most, and of what stood still;
    the second row of a client has no label."""
    total: dict[tuple[str, str], int] = {}
    for (client, kind), row in series.waits.items():
        if kind != STILL and client_id in (None, client[1]):
            total[client] = total.get(client, 0) + sum(_lasted(each) for each in row.bars)
    rows: list[BarRow] = []
    for client in sorted(total, key=lambda each: -total[each])[:_CLIENTS_DRAWN]:
        own = [row for kind in _MEANING if (row := series.waits.get((client, kind))) is not None]
        rows += [BarRow("" if at else row.label, row.bars) for at, row in enumerate(own)]
    for node_id, stalls in series.history.broker_stalls().items():
        bars = [
            Bar(each.from_ns, STILL, f"{count(len(each.waiting), 'request')} waited",
                each.until_ns, text=(age(each.length_ns / 1e6),))
            for each in stalls
        ]  # fmt: skip
        rows.append(BarRow(f"broker {node_id}", bars))
    own = [row for (_, kind), row in series.waits.items() if kind == STILL]
    return [*rows, *own]


def _lasted(bar: Bar) -> int:
    return (bar.until_ns or bar.from_ns) - bar.from_ns


def waiting(rows: list[BarRow]) -> Panel:
    """Return the panel of some rows."""
    kinds = {bar.kind for row in rows for bar in row.bars}
    legend = [each for each in _MEANING.items() if each[0] in kinds]
    return Panel("throttled and stalled", legend, ROW * len(rows), partial(bar_rows, rows))
