"""The failures that a response reports: each error, and what it is about.

response ─▶ failures ─▶ Failure(error, parts): orders[0,1] failed with NOT_LEADER_OR_FOLLOWER

Parts are known by their names: brokers answer in an order of their own. So the order here is that
of the names, and equal for equal responses.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs

from kproxy.exchange import meanings
from kproxy.exchange.body_facts import body_facts, found_in, without_placeholders
from kproxy.exchange.entities import TopicNames, TopicPartition, partition_of, topic_of
from kproxy.exchange.words.wording import listed, partitions, resource, shortened
from kproxy.wire.protocol import error_name

if TYPE_CHECKING:
    from kproxy.exchange.exchange import Exchange

NO_PARTITION = -1
WHOLE = TopicPartition("", NO_PARTITION)
"""The place of a failure that concerns all that was asked."""

_OWNERS = ("group_id", "transactional_id")
"""Fields that name what several parts of a response belong to."""
_NAMES = ("key", *_OWNERS, "group_instance_id", "member_id", "resource_name", "name")
"""Fields that name what an element of a response is about, where that is no topic."""


class Part(NamedTuple):
    """A part of a response."""

    name: str
    """A group, a coordinator key, a member, a resource, …; "" if the place tells all."""
    place: TopicPartition
    """A partition, a topic with `NO_PARTITION`, or WHOLE."""


@attrs.frozen
class Failure:
    """An error, and all that failed with it."""

    error: str
    parts: tuple[Part, ...]
    messages: tuple[str, ...] = ()
    """What the broker says of it."""
    of_all: bool = True
    """True if all that was asked failed with it: then nobody needs to be told what."""
    by_rule: bool = False
    """True if a fault rule made it; the broker did not."""

    @property
    def places(self) -> tuple[TopicPartition, ...]:
        """The partitions, or the topics with `NO_PARTITION`; (WHOLE,) if it is about the whole
        request."""
        return tuple(dict.fromkeys(each.place for each in self.parts))

    @property
    def names(self) -> tuple[str, ...]:
        """The groups, coordinator keys and the like, where it is about them."""
        return tuple(dict.fromkeys(each.name for each in self.parts if each.name))

    @property
    def subject(self) -> str:
        """What failed: "orders[0,1]", "group billing"; "It" for the whole request."""
        by_name: dict[str, list[TopicPartition]] = {}
        for name, place in self.parts:
            by_name.setdefault(name, []).append(place)
        texts = (
            ": ".join(filter(None, (name, place_text(places)))) for name, places in by_name.items()
        )
        return listed(filter(None, texts)) or "It"

    @property
    def topics(self) -> list[str]:
        """The topics that it is about."""
        return list(dict.fromkeys(each.topic for each in self.places if each.topic))


def place_text(places: Iterable[TopicPartition]) -> str:
    """Return places as text: "orders[0,1], payments"; "" for the whole request."""
    by_topic: dict[str, list[str]] = {}
    for topic, partition in sorted(places):
        numbers = by_topic.setdefault(topic, [])
        if partition != NO_PARTITION:
            numbers.append(str(partition))
    found = (partitions(name, of) if of else name for name, of in by_topic.items() if name)
    return listed(found)


def failures(exchange: Exchange) -> list[Failure]:
    """Return the failures that a client was told, each error once, in order of what failed."""
    response = delivered_response(exchange)
    if response is None:
        return [Failure(error, (Part("", WHOLE),)) for error in exchange.errors]
    return [
        attrs.evolve(each, by_rule=made_by_rule(exchange, each.error))
        for each in failures_in(response, exchange.request, exchange.topic_names)
    ]


def made_by_rule(exchange: Exchange, error: str) -> bool:
    """Return whether a fault rule made an error of an exchange, before or after the broker."""
    if exchange.injected:
        return True
    of_broker = exchange.broker_errors
    return of_broker is not None and error not in of_broker


def delivered_response(exchange: Exchange) -> Any:
    """Return the response as its client got it, which a fault rule may have changed; None if there
    is none or it cannot be decoded."""
    changed = exchange.told
    return exchange.response if changed is None else changed


def failures_in(response: Any, request: Any, names: TopicNames) -> list[Failure]:
    """Return the failures in the body of a response; `request` is None where it is not known."""
    found = list(found_in(response, meanings.ERROR))
    if not any(each.value for each in found):
        return []
    named = {id(each.within[-1]): _part(each.within[1:], names) for each in found}
    if len({part.name for part in named.values()} - {""}) == 1:
        # What all belong to is what was asked.
        named = {of: Part("", part.place) if part.place.topic else part
                 for of, part in named.items()}  # fmt: skip
    holders = {id(struct) for each in found for struct in each.within[:-1]}
    parts: dict[str, set[Part]] = {}
    messages: dict[str, set[tuple[Part, str]]] = {}
    said = _messages(response, named)
    outcomes: dict[int, set[int]] = {each: set() for each in named if each not in holders}
    for code, of in ((each.value, id(each.within[-1])) for each in found if each.value):
        error, part = error_name(code), named[of]
        parts.setdefault(error, set()).add(part)
        messages.setdefault(error, set()).update((part, text) for text in said.get(of, ()))
        outcomes.setdefault(of, set()).add(code)
    codes = set(map(frozenset, outcomes.values()))
    failed = [
        Failure(
            error,
            tuple(sorted(of)),
            tuple(without_placeholders(dict.fromkeys(text for _, text in sorted(messages[error])))),
            Part("", WHOLE) in of or (len(codes) == 1 and _is_all_asked(of, request, names)),
        )
        for error, of in parts.items()
    ]
    return sorted(failed, key=lambda each: (each.parts[0], each.error))


def _messages(response: Any, named: dict[int, Part]) -> dict[int, list[str]]:
    """Return what a response says of its parts, by their structs."""
    said: dict[int, list[str]] = {}
    for _, text, within in found_in(response, meanings.ERROR_MESSAGE):
        of = next((id(each) for each in reversed(within) if id(each) in named), 0)
        said.setdefault(of, []).append(text)
    return said


def _is_all_asked(parts: set[Part], request: Any, names: TopicNames) -> bool:
    """Return whether a request names nothing but these parts of its response, which are all."""
    places = {each.place for each in parts}
    if not any(each.topic for each in places):
        return True
    asked = body_facts(request, None, names)
    if any(each.partition != NO_PARTITION for each in places):
        return bool(asked.partitions) and places.issuperset(asked.partitions)
    return bool(asked.topics) and {each.topic for each in places}.issuperset(asked.topics)


def _part(inner: tuple[Any, ...], names: TopicNames) -> Part:
    """Name a part by the structs around its error, without the body."""
    if not inner:
        return Part("", WHOLE)
    place = TopicPartition(topic_of(inner, names), partition_of(inner[-1]))
    fields = _OWNERS if place.topic else _NAMES
    return Part(_name(inner, fields), place if place.topic else WHOLE)


def _name(inner: tuple[Any, ...], fields: tuple[str, ...]) -> str:
    for struct in reversed(inner):
        for field in fields:
            value = getattr(struct, field, None)
            if isinstance(value, str) and value:
                if field == "resource_name" and "Config" in type(struct).__qualname__:
                    return resource(struct)
                return shortened(value) if field == "member_id" else value
    return ""
