"""Records that idempotent producers wrote: what they send again, the broker knows by its numbers.

    sequences of a producer in a partition ─▶ spans, those that join as one ─▶ count

Invariant: the sum of parts does not depend on their order. Memory grows with producers.
"""

from __future__ import annotations

import bisect

import attrs

Producer = tuple[str, str, int, int, int]
"""Recording, topic, partition, producer id and epoch."""


@attrs.define(eq=False)
class NumberedRecords:
    """The sequences that producers wrote."""

    spans: dict[Producer, list[tuple[int, int]]] = attrs.field(factory=dict)
    """Spans of sequences in order, the end of each excluded; none joins the next."""

    def add(self, producer: Producer, start: int, end: int) -> None:
        """Take the sequences of a batch."""
        spans = self.spans.setdefault(producer, [])
        first = bisect.bisect_left(spans, start, key=lambda each: each[1])
        last = bisect.bisect_right(spans, end, key=lambda each: each[0])
        for begun, ended in spans[first:last]:
            start, end = min(start, begun), max(end, ended)
        spans[first:last] = [(start, end)]

    def merge(self, other: NumberedRecords) -> None:
        """Add the sequences of another part."""
        for producer, spans in other.spans.items():
            for start, end in spans:
                self.add(producer, start, end)

    @property
    def count(self) -> int:
        """The number of records."""
        return sum(end - start for spans in self.spans.values() for start, end in spans)
