"""Findings about records that cannot be read: damaged batches, and bytes that are no batch.

Invariant: the records of as many exchanges are read as have `RECORDS_MAX` records together; what
comes after them is not looked into.
"""

from __future__ import annotations

import attrs

from kproxy.exchange.exchange import Exchange
from kproxy.exchange.topic_records import Unreadable
from kproxy.exchange.words.wording import count
from kproxy.history.items import Item
from kproxy.look.why.finding import Finding, Harm
from kproxy.look.why.sentences import who

RECORDS_MAX = 250_000
_APIS = frozenset({"Produce", "Fetch", "ShareFetch"})


@attrs.define(eq=False)
class UnreadableRecords:
    """Finds the topics that have records which cannot be read."""

    _first: dict[str, tuple[Unreadable, str, int]] = attrs.Factory(dict)
    """Topic → the first of them, who sent or got it, and in which exchange."""
    _counts: dict[str, int] = attrs.Factory(dict)
    _read: int = 0

    def add(self, item: Item) -> None:
        """Take the next item."""
        if not isinstance(item, Exchange) or item.api not in _APIS or self._read >= RECORDS_MAX:
            return
        self._read += len(item.records)
        for each in item.records.unreadable:
            self._first.setdefault(each.topic, (each, who(item), item.number))
            self._counts[each.topic] = self._counts.get(each.topic, 0) + 1

    def found(self) -> list[Finding]:
        """Return a finding for each topic."""
        return [self._finding(topic) for topic in sorted(self._first)]

    def _finding(self, topic: str) -> Finding:
        first, client, number = self._first[topic]
        more = self._counts[topic] - 1
        did = "wrote" if first.produced else "fetched"
        text = f"{client} {did} {first.text} (#{number})."
        if more:
            text += f" {count(more, 'more time')} the records of {topic} cannot be read."
        return Finding(
            Harm.DATA,
            "unreadable records",
            text,
            (number,),
            ("show", "--frame", str(number)),
            topic,
        )
