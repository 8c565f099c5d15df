"""Findings about what kproxy sent twice: records of which a fault rule made the broker take a copy.

request, copy ─▶ their offsets differ ─▶ Finding
"""

from __future__ import annotations

from collections import Counter, OrderedDict

import attrs

from kproxy.exchange.exchange import Exchange
from kproxy.exchange.words.wording import count, listed
from kproxy.history.items import Gap, Item
from kproxy.why.finding import Finding, Harm
from kproxy.why.sentences import named, offsets, who
from kproxy.why.written import Write, writes

_COPIES_MAX = 100


@attrs.define(eq=False)
class CopiedByRule:
    """Finds records that a broker took twice because a fault rule sent their request twice."""

    _sent: OrderedDict[tuple[int, int | None], Exchange] = attrs.field(
        factory=OrderedDict[tuple[int, int | None], Exchange], init=False
    )
    """Connection and correlation id → the first to be answered of a request and its copy."""
    _texts: dict[str, tuple[str, int, int]] = attrs.field(
        factory=dict[str, tuple[str, int, int]], init=False
    )
    """Topic → its first example."""
    _times: Counter[str] = attrs.field(factory=Counter[str], init=False)

    def add(self, item: Item) -> None:
        """Take the next item."""
        if isinstance(item, Gap):
            self._sent.clear()
        if not isinstance(item, Exchange) or item.api != "Produce" or not item.row.fault_ids:
            return
        key = item.connection, item.correlation_id
        other = self._sent.pop(key, None)
        if other is None or other.is_copy == item.is_copy:
            self._sent[key] = item
            if len(self._sent) > _COPIES_MAX:
                self._sent.popitem(last=False)
            return
        request, copy = (other, item) if item.is_copy else (item, other)
        given = {each.where: each.offset for each in writes(request)}
        for each in writes(copy):
            first = given.get(each.where)
            if each.offset is not None and first is not None and each.offset != first:
                self._take(request, copy, each, first)

    def _take(self, request: Exchange, copy: Exchange, write: Write, first: int) -> None:
        topic, partition = write.where
        before = offsets(first, first + max(0, write.records - 1))
        text = (
            f"{named(copy)}, which kproxy sent as a copy of #{request.number} of {who(request)},"
            f" wrote {count(write.records, 'record')} to"
            f" {topic}[{partition}]{offsets(write.offset or 0, write.last_offset or 0)} that"
            f" #{request.number} had written to {before}: written twice, by fault rule"
            f" {listed(copy.faults)}."
        )
        self._texts.setdefault(topic, (text, request.number, copy.number))
        self._times[topic] += 1

    def found(self) -> list[Finding]:
        """Return a finding for each topic."""
        return [self._finding(topic) for topic in sorted(self._texts)]

    def _finding(self, topic: str) -> Finding:
        text, *numbers = self._texts[topic]
        if more := self._times[topic] - 1:
            text += f" So {'was' if more == 1 else 'were'} {count(more, 'more batch')} of {topic}."
        shown_by = ("why", f"number:{numbers[1]}")
        return Finding(Harm.DATA, "records written twice", text, tuple(numbers), shown_by, topic)
