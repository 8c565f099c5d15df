"""Errors in responses: their places, and the other fields that Kafka sets beside them.

An error code stands at the top of a response or in an element of its arrays. `places` finds the
fields by the schema. Kafka itself uses the shallowest one, and deeper ones too for the versions in
`_DEEPER_TOO`. Where a code is set, the fields around
it get the values that Kafka gives them (`_VALUES`), because a broker that reports an error has no
offsets to report::

    request ─▶ items ─▶ answer    a whole error response, as Kafka would make it
    response ─────────▶ change    the real one, with errors in the elements that match

Invariant: a response element that does not match stays as the broker sent it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs

from kproxy.proxy.faults.items import Item, Keys, Level, Shape, leaves, shape
from kproxy.wire.protocol import codec, messages, schema
from kproxy.wire.protocol.codec import Request, Response

REQUEST = "request"
TOPIC = "topic"
PARTITION = "partition"
LEVELS = (REQUEST, TOPIC, PARTITION)

_DEEPER_TOO: dict[str, range] = {
    "Fetch": range(7, 13),
    "Metadata": range(13, 14),
    "LeaderAndIsr": range(8),
    "StopReplica": range(5),
    "ElectLeaders": range(1, 3),
    "AlterPartitionReassignments": range(2),
    "ListPartitionReassignments": range(1),
    "DescribeUserScramCredentials": range(1),
}
"""Versions whose error response has, beside the code at its top, an element for each item."""

_VALUES: dict[tuple[str, str], dict[str, Any]] = {
    ("Produce", "partition_responses"): {"base_offset": -1},
    ("Fetch", "partitions"): {"high_watermark": -1, "records": b""},
    ("ShareFetch", "partitions"): {"records": b""},
    ("FetchSnapshot", "partitions"): {"unaligned_records": b""},
    ("OffsetFetch", "partitions"): {"committed_offset": -1},
    ("FindCoordinator", ""): {"node_id": -1, "port": -1},
    ("FindCoordinator", "coordinators"): {"node_id": -1, "port": -1},
    ("JoinGroup", ""): {"protocol_name": None},
    ("DeleteRecords", "partitions"): {"low_watermark": -1},
    ("InitProducerId", ""): {"producer_epoch": -1},
    ("CreateDelegationToken", ""): {
        "principal_type": "User",
        "principal_name": "ANONYMOUS",
        "token_requester_principal_type": "User",
        "token_requester_principal_name": "ANONYMOUS",
        "issue_timestamp_ms": -1,
        "expiry_timestamp_ms": -1,
        "max_timestamp_ms": -1,
    },
    ("DescribeClientQuotas", ""): {"entries": None},
    ("DescribeShareGroupOffsets", "partitions"): {"start_offset": -1},
}
"""(API, array, "" for the top) → the values that Kafka sets there beside an error, where they
differ from the definition's defaults. None only where the version allows it."""

_KEPT: dict[tuple[str, str], dict[str, Any]] = {
    ("Metadata", "partitions"): {"leader_id": -1},
    ("DescribeTopicPartitions", "partitions"): {"leader_id": -1},
}
"""(API, array) whose elements keep their other fields beside an error, but for these."""


@attrs.frozen
class Places:
    """The places of error codes in one version of a response."""

    shape: Shape
    codes: tuple[str | None, ...]
    """The field with the code at the top, and at each level of the response's chain."""

    @property
    def first(self) -> int | None:
        """The depth at which Kafka itself puts an error; None if there is none."""
        return next((depth for depth, code in enumerate(self.codes) if code is not None), None)


@functools.cache
def places(api_key: int, api_version: int) -> Places | None:
    """Return the places of error codes in a version of a response; None if it is unknown."""
    known = shape(api_key, api_version)
    message = schema.message(api_key, schema.RESPONSE)
    if known is None or message is None:
        return None
    fields = message.fields
    codes = [_code_field(fields, api_version)]
    for level in known.response:
        fields = next(field.fields for field in fields if field.name == level.array)
        codes.append(_code_field(fields, api_version))
    return Places(known, tuple(codes))


def _code_field(fields: Iterable[schema.Field], version: int) -> str | None:
    for field in fields:
        if field.type == "int16" and field.name.endswith("error_code"):
            if version in field.versions and version not in field.tagged_versions:
                return field.name
    return None


def depth(api_key: int, api_version: int, level: str | None, keys: frozenset[str]) -> int | None:
    """Return the depth of an error's code, 0 being the top; None if the version has no place for
    it.

    `level` None chooses: for a rule that names topics or partitions (`keys`) their own code, else
    Kafka's own place.
    """
    found = places(api_key, api_version)
    if found is None:
        return None
    levels = found.shape.response
    if level is None:
        wanted = PARTITION if PARTITION in keys else TOPIC if TOPIC in keys else None
        for number in range(1, len(levels) + 1):
            if wanted and found.codes[number] and _has(levels[:number], wanted):
                return number
    if level is None or level == REQUEST:
        return found.first
    for number, one in enumerate(levels, 1):
        if found.codes[number] and _has((one,), level):
            return number
    return None


def _has(levels: Iterable[Level], wanted: str) -> bool:
    keys = {key for level in levels for key, _ in level.keys}
    return wanted in keys or (wanted == TOPIC and "topic_id" in keys)


