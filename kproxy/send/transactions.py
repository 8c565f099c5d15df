"""Transactions of newer clients, for a cluster that does not know their protocol (KIP-890).

From Produce v12 and TxnOffsetCommit v5 on, a partition or a group is part of a transaction by being
written to, and the end of a transaction begins an epoch. A broker that only knows older versions
must be told.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from kproxy.exchange.entities import own_topic_name, partition_of
from kproxy.wire.protocol import messages
from kproxy.wire.protocol.records import batches

_IMPLICIT = {"Produce": 12, "TxnOffsetCommit": 5}
"""API → the first version in which it is enough to write."""
MADE: dict[type, tuple[str, int | None]] = {
    messages.AddPartitionsToTxnRequest: ("AddPartitionsToTxn", 3),
    messages.AddOffsetsToTxnRequest: ("AddOffsetsToTxn", None),
    messages.InitProducerIdRequest: ("InitProducerId", None),
}
"""Requests that are made here → API, and the last version for clients, if others are behind it."""
_TRANSACTION_TIMEOUT_MS = 60_000


@attrs.define(eq=False)
class ImplicitTransactions:
    """What has been said to be part of the open transactions of a conversation."""

    _said: dict[str, set[Any]] = attrs.field(factory=dict, init=False)

    def requests(self, api: str, recorded: int, version: int, body: Any) -> Iterator[Any]:
        """Yield the requests that must come before this one, which was recorded in another version
        than it is sent in."""
        transactional_id = getattr(body, "transactional_id", None) or ""
        if api == "EndTxn":
            self._said.pop(transactional_id, None)
        if not transactional_id or not version < _IMPLICIT.get(api, 0) <= recorded:
            return
        said = self._said.setdefault(transactional_id, set())
        if api == "TxnOffsetCommit":
            if body.group_id not in said:
                said.add(body.group_id)
                yield messages.AddOffsetsToTxnRequest(
                    transactional_id=transactional_id,
                    producer_id=body.producer_id,
                    producer_epoch=body.producer_epoch,
                    group_id=body.group_id,
                )
            return
        kind = messages.AddPartitionsToTxnRequest
        for topic in body.topic_data:
            for each in topic.partition_data:
                where = own_topic_name(topic), partition_of(each)
                producer = _producer(each.records)
                if where in said or producer is None:
                    continue
                said.add(where)
                added = kind.AddPartitionsToTxnTopic(name=where[0], partitions=[where[1]])
                yield kind(
                    v3_and_below_transactional_id=transactional_id,
                    v3_and_below_producer_id=producer[0],
                    v3_and_below_producer_epoch=producer[1],
                    v3_and_below_topics=[added],
                )


def next_epoch(end: Any) -> Any:
    """Return the request for the next epoch of the producer that has ended a transaction."""
    return messages.InitProducerIdRequest(
        transactional_id=end.transactional_id,
        transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS,
        producer_id=end.producer_id,
        producer_epoch=end.producer_epoch,
    )


def _producer(records: bytes | None) -> tuple[int, int] | None:
    """Return the producer of the first batch; None if there is none, or it is damaged."""
    first = next(iter(batches(records or b"")), None)
    return None if first is None else (first.producer_id, first.producer_epoch)
