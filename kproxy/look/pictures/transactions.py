"""The transactions of a transactional id as bars: a row for each client, how each ended.

tx-app    ▬▬▬ ▬▬  ▨▨▨ aborted   ▭▭▭▭▭▭▭▭▭▭▭▭ open ?
"""

from __future__ import annotations

from collections.abc import Iterator

from kproxy.exchange.words.wording import age, count
from kproxy.history.ref import Client
from kproxy.history.standstills import REMOVED
from kproxy.history.transactions import (
    ABORTED,
    COMMITTED,
    OPEN,
    UNKNOWN,
    RefusedRequest,
    Transaction,
    TransactionalId,
)
from kproxy.look.pictures.bounded import NOT_KNOWN, Bar, BarRow
from kproxy.look.pictures.drawing import ROW, Element, Panel, TimeAxis, bar_row
from kproxy.look.why.sentences import named, transaction_ended

_ROWS_DRAWN = 8
_MEANING = {COMMITTED: "committed", ABORTED: "aborted", OPEN: "open", UNKNOWN: "end not recorded"}
_REFUSED = "refused"


def transactions(found: TransactionalId, until_ns: int) -> Panel:
    """Return the panel of a transactional id in a recording that ends at a time."""
    rows: dict[Client, BarRow] = {}
    for each in kept(found):
        ref = each.began if isinstance(each, Transaction) else each.ref
        bar = _bar(each, until_ns) if isinstance(each, Transaction) else _refused(each)
        rows.setdefault(ref.client, BarRow(ref.client_id or ref.client[0])).add(bar)
    drawn = [*rows.values()][:_ROWS_DRAWN]
    kinds = {bar.kind for row in drawn for bar in row.bars}
    legend = [each for each in _MEANING.items() if each[0] in kinds]
    legend += [(REMOVED, "refused: fenced")] if _REFUSED in kinds else []
    dropped = found.committed.dropped + found.events.dropped
    heading = f"transactions; {dropped} more are not drawn" if dropped else "transactions"

    def draw(axis: TimeAxis, top: float) -> Iterator[Element]:
        for at, row in enumerate(drawn):
            yield from bar_row(row, axis, top + ROW * at, row.label)

    return Panel(heading, legend, ROW * len(drawn), draw)


def kept(found: TransactionalId) -> list[Transaction | RefusedRequest]:
    """Return the transactions that the history keeps, and the fenced requests, in order of time."""
    held = [*found.committed, *found.events, *([found.open] if found.open else [])]
    wanted = [
        each for each in held
        if isinstance(each, Transaction) or (isinstance(each, RefusedRequest) and each.is_fenced)
    ]  # fmt: skip
    return sorted(wanted, key=began_ns)


def began_ns(each: Transaction | RefusedRequest) -> int:
    """Return when a transaction began, or a request came."""
    return each.began.time_ns if isinstance(each, Transaction) else each.ref.time_ns


def ended_ns(found: Transaction, until_ns: int) -> int:
    """Return when a transaction ended; where that is not known, up to when it was heard of: an open
    one until the recording ends."""
    if found.ended is not None:
        return found.ended.answered_ns
    if found.shown is not None:
        return found.shown[1].answered_ns
    return until_ns if found.end == OPEN else found.latest.answered_ns


def _bar(found: Transaction, until_ns: int) -> Bar:
    from_ns, to_ns = found.began.time_ns, ended_ns(found, until_ns)
    kind = found.end if found.shown is None or found.end != OPEN else found.shown[0]
    lasted = age((to_ns - from_ns) / 1e6)
    records = sum(each.records for each in found.written.values())
    texts = (f"{kind}, {count(records, 'record')}, {lasted}", f"{kind}, {lasted}", kind, lasted)
    end = NOT_KNOWN if kind in (OPEN, UNKNOWN) else ""
    return Bar(from_ns, kind, transaction_ended(found), to_ns, end, texts)


def _refused(found: RefusedRequest) -> Bar:
    at_ns, told = found.ref.time_ns, f"{named(found.ref)} is refused: {found.error}"
    return Bar(at_ns, _REFUSED, told, at_ns, REMOVED)
