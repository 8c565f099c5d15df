"""The facts in the bodies of an exchange: errors, topics, groups, records and their like.

::

    bodies ─ decoded ──▶ DecodedFacts ─┐   each when it is asked for
    frames ─ walk ─────▶ BodyFacts ────┴─▶ errors, topics, partitions, groups, records …

`meanings` says which fields of Kafka's definitions are looked at. A walk decodes nothing: it goes
over a body by its lengths (`codec.locate`), and reads what is wanted where it lies.

Invariant: both tell the same, in the same order, or the walk tells nothing (None): of what cannot
be decoded, of headers with tagged fields, of names whose kind a field beside tells, and of what
consumers embed in JoinGroup, SyncGroup and DescribeGroups.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple
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
from kproxy.exchange.walks import BodyWalk, Kind, walk_of
from kproxy.protocol import ProtocolError, codec, error_name, schema, wire
from kproxy.protocol.select import Found, select_of


class Records(NamedTuple):
    """The batches of one partition that a body carries, unread."""

    topic: str
    partition: int
    frame: bytes
    """The frame of the body; the batches are its bytes from `start` to `stop`."""
    start: int
    stop: int
    produced: bool
    """True if a request carries them."""
    aborted: Sequence[Any] = ()
    """The aborted_transactions of a Fetch response's partition, if it was decoded."""

    @property
    def where(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def data(self) -> bytes:
        """The bytes of the batches."""
        return self.frame[self.start : self.stop]


class Result(NamedTuple):
    """The outcome for one partition in a response to Produce or Fetch."""

    where: TopicPartition
    error_code: int
    offset: int
    """The first offset that was written (Produce), or the high watermark (Fetch)."""


class BodyFacts(NamedTuple):
    """The facts found in bodies; facts that were not wanted may be missing."""

    errors: list[str]
    """Kafka's names of the errors in the response, each once, in order of appearance."""
    error_messages: list[str]
    """The broker's messages about the errors, each once."""
    topics: list[str]
    """The names of the topics, each once; the id as text where the name is not known."""
    partitions: list[TopicPartition]
    groups: list[str]
    transactional_ids: list[str]
    throttled: bool
    """True if the response tells the client to wait."""
    records: list[Records]
    results: list[Result]


# ── decoded ──────────────────────────────────────────────────────────────────────────────────


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
        return _without_placeholders(dict.fromkeys(messages)) if any(messages) else []

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
    return any(select_of(type(body), meanings.is_of_error).values(body))


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


def _without_placeholders(messages: dict[str, None]) -> list[str]:
    # Brokers that have nothing to say in FindCoordinator call it so.
    return [each for each in messages if each not in ("", "NONE")]


# ── without decoding ─────────────────────────────────────────────────────────────────────────

ALL_MEANINGS = frozenset(Meaning) - {meanings.ABORTED}
"""All facts that `BodyFacts` has."""

_REQUEST_HEAD = struct.Struct(">ihhih")
"""Size, API key and version, correlation id, length of the client id."""
_RESPONSE_HEAD = struct.Struct(">ii")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_UNSUPPORTED_VERSION = codec.UNSUPPORTED_VERSION.to_bytes(2, "big")
# A look into the enum, for each span, would cost more than all else.
_ERROR, _THROTTLE = Kind.ERROR, Kind.THROTTLE
_TOPIC_NAME, _TOPIC_ID = Kind.TOPIC_NAME, Kind.TOPIC_ID
_PARTITION, _PARTITION_AHEAD = Kind.PARTITION, Kind.PARTITION_AHEAD
_RECORDS, _OFFSET, _ABORTED = Kind.RECORDS, Kind.OFFSET, Kind.ABORTED
_TEXTS = {
    Kind.ERROR_MESSAGE: "messages",
    Kind.GROUP: "groups",
    Kind.TRANSACTIONAL_ID: "transactional_ids",
}
_ARRAYS = {
    Kind.TOPICS: "topics",
    Kind.GROUPS: "groups",
    Kind.TRANSACTIONAL_IDS: "transactional_ids",
}
"""The attribute that collects the texts of a kind."""


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
    request = facts.request_body(frames[0], flags[0])
    response, _ = facts.response_body(frames[1], flags[1], api_key, api_version)
    told_body, _ = facts.response_body(told, 0, api_key, api_version)
    return DecodedFacts(request, response, names, api_key, frames[1], told_body)


def walk_facts(
    api_key: int,
    api_version: int,
    request: bytes | None,
    response: bytes | None,
    names: TopicNames,
    wanted: frozenset[Meaning] = ALL_MEANINGS,
) -> BodyFacts | None:
    """Return the wanted facts in the frames of a request and its response; None where only decoding
    can tell them. With ABORTED wanted, None also where transactions were aborted."""
    found = _FactCollector(names)
    try:
        if request is not None:
            walk = walk_of(api_key, api_version, schema.REQUEST, wanted)
            size, own_key, own_version, _, length = _REQUEST_HEAD.unpack_from(request)
            if walk is None or (own_key, own_version) != (api_key, api_version) or length < -1:
                return None
            at = _REQUEST_HEAD.size + max(0, length)
            if size != len(request) - 4 or not found.collect(walk, request, at, True):
                return None
        if response is not None:
            if api_key == codec.API_VERSIONS and response[8:10] == _UNSUPPORTED_VERSION:
                api_version = 0  # whatever was asked for (KIP-511)
            walk = walk_of(api_key, api_version, schema.RESPONSE, wanted)
            size, _ = _RESPONSE_HEAD.unpack_from(response)
            if walk is None or size != len(response) - 4:
                return None
            if not found.collect(walk, response, _RESPONSE_HEAD.size, False):
                return None
    except (ProtocolError, IndexError, struct.error):
        return None
    return found.facts()


class _FactCollector:
    """The facts found so far in the bodies of one exchange, without decoding."""

    def __init__(self, names: TopicNames) -> None:
        # By hand: there is one for each exchange of a recording.
        self.names = names
        self.errors: dict[int, None] = {}
        self.messages: dict[str, None] = {}
        self.topics: dict[str, None] = {}
        self.partitions: dict[TopicPartition, None] = {}
        self.groups: dict[str, None] = {}
        self.transactional_ids: dict[str, None] = {}
        self.throttled = False
        self.records: list[Records] = []
        self.results: list[Result] = []

    def facts(self) -> BodyFacts:
        """Return the facts as `DecodedFacts` would give them."""
        return BodyFacts(
            list(map(error_name, self.errors)) if self.errors else [],
            _without_placeholders(self.messages) if self.messages else [],
            _without_empty(self.topics) if self.topics else [],
            list(self.partitions) if self.partitions else [],
            _without_empty(self.groups) if self.groups else [],
            _without_empty(self.transactional_ids) if self.transactional_ids else [],
            self.throttled,
            self.records,
            self.results,
        )

    def collect(self, walk: BodyWalk, data: bytes, at: int, asked: bool) -> bool:
        """Collect the facts of a body; return False if it must be decoded. The tagged fields of its
        header may stand before it."""
        if walk.tagged_header:
            if data[at]:
                return False  # nobody sends any
            at += 1
        spans = walk.locate(data, at)[0]
        if walk.name_id_pairs:
            self._learn(walk, data, spans)
        topic, partition, code, kinds = "", -1, 0, walk.kinds
        for index, start, content, end in spans:
            kind = kinds[index]
            if kind is _TOPIC_NAME or kind is _TOPIC_ID:
                named = data[content:end]
                topic = self.names.text_of_bytes(named) if kind is _TOPIC_ID else _text(named)
                self.topics[topic] = None
            elif kind is _PARTITION_AHEAD or kind is _PARTITION:
                partition, code = _INT32.unpack_from(data, start)[0], 0
                if kind is _PARTITION and topic:
                    self.partitions[TopicPartition(topic, partition)] = None
            elif kind is _RECORDS:
                self.records.append(Records(topic, partition, data, content, end, asked))
            elif kind is _OFFSET:
                where = TopicPartition(topic, partition)
                self.results.append(Result(where, code, _INT64.unpack_from(data, start)[0]))
            elif kind is _ERROR:
                code = _INT16.unpack_from(data, start)[0]
                self.errors[code] = None
            elif kind is _THROTTLE:
                self.throttled = True
            elif kind is _ABORTED:
                return False
            elif kind is not None:
                topic = self._collect_other(walk, data, kind, content, end, topic)
        return True

    def _collect_other(
        self, walk: BodyWalk, data: bytes, kind: Kind, start: int, end: int, topic: str
    ) -> str:
        """Collect a fact of a less frequent kind; return the topic that is known by now."""
        if kind in _TEXTS:
            getattr(self, _TEXTS[kind])[_text(data[start:end])] = None
        elif kind is Kind.NAME_AFTER_ID or kind is Kind.ID_AFTER_NAME:
            named = data[start:end]
            name = self.names.text_of_bytes(named) if kind is Kind.ID_AFTER_NAME else _text(named)
            self.topics[name] = None
            # Where there are both, the name counts.
            return name or topic if kind is Kind.NAME_AFTER_ID else topic or name
        elif kind is Kind.PARTITIONS:
            if topic:
                for number in struct.unpack_from(f">{(end - start) // 4}i", data, start):
                    self.partitions[TopicPartition(topic, number)] = None
        else:
            getattr(self, _ARRAYS[kind]).update(
                dict.fromkeys(_texts(data, start, end, walk.compact))
            )
        return topic

    def _learn(self, walk: BodyWalk, data: bytes, spans: Sequence[codec.Span]) -> None:
        """Learn the names that stand beside ids, before any id is to be named."""
        pairs: list[tuple[int, bytes, str]] = []
        for name_index, id_index in walk.name_id_pairs:
            names = (each for each in spans if each[0] == name_index)
            ids = (each for each in spans if each[0] == id_index)
            for (_, _, start, end), (_, at, _, stop) in zip(names, ids, strict=True):
                pairs.append((at, data[at:stop], _text(data[start:end])))
        for _, topic_id, name in sorted(pairs):
            self.names.learn_name(topic_id, name)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _texts(data: bytes, at: int, end: int, compact: bool) -> Iterator[str]:
    """Yield the elements of an array of texts."""
    while at < end:
        if compact:
            size, at = data[at], at + 1
            if size > 127:
                size, at = wire.varint(data, at, size)
            size -= 1
        else:
            size, at = _INT16.unpack_from(data, at)[0], at + 2
        yield _text(data[at : at + size])
        at += size
