"""The writes of a Produce request: what it carries for each partition, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from kproxy.exchange import delivered
from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.topic_records import batch_heads
from kproxy.protocol import error_name

WROTE, SENT, TRIED = "wrote", "sent", "tried to write"
"""What became of a write: the broker took it; none was to answer it (acks=0); it was refused, or
not answered, or did not reach the broker."""


@attrs.frozen
class Write:
    """What a Produce has for one partition."""

    where: TopicPartition
    records: int
    """0 where old formats compress their number as well."""
    sequences: Sequence[tuple[int, int, int]]
    """See `topic_records.BatchHeads`."""
    error: str
    """Kafka's name of the error; empty if there is none, or no response."""
    offset: int | None
    """The first offset at which the broker wrote; None if it gave none."""

    outcome: str
    """`WROTE`, `SENT` or `TRIED`."""

    @property
    def last_offset(self) -> int | None:
        """The last offset that the broker gave."""
        return None if self.offset is None else self.offset + max(0, self.records - 1)


def writes(exchange: Exchange) -> Iterator[Write]:
    """Yield the writes of a Produce; nothing of any other exchange."""
    if exchange.api != "Produce":
        return
    results = {each.where: each for each in exchange.facts.results}
    refused = delivered.refused(exchange)
    done = TRIED
    if delivered.may_have_written(exchange):
        done = SENT if exchange.one_way else WROTE
    for each in exchange.facts.records:
        if not each.produced:
            continue
        heads, result = batch_heads(each), results.get(each.where)
        error = error_name(result.error_code) if result is not None and result.error_code else ""
        offset = result.offset if result is not None and result.offset >= 0 else None
        done_here = done
        if each.where in refused:
            offset, done_here = None, TRIED
        yield Write(each.where, heads.records or 0, heads.sequences, error, offset, done_here)
