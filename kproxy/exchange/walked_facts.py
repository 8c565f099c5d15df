"""The facts in the frames of an exchange, found by walks over its bodies, without decoding.

::

    API, version, wanted ─▶ BodyWalk of request, of response ─▶ compiled: find(request, response)
                                                                             └─▶ BodyFacts

One function is compiled for each API, version and choice of facts. It goes over both bodies by
their lengths (`compile_walk`), with the lines of `_TAKEN` where a field of a kind is met: so no
field is looked at twice, and nothing is made but the facts.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from kproxy.exchange import meanings
from kproxy.exchange.entities import TopicNames, TopicPartition
from kproxy.exchange.meanings import Meaning
from kproxy.exchange.walks import NAMING, OF_TOPIC, BodyWalk, Kind, NamesBesideIds, walk_of
from kproxy.protocol import ProtocolError, codec, error_name, schema, wire
from kproxy.protocol.compile_decode import new_source
from kproxy.protocol.compile_walk import taker, walk_message
from kproxy.protocol.source import Source

ALL_MEANINGS = frozenset(Meaning) - {meanings.ABORTED}
"""All facts that `BodyFacts` has."""


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
    answered_version = api_version
    if api_key == codec.API_VERSIONS and response and response[8:10] == _UNSUPPORTED_VERSION:
        answered_version = 0  # whatever was asked for (KIP-511)
    find = _finder(api_key, api_version, answered_version, wanted)
    try:
        return find(request, response, names)
    except _REFUSALS:
        return None


def without_placeholders(messages: dict[str, None]) -> list[str]:
    """Return the messages that say something: brokers that have nothing to say in FindCoordinator
    call it so."""
    return [each for each in messages if each not in ("", "NONE")]


_Find = Callable[[bytes | None, bytes | None, TopicNames], BodyFacts | None]
_UNSUPPORTED_VERSION = codec.UNSUPPORTED_VERSION.to_bytes(2, "big")
_REFUSALS = (ProtocolError, *wire.READ_ERRORS)
_INT16 = struct.Struct(">h")


# ── the lines of the function ────────────────────────────────────────────────────────────────

_FOUND = {
    "errors": ("{}", "list(map(error_name, errors)) if errors else []", "[]"),
    "error_messages": (
        "{}",
        "without_placeholders(error_messages) if error_messages else []",
        "[]",
    ),
    "topics": ("{}", "list(topics) if topics else []", "[]"),
    "partitions": ("{}", "list(partitions) if partitions else []", "[]"),
    "groups": ("{}", "list(groups) if groups else []", "[]"),
    "transactional_ids": ("{}", "list(transactional_ids) if transactional_ids else []", "[]"),
    "throttled": ("False", "throttled", "False"),
    "records": ("[]", "records", "[]"),
    "results": ("[]", "results", "[]"),
}
"""Each of the facts: what it is at first, what it is in the end, and what it is where nothing adds
to it. What appears once is a key of a dict."""

_TEXT = 'data[{0}:p].decode("utf-8", "surrogateescape")'
_NAME_OF_ID = "names.text_of_bytes({0})"
_PARTITION = "partition, code = {0}, 0"
_TAKEN: dict[Kind, tuple[str, tuple[str, ...]]] = {
    Kind.ERROR: ("errors", ("if {0}: code = {0}; errors[code] = None",)),
    Kind.ERROR_MESSAGE: ("error_messages", (f"if {{0}} < p: error_messages[{_TEXT}] = None",)),
    Kind.THROTTLE: ("throttled", ("if {0}: throttled = True",)),
    Kind.TOPIC_NAME: ("topics", (f"topic = {_TEXT}", "if topic: topics[topic] = None")),
    Kind.TOPIC_ID: ("topics", (f"topic = {_NAME_OF_ID}", "if topic: topics[topic] = None")),
    # Where there are both, the name counts.
    Kind.NAME_AFTER_ID: (
        "topics",
        (f"name = {_TEXT}", "if name: topics[name] = None", "topic = name or topic"),
    ),
    Kind.ID_AFTER_NAME: (
        "topics",
        (f"name = {_NAME_OF_ID}", "if name: topics[name] = None", "topic = topic or name"),
    ),
    Kind.TOPICS: ("topics", ("topics.update(texts(data, {0}, p, {compact}))",)),
    Kind.GROUP: ("groups", (f"if {{0}} < p: groups[{_TEXT}] = None",)),
    Kind.GROUPS: ("groups", ("groups.update(texts(data, {0}, p, {compact}))",)),
    Kind.TRANSACTIONAL_ID: (
        "transactional_ids",
        (f"if {{0}} < p: transactional_ids[{_TEXT}] = None",),
    ),
    Kind.TRANSACTIONAL_IDS: (
        "transactional_ids",
        ("transactional_ids.update(texts(data, {0}, p, {compact}))",),
    ),
    Kind.PARTITION: (
        "partitions",
        (_PARTITION, "if topic: partitions[TopicPartition(topic, partition)] = None"),
    ),
    Kind.PARTITIONS: (
        "partitions",
        ("if topic: partitions.update(partitions_of(topic, data, {0}, p))",),
    ),
    Kind.PARTITION_AHEAD: ("", (_PARTITION,)),
    Kind.RECORDS: (
        "records",
        (
            "if {0} < p:",
            " records.append(new_tuple(Records, (topic, partition, data, {0}, p, {produced}, ())))",
        ),
    ),
    Kind.OFFSET: (
        "results",
        ("results.append(Result(TopicPartition(topic, partition), code, {0}))",),
    ),
    Kind.ABORTED: ("", ("if {0} < p: return None",)),
}
"""For each kind, the facts that it adds to, and the lines that do so: "{0}" stands for the value of
a field of fixed width, or else for the start of its content in `data`, whose end is `p`;
"{compact}" for whether lengths are varints; "{produced}" for whether the body is a request's."""


