"""The failures that a response reports: each error, and what it is about.

response ─▶ failures ─▶ Failure(error, places): orders[0,1] failed with NOT_LEADER_OR_FOLLOWER
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from kproxy.exchange import meanings
from kproxy.exchange.entities import TopicNames, TopicPartition, partition_of, topic_of
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.meanings import fields_in_body
from kproxy.exchange.words.wording import listed, partitions
from kproxy.protocol import error_name

NO_PARTITION = -1
WHOLE = TopicPartition("", NO_PARTITION)
"""The place of a failure that concerns all that was asked."""

_NAMES = ("key", "group_id", "member_id", "resource_name", "name", "transactional_id")
"""Fields that name what an element of a response is about, where that is no topic."""


@attrs.frozen
class Failure:
    """An error, and all that failed with it."""

    error: str
    places: tuple[TopicPartition, ...]
    """Partitions, or topics with `NO_PARTITION`; (WHOLE,) if it is about the whole request."""
    names: tuple[str, ...] = ()
    """Groups, coordinator keys and the like, where it is about them."""
    by_rule: bool = False
    """True if a fault rule made it; the broker did not."""

    @property
    def subject(self) -> str:
        """What failed: "orders[0,1]", "group billing"; "It" for the whole request."""
        return listed(self.names) if self.names else place_text(self.places) or "It"

    @property
    def topics(self) -> list[str]:
        """The topics that it is about."""
        return list(dict.fromkeys(each.topic for each in self.places if each.topic))


def place_text(places: tuple[TopicPartition, ...]) -> str:
    """Return places as text: "orders[0,1], payments"; "" for the whole request."""
    by_topic: dict[str, list[str]] = {}
    for topic, partition in sorted(places):
        numbers = by_topic.setdefault(topic, [])
        if partition != NO_PARTITION:
            numbers.append(str(partition))
    found = (partitions(name, of) if of else name for name, of in by_topic.items() if name)
    return listed(found)


def failures(exchange: Exchange) -> list[Failure]:
    """Return the failures that a client was told, each error once, in order of appearance."""
    told = told_response(exchange)
    if told is None:
        return [Failure(error, (WHOLE,)) for error in exchange.errors]
    places: dict[str, dict[TopicPartition, None]] = {}
    names: dict[str, dict[str, None]] = {}
    for error, place, name in _errors(told, exchange.topic_names):
        places.setdefault(error, {})[place] = None
        if name:
            names.setdefault(error, {})[name] = None
    return [
        Failure(
            error,
            tuple(at),
            tuple(names.get(error, ())),
            made_by_rule(exchange, error),
        )
        for error, at in places.items()
    ]


def made_by_rule(exchange: Exchange, error: str) -> bool:
    """Return whether a fault rule made an error of an exchange, before or after the broker."""
    if exchange.injected:
        return True
    of_broker = exchange.broker_errors
    return of_broker is not None and error not in of_broker


def told_response(exchange: Exchange) -> Any:
    """Return the response as its client got it, which a fault rule may have changed; None if there
    is none or it cannot be decoded."""
    told = exchange.decoded_facts.told
    return exchange.response if told is None else told


def _errors(body: Any, names: TopicNames) -> Iterator[tuple[str, TopicPartition, str]]:
    for _, code, within in fields_in_body(type(body), meanings.ERROR).found(body):
        if not code:
            continue
        inner = within[1:]
        place = TopicPartition(topic_of(inner, names), partition_of(within[-1]) if inner else -1)
        yield error_name(code), place, "" if place.topic else _name(inner)


def _name(inner: tuple[Any, ...]) -> str:
    for struct in reversed(inner):
        for field in _NAMES:
            value = getattr(struct, field, None)
            if isinstance(value, str) and value:
                return value
    return ""
