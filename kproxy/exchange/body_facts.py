"""The facts in the bodies of an exchange: errors, topics, groups, records and their like.

    request ──┐
    response ─┴─▶ fold of its message ─▶ BodyFacts: each fact once, in order of appearance

`meanings` says which fields of Kafka's definitions are looked at. The fold of a message is compiled
when it is first needed: one loop for each array on the way to a field that has a meaning, with the
line of `_TAKEN` for that meaning. So a body is gone over once, whatever is asked of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from kproxy.exchange import embedded, facts, meanings
from kproxy.exchange.entities import TopicNames, TopicPartition
from kproxy.exchange.meanings import KIND_FIELDS, PREDICATES, Meaning, is_topic_id
from kproxy.wire.protocol import error_name, schema
from kproxy.wire.protocol.schema import Field, Message
from kproxy.wire.protocol.select import Found
from kproxy.wire.protocol.source import CODES, FunctionSource
from kproxy.wire.protocol.wire import new_tuple


class Records(NamedTuple):
    """The batches of one partition that a body carries, unread."""

    where: TopicPartition
    data: bytes
    produced: bool
    """True if a request carries them."""
    aborted: Sequence[Any] = ()
    """The aborted_transactions of a Fetch response's partition."""

    @property
    def topic(self) -> str:
        """The topic of the partition."""
        return self.where.topic

    @property
    def partition(self) -> int:
        """The number of the partition."""
        return self.where.partition


class PartitionResult(NamedTuple):
    """The outcome for one partition in a response to Produce or Fetch."""

    where: TopicPartition
    error_code: int
    offset: int
    """The first offset that was written (Produce), or the high watermark (Fetch)."""


class BodyFacts(NamedTuple):
    """The facts found in bodies."""

    errors: list[str]
    """Kafka's names of the errors that the client was told, each once."""
    error_messages: list[str]
    """The broker's messages about its errors, each once."""
    topics: list[str]
    """The topics that the bodies name, each once; the id as text where the name is not known.
    Subscriptions and assignments that consumers embed in JoinGroup and SyncGroup count too."""
    partitions: list[TopicPartition]
    groups: list[str]
    transactional_ids: list[str]
    throttled: bool
    """True if the response tells the client to wait."""
    records: list[Records]
    results: list[PartitionResult]


def body_facts(request: Any, response: Any, names: TopicNames, told: Any = None) -> BodyFacts:
    """Return the facts in decoded bodies; None stands for a body that is missing or opaque. `told`
    is the response as a fault rule has changed it: then its errors count."""
    into = _nothing()
    for body in (request, response):
        if body is not None:
            _fold(type(body))(body, names, *into)
    if told is not None:
        instead = _nothing()
        _fold(type(told))(told, names, *instead)
        into = into._replace(errors=instead.errors, error_messages=instead.error_messages)
    for found in (into.topics, into.groups, into.transactional_ids):
        found.pop("", None)
    return BodyFacts(
        list(map(error_name, into.errors)),
        list(without_placeholders(into.error_messages)),
        list(into.topics),
        list(into.partitions),
        list(into.groups),
        list(into.transactional_ids),
        bool(into.throttles),
        into.records,
        into.results,
    )


def errors(body: Any, api_key: int | None, frame: bytes | None) -> list[str]:
    """Return the names of the errors in a response, each once, in order of appearance.

    `body` is None if the response, whose bytes are `frame`, could not be decoded.
    """
    if body is None:
        return [] if api_key is None or frame is None else facts.errors_of_opaque(api_key, frame)
    codes = meanings.fields_in_body(type(body), meanings.ERROR).values(body)
    return [error_name(code) for code in dict.fromkeys(codes) if code]


def without_placeholders(messages: Iterable[str]) -> Iterator[str]:
    """Yield the messages that say something: brokers that have nothing to say in FindCoordinator
    call it so."""
    return (each for each in messages if each not in ("", "NONE"))


def found_in(body: Any, meaning: Meaning) -> Iterable[Found]:
    """Return the fields of a body with a meaning, each with the structs around it."""
    selection = meanings.fields_in_body(type(body), meaning)
    return selection.found(body) if selection.places else ()


# ── the fold of a message ────────────────────────────────────────────────────────────────────


class _Taken(NamedTuple):
    """What a fold adds to; what appears once is a key of a dict."""

    errors: dict[int, None]
    error_messages: dict[str, None]
    topics: dict[str, None]
    partitions: dict[TopicPartition, None]
    groups: dict[str, None]
    transactional_ids: dict[str, None]
    throttles: list[int]
    records: list[Records]
    results: list[PartitionResult]


def _nothing() -> _Taken:
    return _Taken({}, {}, {}, {}, {}, {}, [], [], [])


