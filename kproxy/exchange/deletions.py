"""What exchanges delete: topics, groups, and the offsets of groups.

DeleteTopics, DeleteGroups, OffsetDelete ─▶ (group, topic, partition), None for all
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kproxy.exchange import entities
from kproxy.exchange.exchange import Exchange

Gone = tuple[str | None, str | None, int | None]
"""What is deleted: of a group or of all, of a topic or of all, of a partition or of all."""


def deletions(exchange: Exchange) -> Iterator[Gone]:
    """Yield what a broker has deleted: without an answer nobody knows."""
    read = _DELETIONS.get(exchange.api)
    if read is not None and exchange.response is not None:
        yield from read(exchange)


def covers(gone: Gone, group: str, topic: str, partition: int) -> bool:
    """Return whether the offset of a group in a partition is among what is deleted."""
    place = group, topic, partition
    return all(each in (None, own) for each, own in zip(gone, place, strict=True))


def _topics(exchange: Exchange) -> Iterator[Gone]:
    for each in exchange.response.responses:
        if not each.error_code:
            yield None, entities.topic_of((each,), exchange.topic_names), None


def _groups(exchange: Exchange) -> Iterator[Gone]:
    for each in exchange.response.results:
        if not each.error_code:
            yield each.group_id, None, None


def _offsets(exchange: Exchange) -> Iterator[Gone]:
    request, response = exchange.request, exchange.response
    if request is None or response.error_code:
        return
    for topic in response.topics:
        for each in topic.partitions:
            if not each.error_code:
                yield request.group_id, topic.name, each.partition_index


_DELETIONS: dict[str | None, Callable[[Exchange], Iterator[Gone]]] = {
    "DeleteTopics": _topics,
    "DeleteGroups": _groups,
    "OffsetDelete": _offsets,
}
