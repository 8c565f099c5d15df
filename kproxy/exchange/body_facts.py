"""The facts in the bodies of an exchange: errors, topics, groups, records and their like.

::

    bodies ─ decoded ──▶ DecodedFacts ─┐   each when it is asked for
    frames ─ walk ─────▶ BodyFacts ────┴─▶ errors, topics, partitions, groups, records …

`meanings` says which fields of Kafka's definitions are looked at. A walk decodes nothing: it goes
over a body by its lengths (`walked_facts`), and reads what is wanted where it lies.

Invariant: both tell the same, in the same order, or the walk tells nothing (None): of what cannot
be decoded, of headers with tagged fields, of names whose kind a field beside tells, and of what
consumers embed in JoinGroup, SyncGroup and DescribeGroups.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

import attrs

from kproxy.exchange import embedded, facts, meanings
from kproxy.exchange.entities import (
    TopicNames,
    TopicPartition,
    is_nameless,
    partition_of,
    topic_of,
)
from kproxy.exchange.lazily import Lazily
from kproxy.exchange.meanings import Meaning, fields_in_body, has_kind_field
from kproxy.exchange.walked_facts import (
    ALL_MEANINGS,
    BodyFacts,
    Records,
    Result,
    walk_facts,
    without_placeholders,
)
from kproxy.protocol import error_name
from kproxy.protocol.select import Found, select_of


@attrs.frozen(eq=False, slots=False)
class DecodedFacts:
    """The facts in decoded bodies; None stands for a body that is missing or opaque."""

    request: Any
    response: Any
    names: TopicNames
    api_key: int | None = None
    response_frame: bytes | None = None
    """The frame of an opaque response: its certain facts are found in its bytes."""
    told: Any = None
    """The response as a fault rule has changed it: what the client was told of errors."""

    @Lazily
    def errors(self) -> list[str]:
        """Kafka's names of the errors that the client was told, each once, in order of
        appearance."""
        return errors(self._told, self.api_key, self.response_frame)

    @property
    def _told(self) -> Any:
        return self.response if self.told is None else self.told

    @Lazily
    def error_messages(self) -> list[str]:
        """The broker's messages about its errors, each once, in order of appearance."""
        if self._told is None:
            return []
        messages = fields_in_body(type(self._told), meanings.ERROR_MESSAGE).values(self._told)
        return without_placeholders(dict.fromkeys(messages)) if any(messages) else []

    @Lazily
    def topics(self) -> list[str]:
        """The topics that the bodies name, each once, in order of appearance.

        Subscriptions and assignments that consumers embed in JoinGroup and SyncGroup count too.
        """
        found: dict[str, None] = {}
        for body in self._bodies():
            self.names.learn(body)
            for value in _values_of(body, meanings.TOPIC):
                if isinstance(value, UUID):
                    value = self.names.text_of_bytes(value.bytes)
                found[value] = None
        return _without_empty(found)

    @Lazily
    def partitions(self) -> list[TopicPartition]:
        """The partitions that the bodies name, each once, in order of appearance."""
        found: dict[TopicPartition, None] = {}
        for body in self._bodies():
            self.names.learn(body)
            topic, of = "", None
            for _, partition, within in found_in(body, meanings.PARTITION):
                # Those of a topic follow each other, in structs that do not repeat its name.
                holder = within[-2] if is_nameless(type(within[-1])) else within[-1]
                if holder is not of:
                    topic, of = topic_of(within, self.names), holder
                if topic:
                    found[TopicPartition(topic, partition)] = None
        return list(found)

    @Lazily
    def groups(self) -> list[str]:
        """The ids of the groups that the bodies name, each once."""
        return self._names_of(meanings.GROUP)

    @Lazily
    def transactional_ids(self) -> list[str]:
        """The transactional ids that the bodies name, each once."""
        return self._names_of(meanings.TRANSACTIONAL_ID)

    @property
    def throttled(self) -> bool:
        """True if the response tells the client to wait."""
        if self.response is None:
            return False
        return any(fields_in_body(type(self.response), meanings.THROTTLE).values(self.response))

    @Lazily
    def records(self) -> list[Records]:
        """The batches that the bodies carry, by partition."""
        found: list[Records] = []
        for body in self._bodies():
            aborted: dict[int, list[Any]] = {}
            for _, transaction, within in found_in(body, meanings.ABORTED):
                aborted.setdefault(id(within[-1]), []).append(transaction)
            for _, data, within in found_in(body, meanings.RECORDS):
                if data:
                    where, sent = self._where(within), body is self.request
                    of_partition = aborted.get(id(within[-1]), ())
                    found.append(Records(*where, data, 0, len(data), sent, of_partition))
        return found

    @Lazily
    def results(self) -> list[Result]:
        """The outcome for each partition in the response to a Produce or a Fetch."""
        if self.response is None:
            return []
        return [
            Result(self._where(within), within[-1].error_code, offset)
            for _, offset, within in found_in(self.response, meanings.OFFSET)
        ]

    def _where(self, within: tuple[Any, ...]) -> TopicPartition:
        return TopicPartition(topic_of(within, self.names), partition_of(within[-1]))

    def _names_of(self, meaning: Meaning) -> list[str]:
        bodies = self._bodies()
        return _without_empty(
            dict.fromkeys([v for body in bodies for v in _values_of(body, meaning)])
        )

    def _bodies(self) -> list[Any]:
        return [body for body in (self.request, self.response) if body is not None]