_TAKEN = {
    meanings.ERROR: "if {value}: errors[{value}] = None",
    meanings.ERROR_MESSAGE: "error_messages[{value}] = None",
    meanings.THROTTLE: "if {value}: throttles.append({value})",
    meanings.TOPIC: "topics[{value}] = None",
    meanings.GROUP: "groups[{value}] = None",
    meanings.TRANSACTIONAL_ID: "transactional_ids[{value}] = None",
    meanings.RECORDS: "records.append(new(Records, ({where}, {value}, {asks}, {aborted})))",
    meanings.PARTITION: "if {topic}: partitions[{where}] = None",
    meanings.OFFSET: "results.append(new(Result, ({where}, {struct}.error_code, {value})))",
}
"""The line that takes a value which is there."""
_AT_PARTITION = frozenset((meanings.RECORDS, meanings.PARTITION, meanings.OFFSET))
"""Meanings whose lines name the partition."""
_ANSWERED = frozenset((meanings.ERROR, meanings.ERROR_MESSAGE, meanings.THROTTLE, meanings.OFFSET))
"""Meanings that count in responses only."""


@functools.cache
def _fold(body: type) -> Callable[..., None]:
    """Compile the fold of bodies of a class: `fold(body, names, *_Taken)`."""
    message = schema.named(body.__name__)
    source = FunctionSource()
    source.namespace |= {
        "Records": Records,
        "Result": PartitionResult,
        "TopicPartition": TopicPartition,
        "embedded_topics": embedded.topics,
        "new": new_tuple,
    }
    with source.block(f"def fold(body, names, {', '.join(_Taken._fields)}):"):
        _write(source, message, message.fields, "body", '""')
        if message.name in embedded.MESSAGES:
            source("topics.update(dict.fromkeys(embedded_topics(body)))")
        source("return")
    return source.build(f"facts of {message.name}", "fold")


def _write(
    source: FunctionSource, message: Message, fields: tuple[Field, ...], struct: str, topic: str
) -> None:
    """Write the lines for a struct in the variable `struct`; `topic` is an expression for the topic
    that the structs around it name."""
    own = sorted(filter(_is_topic, fields), key=is_topic_id)  # the name counts, or else the id
    named = source.name("t")
    if own:
        topic = named if topic == '""' else f"({named} or {topic})"
        source(f"{named} = {' or '.join(_topic_text(each, struct) for each in own)} or ''")
        if len(own) > 1:
            name, topic_id = (f"{struct}.{each.name}" for each in (own[0], own[-1]))
            source(f"if {name} and {topic_id}.int: names.learn_name({topic_id}.bytes, {name})")
    asks = message.name.endswith("Request")
    numbers = [each.name for each in fields if _is_partition(each, fields) and not each.is_array]
    number, where = f"{struct}.{numbers[0]}" if numbers else "-1", source.name("w")
    single = [each for each in fields if not each.is_array]
    if any(PREDICATES[meaning](each, fields) for meaning in _AT_PARTITION for each in single):
        source(f"{where} = new(TopicPartition, ({topic}, {number}))")
    around = {
        "topic": topic,
        "struct": struct,
        "asks": asks,
        "aborted": f"{struct}.aborted_transactions or ()"
        if any(meanings.PREDICATES[meanings.ABORTED](each, fields) for each in fields)
        else "()",
    }
    for field in fields:
        if field in own:
            source(f"topics[{named}] = None")  # in the order of the fields
            continue
        value = source.name("v")
        lines = list(_lines(message, field, fields, struct, asks))
        if lines or _has_any(message, field.fields, asks):
            held = f"{struct}.{field.name}"
            number = field.type in CODES  # zero counts, where lines do not say otherwise
            some = f"if ({value} := {held}) is not None:" if number else f"if {value} := {held}:"
            one = f"new(TopicPartition, ({topic}, {value}))"
            around["where"] = one if field.is_array else where
            with source.block(f"for {value} in {held} or ():" if field.is_array else some):
                source(*(line.format(value=value, **around) for line in lines))
                if field.fields:
                    _write(source, message, field.fields, value, topic)


def _is_topic(field: Field) -> bool:
    """Return whether a field names the topic of its struct."""
    return meanings.is_own_topic_name(field) or is_topic_id(field)


def _topic_text(field: Field, struct: str) -> str:
    """Return an expression for the topic that a field names; it is false where that is none."""
    value = f"{struct}.{field.name}"
    return f"({value}.int and names.text({value}))" if is_topic_id(field) else value


def _lines(
    message: Message, field: Field, beside: tuple[Field, ...], struct: str, asks: bool
) -> Iterator[str]:
    """Yield the lines that take a value of a field."""
    if meanings.has_kind_field(field, beside):
        for kind, meaning in meanings.meanings_by_kind(message.name).items():
            yield f"if {struct}.{KIND_FIELDS[field.name]} == {kind}: {_TAKEN[meaning]}"
    for meaning, predicate in PREDICATES.items():
        if (asks and meaning in _ANSWERED) or not predicate(field, beside):
            continue
        if meaning in _TAKEN:
            yield _TAKEN[meaning]


def _has_any(message: Message, fields: tuple[Field, ...], asks: bool) -> bool:
    """Return whether anything in a struct, or below, has a meaning."""
    return any(
        any(_lines(message, each, fields, "", asks)) or _has_any(message, each.fields, asks)
        for each in fields
    )


_is_partition = PREDICATES[meanings.PARTITION]