@attrs.frozen
class InjectedError:
    """An error to put into responses of one version."""

    api_key: int
    api_version: int
    code: int
    text: str
    """The error message, for responses that have a field for it."""
    depth: int
    """The level of the response's chain that gets the code; 0 is its top."""

    @property
    def places(self) -> Places:
        """The places of codes in that version."""
        found = places(self.api_key, self.api_version)
        assert found is not None
        return found

    @property
    def response_class(self) -> Any:
        """The class of that response."""
        return _response_class(self.api_key)

    def make_element(self, level: Level, keys: Keys) -> Any:
        """Make the element of a response that stands for an item."""
        known = {field: keys[key] for key, field in level.keys if key in keys}
        for field, value in known.items():
            if isinstance(value, list):  # structs of the request have classes of its own
                known[field] = [_copy_struct(self.response_class, one) for one in value]
        return level.element(**known)

    def replace(self, element: Any, level: Level) -> None:
        """Turn an element of a real response into one that reports the error."""
        kept = _KEPT.get((self.places.shape.name, level.array))
        if kept is None:
            fresh = level.element(**{field: getattr(element, field) for _, field in level.keys})
            kept = {field: getattr(fresh, field) for field in type(fresh).__slots__}
        for field, value in kept.items():
            setattr(element, field, value)
        self.fill(element, level.array, self.depth)

    def fill(self, value: Any, array: str, depth: int) -> None:
        """Set the code of a struct at that depth, and the fields that Kafka sets beside it."""
        name, version = self.places.shape.name, self.api_version
        for field, special in _VALUES.get((name, array), {}).items():
            if special is not None or _is_nullable(self.api_key, array, field, version):
                setattr(value, field, special)
        code = self.places.codes[depth]
        if code is not None:
            setattr(value, code, self.code)
            if hasattr(value, "error_message"):
                value.error_message = self.text


@functools.cache
def _response_class(api_key: int) -> Any:
    message = schema.message(api_key, schema.RESPONSE)
    assert message is not None
    return messages.message_class(message.name)


def _copy_struct(classes: Any, value: Any) -> Any:
    own = getattr(classes, type(value).__name__)
    return own(**{field: getattr(value, field) for field in type(value).__slots__})


@functools.cache
def _is_nullable(api_key: int, array: str, name: str, version: int) -> bool:
    message = schema.message(api_key, schema.RESPONSE)
    assert message is not None
    fields = next((f.fields for f in message.fields if f.name == array), message.fields)
    return any(field.name == name and version in field.nullable_versions for field in fields)


# ── responses ────────────────────────────────────────────────────────────────────────────────


def answer(failure: InjectedError, request: Request, items: Iterable[Item]) -> bytes:
    """Return the frame of an error response to a request, made as Kafka makes it.

    `items` are the request's; if the code is at the top they are echoed only in the versions in
    which Kafka does so.
    """
    shape, version = failure.places.shape, failure.api_version
    body: Any = failure.response_class()
    depth = failure.depth
    if depth == 0:
        failure.fill(body, "", 0)
        if version in _DEEPER_TOO.get(shape.name, ()):
            depth = shape.echoed
    if shape.name == "Fetch":
        body.session_id = request.body.session_id
    if depth:
        fail_items(failure, body, items, depth)
    if failure.api_key == codec.API_VERSIONS and failure.code == codec.UNSUPPORTED_VERSION:
        # A broker that does not know the version says so in version 0, with its range (KIP-511).
        newest = max(0, version - 1)
        entry = failure.response_class.ApiVersion
        body.api_keys = [entry(api_key=failure.api_key, min_version=0, max_version=newest)]
        version = 0
    header = messages.ResponseHeader(correlation_id=request.header.correlation_id)
    return codec.encode_response(Response(header, body, version), failure.api_key)


def fails_whole(failure: InjectedError, body: Any) -> bool:
    """Return whether a response already reports an error for the whole request."""
    code = failure.places.codes[0]
    return code is not None and getattr(body, code) != 0


def fail_matching(
    failure: InjectedError, body: Any, own: Keys, matches: Callable[[Keys], bool]
) -> int:
    """Put the error into the elements of a response whose keys match; return how many."""
    levels = failure.places.shape.response[: failure.depth]
    found = [element for keys, element in leaves(body, levels, own) if matches(keys)]
    for element in found:
        failure.replace(element, levels[-1])
    return len(found)


def fail_items(failure: InjectedError, body: Any, items: Iterable[Item], depth: int) -> None:
    """Put the error into the elements of a response that stand for the items, down to a depth.

    Missing elements are added.
    """
    levels = failure.places.shape.response[:depth]
    known: dict[tuple[Any, ...], Any] = {}
    _index(body, levels, (), known)
    for item in items:
        value, path = body, ()
        for number, level in enumerate(levels, 1):
            path = (*path, _identity(level, item.keys))
            element = known.get(path) if level.keys else None
            if element is None:
                element = known[path] = failure.make_element(level, item.keys)
                if getattr(value, level.array) is None:
                    setattr(value, level.array, [])
                getattr(value, level.array).append(element)
                if number >= failure.depth:
                    failure.fill(element, level.array, number)
            elif number == failure.depth:
                failure.replace(element, level)
            value = element


def _index(
    value: Any, levels: Sequence[Level], path: tuple[Any, ...], known: dict[tuple[Any, ...], Any]
) -> None:
    """Note each element under its path: its identity, level by level."""
    for element in getattr(value, levels[0].array) or ():
        below = (*path, _identity(levels[0], levels[0].read(element)))
        known.setdefault(below, element)
        if len(levels) > 1:
            _index(element, levels[1:], below, known)


def _identity(level: Level, keys: Keys) -> tuple[Any, ...]:
    values = [keys.get(key) for key, _ in level.keys]
    return tuple(id(value) if isinstance(value, list) else value for value in values)
