"""Logs: where each partition begins and ends, what was appended, what was read.

Appended, Read, Bound, Commit, Deleted ─▶ Log: ends, appends, reads, commits
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from kproxy.exchange.entities import TopicPartition
from kproxy.history.ref import Ref
from kproxy.history.rows import Commit, Deleted, Row


@attrs.define(eq=False)
class Logs:
    """The logs of a recording's partitions."""

    committed: dict[tuple[str, TopicPartition], tuple[Commit, Ref]] = attrs.field(
        factory=dict[tuple[str, TopicPartition], tuple[Commit, Ref]], init=False
    )
    """Group and partition → the last commit that counts, and the exchange that made it count."""

    def take(self, ref: Ref, row: Row, reader: str) -> None:
        """Take the next row; of a `Read`, `reader` is the group for which the client reads."""
        take = _TAKES.get(type(row))
        if take is not None:
            take(self, ref, row)

    def gap(self) -> None:
        """Take a gap: what follows may not join on to what was before."""

    def _commit(self, ref: Ref, row: Commit) -> None:
        self.committed[row.group, row.where] = row, ref

    def _deleted(self, ref: Ref, row: Deleted) -> None:
        for group, where in [
            each
            for each in self.committed
            if row.group in (None, each[0])
            and row.topic in (None, each[1].topic)
            and row.partition in (None, each[1].partition)
        ]:
            del self.committed[group, where]


_TAKES: dict[type, Callable[[Logs, Ref, Any], None]] = {
    Commit: Logs._commit,
    Deleted: Logs._deleted,
}
