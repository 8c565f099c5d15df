"""The transactions of a transactional id as bars: a row for each client, how each ended.

::

    tx-app    ▬▬▬ ▬▬  ▨▨▨ aborted   ▭▭▭▭▭▭▭▭▭▭▭▭ open ?
"""

from __future__ import annotations

from functools import partial

from kproxy.exchange.words.wording import age, count
from kproxy.history import transactions as t
from kproxy.history.ref import Client
from kproxy.history.transactions import ABORTED, COMMITTED, OPEN, UNKNOWN
from kproxy.look.pictures.bounded import NOT_KNOWN, Bar, BarRow, EndMark
from kproxy.look.pictures.drawing import ROW, Panel, bar_rows
from kproxy.look.why.sentences import named, transaction_ended

_ROWS_DRAWN = 8
_REFUSED = EndMark("refused", "refused: fenced", "m-4 -4h8v8h-8zm1 4h6")
_MEANING = {
    COMMITTED: "committed", ABORTED: "aborted", OPEN: "open", UNKNOWN: "end not recorded",
}  # fmt: skip


def transactions(found: t.TransactionalId, until_ns: int) -> Panel:
    """Return the panel of a transactional id in a recording that ends at a time."""
    bars = [(each.began, _bar(each, until_ns)) for each in kept(found)]
    if (fenced := found.fenced) is not None:
        told, at_ns = f"{named(fenced.ref)} is refused: {fenced.error}", fenced.ref.time_ns
        bars.append((fenced.ref, Bar(at_ns, "refused", told, at_ns, _REFUSED)))
    rows: dict[Client, BarRow] = {}
    for ref, bar in sorted(bars, key=lambda each: each[1].from_ns):
        rows.setdefault(ref.client, BarRow(ref.client_id or ref.client[0])).add(bar)
    kinds = {bar.kind for row in rows.values() for bar in row.bars}
    legend = [each for each in _MEANING.items() if each[0] in kinds]
    legend += [_REFUSED] if found.fenced else []
    dropped = found.committed.dropped + found.events.dropped
    heading = f"transactions; {dropped} more are not drawn" if dropped else "transactions"
    drawn = [*rows.values()][:_ROWS_DRAWN]
    return Panel(heading, legend, ROW * len(drawn), partial(bar_rows, drawn))


def kept(found: t.TransactionalId) -> list[t.Transaction]:
    """Return the transactions that the history keeps, in order of time."""
    held = [*found.committed, *found.events, *([found.open] if found.open else [])]
    own = [each for each in held if isinstance(each, t.Transaction)]
    return sorted(own, key=lambda each: each.began.time_ns)


def ended_ns(found: t.Transaction, until_ns: int) -> int:
    """Return when a transaction ended; where that is not known, up to when it was heard of: an open
    one until the recording ends."""
    if found.ended is not None:
        return found.ended.answered_ns
    if found.shown is not None:
        return found.shown[1].answered_ns
    return until_ns if found.end == OPEN else found.latest.answered_ns


def _bar(found: t.Transaction, until_ns: int) -> Bar:
    from_ns, to_ns = found.began.time_ns, ended_ns(found, until_ns)
    kind = found.shown[0] if found.shown and found.end == OPEN else found.end
    lasted = age((to_ns - from_ns) / 1e6)
    records = count(sum(each.records for each in found.written.values()), "record")
    texts = (f"{kind}, {records}, {lasted}", f"{kind}, {lasted}", kind)
    end = NOT_KNOWN if kind in (OPEN, UNKNOWN) else None
    return Bar(from_ns, kind, transaction_ended(found), to_ns, end, texts)