def errors(body: Any, api_key: int | None, frame: bytes | None) -> list[str]:
    """Return the names of the errors in a response, each once, in order of appearance.

    `body` is None if the response, whose bytes are `frame`, could not be decoded.
    """
    if body is None:
        return [] if api_key is None or frame is None else facts.errors_of_opaque(api_key, frame)
    codes = fields_in_body(type(body), meanings.ERROR).values(body)
    if not any(codes):
        return []
    return [error_name(code) for code in dict.fromkeys(codes) if code]


def may_tell_error(body: Any) -> bool:
    """Return False if a response has neither errors nor messages, at the cost of one look."""
    return any(_error_values(type(body))(body))


@functools.lru_cache(maxsize=4096)
def _error_values(body: type) -> Callable[[Any], list[Any]]:
    return select_of(body, meanings.is_of_error).values


def found_in(body: Any, meaning: Meaning) -> Iterable[Found]:
    """Return the fields of a body with a meaning, each with the structs around it."""
    selection = fields_in_body(type(body), meaning)
    return selection.found(body) if selection.places else ()


def _values_of(body: Any, meaning: Meaning) -> list[Any]:
    named, by_kind = _readers(type(body), meaning)
    values = [] if named is None else named(body)
    if by_kind is not None:
        for found in by_kind(body):
            if _kind(type(body).__name__, found) is meaning:
                values.append(found.value)
    if meaning is meanings.TOPIC and type(body).__name__ in embedded.MESSAGES:
        values += embedded.topics(body)
    return values


@functools.lru_cache(maxsize=4096)
def _readers(
    body: type, meaning: Meaning
) -> tuple[Callable[[Any], list[Any]] | None, Callable[[Any], list[Found]] | None]:
    named, by_kind = fields_in_body(body, meaning), select_of(body, has_kind_field)
    return (
        named.values if named.places else None,
        by_kind.found if by_kind.places else None,
    )


def _kind(message: str, found: Found) -> Meaning | None:
    kind = getattr(found.within[-1], meanings.KIND_FIELDS[found.path.rpartition(".")[2]])
    return meanings.meanings_by_kind(message).get(kind)


def _without_empty(found: dict[str, None]) -> list[str]:
    found.pop("", None)
    return list(found)


def facts_of_frames(
    kind: tuple[int, int] | None,
    frames: tuple[bytes | None, bytes | None],
    flags: tuple[int, int],
    names: TopicNames,
    wanted: frozenset[Meaning] = ALL_MEANINGS,
    told: bytes | None = None,
) -> BodyFacts | DecodedFacts:
    """Return the facts in the frames of a request and its response, which have these flags; decode
    only where that is needed. `kind` is API key and version, None for a request that has
    neither. `told` is the response as a fault rule has changed it: then its errors count."""
    if told is None and kind is not None and facts.is_whole(flags[0]) and facts.is_whole(flags[1]):
        found = walk_facts(*kind, *frames, names, wanted)
        if found is not None:
            return found
    api_key, api_version = kind or (None, None)
    request = facts.request_body(frames[0], flags[0], facts.kind(*kind) if kind else None)
    response, _ = facts.response_body(frames[1], flags[1], api_key, api_version)
    told_body, _ = facts.response_body(told, 0, api_key, api_version)
    return DecodedFacts(request, response, names, api_key, frames[1], told_body)
