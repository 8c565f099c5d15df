"""Transactions: what each holds, how it ended, and the commits that come to count with it.

::

    Committed (OffsetCommit) ────────────────────┐
    Committed (TxnOffsetCommit) ─ held ─ Ended ──┴─▶ Commit …

An EndTxn without an answer may have worked: if a producer begins anew behind it, nobody knows how
the transaction ended. Without one, a producer that begins anew has what was open aborted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs

from kproxy.history.ref import Ref
from kproxy.history.rows import Commit, Committed, Ended, Initialized, Row


@attrs.define(eq=False)
class Transactions:
    """The transactions of all transactional ids."""

    _held: dict[str, list[Committed]] = attrs.field(factory=dict[str, list[Committed]], init=False)
    """Transactional id → what its open transaction holds."""
    _ending: dict[str, Ref] = attrs.field(factory=dict[str, Ref], init=False)
    """Transactional id → the EndTxn that was to commit it, and has no answer."""

    def take(self, ref: Ref, row: Row) -> Iterator[Commit]:
        """Take the next row; yield the commits that count from now on."""
        take = _TAKES.get(type(row))
        if take is not None:
            yield from take(self, ref, row)

    def gap(self) -> None:
        """Take a gap: how what is open ends is not known behind it."""
        self._held.clear()
        self._ending.clear()

    def _committed(self, ref: Ref, row: Committed) -> Iterator[Commit]:
        if not ref.is_taken or row.error or row.offset < 0:
            return
        if row.transactional_id:
            self._held.setdefault(row.transactional_id, []).append(row)
        else:
            yield Commit(row.group, row.member, row.where, row.offset, True, ref)

    def _initialized(self, ref: Ref, row: Initialized) -> Iterator[Commit]:
        if ref.is_taken and not row.error:
            held = self._held.pop(row.transactional_id, [])
            end = self._ending.pop(row.transactional_id, None)
            if end is not None:
                yield from _commits(held, False, end)

    def _ended(self, ref: Ref, row: Ended) -> Iterator[Commit]:
        if ref.may_have_worked and row.committed:
            self._ending[row.transactional_id] = ref
        if not ref.is_taken or row.error:
            return
        held = self._held.pop(row.transactional_id, [])
        self._ending.pop(row.transactional_id, None)
        if row.committed:
            yield from _commits(held, True, ref)


def _commits(held: list[Committed], certain: bool, by: Ref) -> Iterator[Commit]:
    return (Commit(each.group, each.member, each.where, each.offset, certain, by) for each in held)


_TAKES: dict[type, Callable[[Transactions, Ref, Any], Iterator[Commit]]] = {
    Committed: Transactions._committed,
    Initialized: Transactions._initialized,
    Ended: Transactions._ended,
}