@functools.cache
def _finder(api_key: int, version: int, answered_version: int, wanted: frozenset[Meaning]) -> _Find:
    """Compile the function that finds the wanted facts in the frames of an API in one version."""
    asked = walk_of(api_key, version, schema.REQUEST, wanted)
    answered = walk_of(api_key, answered_version, schema.RESPONSE, wanted)
    if asked is None and answered is None:
        return _find_nothing  # recordings may have any number of versions that do not exist
    source = new_source()
    source.namespace |= _KNOWN
    source.constant("request_head", struct.Struct(">ii4xh").unpack_from)
    api = (api_key << 16) + (version & 0xFFFF)
    kinds = [kind for walk in (asked, answered) if walk is not None for _, kind in walk.fields]
    added = {_TAKEN[kind][0] for kind in kinds}
    with source.block("def find(request, response, names):"):
        source(*(f"{name} = {first}" for name, (first, _, _) in _FOUND.items() if name in added))
        with source.block("if request is not None:"):
            source(
                "data = request",
                "size, api, length = request_head(data)",
                f"if size != len(data) - 4 or api != {api} or length < -1: return None",
                "p = 14 + length if length > 0 else 14",
            )
            _write_body(source, asked, schema.REQUEST)
        with source.block("if response is not None:"):
            source("data, p = response, 0")
            _write_body(source, answered, schema.RESPONSE)
        facts = (last if name in added else none for name, (_, last, none) in _FOUND.items())
        source(f"return new_tuple(BodyFacts, ({', '.join(facts)}))")
    about = sorted(each.name for each in wanted)
    return source.build(f"facts of {api_key} v{version} v{answered_version} {about}", "find")


def _write_body(source: Source, walk: BodyWalk | None, direction: str) -> None:
    """Write the lines for the frame in `data`; a request's header has been read up to `p`."""
    if walk is None:
        source("return None")
        return
    is_request = direction == schema.REQUEST
    walker = taker(source, {path: _lines(kind, walk, is_request) for path, kind in walk.fields})
    if not is_request:
        walker.take("i", 4, ("if {0} != len(data) - 4: return None",))
        walker.steps += 4  # the correlation id
    if walk.tagged_header:
        walker.take("B", 1, ("if {0}: return None",))  # nobody sends any
    if walk.names_beside_ids is not None:
        walker.step()
        source(f"learn(names, data, p, {source.value('w', walk.names_beside_ids)})")
    if any(kind in OF_TOPIC or kind in NAMING for _, kind in walk.fields):
        source('topic, partition, code = "", -1, 0')
    walk_message(walker, walk.layout)


def _lines(kind: Kind, walk: BodyWalk, is_request: bool) -> tuple[str, ...]:
    _, lines = _TAKEN[kind]
    compact, produced = str(walk.layout.flexible), str(is_request)
    return tuple(
        line.replace("{compact}", compact).replace("{produced}", produced) for line in lines
    )


# ── functions that the lines call ────────────────────────────────────────────────────────────


def _find_nothing(
    request: bytes | None, response: bytes | None, names: TopicNames
) -> BodyFacts | None:
    """Find what a walk finds without frames; frames must be decoded."""
    nothing = request is None and response is None
    return BodyFacts([], [], [], [], [], [], False, [], []) if nothing else None


def _learn(names: TopicNames, data: bytes, at: int, beside: NamesBesideIds) -> None:
    """Learn the names that stand beside ids."""
    spans, _ = beside.locate(data, at)
    pairs: list[tuple[int, bytes, str]] = []
    for index in range(0, 2 * beside.pairs, 2):
        own_names = (each for each in spans if each[0] == index)
        ids = (each for each in spans if each[0] == index + 1)
        for (_, _, start, end), (_, at, _, stop) in zip(own_names, ids, strict=True):
            name = data[start:end].decode("utf-8", "surrogateescape")
            pairs.append((at, data[at:stop], name))
    for _, topic_id, name in sorted(pairs):
        names.learn_name(topic_id, name)


def _texts(data: bytes, at: int, end: int, compact: bool) -> Iterator[tuple[str, None]]:
    """Yield the elements of an array of texts, as items of a dict; empty ones are left out."""
    while at < end:
        if compact:
            size, at = data[at], at + 1
            if size > 127:
                size, at = wire.varint(data, at, size)
            size -= 1
        else:
            size, at = _INT16.unpack_from(data, at)[0], at + 2
        if size:
            yield data[at : at + size].decode("utf-8", "surrogateescape"), None
        at += size


def _partitions_of(
    topic: str, data: bytes, at: int, end: int
) -> Iterator[tuple[TopicPartition, None]]:
    """Yield the partitions of an array of their numbers, as items of a dict."""
    for number in struct.unpack_from(f">{(end - at) // 4}i", data, at):
        yield TopicPartition(topic, number), None


_KNOWN: dict[str, Any] = {
    "new_tuple": wire.new_tuple,
    "error_name": error_name,
    "without_placeholders": without_placeholders,
    "learn": _learn,
    "texts": _texts,
    "partitions_of": _partitions_of,
    "BodyFacts": BodyFacts,
    "Records": Records,
    "Result": Result,
    "TopicPartition": TopicPartition,
}
"""The names that the lines know."""
