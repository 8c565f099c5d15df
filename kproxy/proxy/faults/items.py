"""The items that a request asks for, and the elements of the response for the same items.

A request names topics, partitions, groups and other things in nested arrays, and its response has
an element for each. `chains.txt` lists the arrays that belong together; with it one piece of code
matches rules against any API, makes an error response to any request, takes items out of a request
and finds them in a response::

    Produce   topic_data[] . partition_data[]            the request's chain
                  │ topic        │ partition             the keys of an item
              responses[]  . partition_responses[]       the response's chain

Invariants: an `Item` has the request's own keys, those of all the levels above included; no
function here changes a message that it was given.
"""

from __future__ import annotations

import copy
import functools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import attrs

from kproxy.wire.protocol import messages, schema
from kproxy.wire.protocol.schema import NO_UUID

_EMPTY_IS_ALL = {("Metadata", 0), ("DescribeTopicPartitions", 0)}
"""(API, version) where an empty list of topics asks for all; null does so everywhere."""
_NULL_IS_UNCHANGED = {"ConsumerGroupHeartbeat", "ShareGroupHeartbeat"}
"""APIs where null asks for nothing new."""
_COORDINATORS = {0: "group", 1: "transactional_id"}
"""FindCoordinator's key_type → the kind of its keys (a share group's are more than its name)."""
_LEVEL = re.compile(r"(\w+)\(([^)]*)\)")

Keys = dict[str, Any]
"""Name → value of the fields that identify an element: topic, topic_id, partition, group …"""


@attrs.frozen
class Item:
    """One thing that a request asks for."""

    keys: Keys
    open: bool = False
    """It stands for all that the broker has below it: all topics, all partitions."""


class Level(NamedTuple):
    """One array of a chain."""

    array: str
    keys: tuple[tuple[str, str], ...]
    """(key, field of the element); "." is the element itself."""
    element: Any
    """The class of its elements; None where they are plain values."""

    def read(self, element: Any) -> Keys:
        """Return the keys of one element, without empty ones."""
        found = {
            key: element if field == "." else getattr(element, field) for key, field in self.keys
        }
        return {key: value for key, value in found.items() if value not in (None, "", NO_UUID)}


@attrs.frozen
class Shape:
    """The identifying fields in one version of an API's requests and responses."""

    name: str
    version: int
    own: tuple[tuple[str, str], ...]
    """(key, top-level field of the request): the group or transactional id of the whole request."""
    requests: tuple[tuple[Level, ...], ...]
    """The request's chains."""
    response: tuple[Level, ...]
    """The response's chain, the same for all of the request's; () if it has no items."""
    reads: bool = False
    """It changes nothing at the broker; only known of APIs that have chains."""

    @functools.cached_property
    def request_keys(self) -> frozenset[str]:
        """The keys that its requests can have; a topic's id counts as its name too."""
        found = {key for chain in self.requests for level in chain for key, _ in level.keys}
        if self.name == "FindCoordinator":
            found |= set(_COORDINATORS.values())
        found |= {key for key, _ in self.own}
        return frozenset(found | {"topic"} if "topic_id" in found else found)

    @functools.cached_property
    def open_keys(self) -> frozenset[str]:
        """The keys that only its responses have."""
        found = {key for level in self.response for key, _ in level.keys}
        return frozenset(found - self.request_keys - {"topic_id"})

    @functools.cached_property
    def echoed(self) -> int:
        """The number of levels of the response's chain that a request can fill."""
        deep = 0
        for level in self.response:
            if self.open_keys & {key for key, _ in level.keys}:
                break
            deep += 1
        return deep


class _ApiChains(NamedTuple):
    """The entry of an API in `chains.txt`."""

    reads: bool
    chains: list[tuple[str, str]]
    """The chains of its requests, each with that of the responses."""


@functools.cache
def _table() -> dict[str, _ApiChains]:
    path = os.path.join(os.path.dirname(__file__), "chains.txt")
    loader: Any = __spec__.loader
    found: dict[str, _ApiChains] = {}
    api = _ApiChains(False, [])
    for line in loader.get_data(path).decode("utf-8").splitlines():
        if line.startswith("  "):
            request, _, response = line.partition(">")
            api.chains.append((request, response))
        elif line and not line.startswith("#"):
            name, _, word = line.partition(" ")
            api = found[name] = _ApiChains(word == "reads", [])
    return found


@functools.cache
def shape(api_key: int, api_version: int) -> Shape | None:
    """Return the shape of a version; None if it is unknown."""
    request = schema.message(api_key, schema.REQUEST)
    response = schema.message(api_key, schema.RESPONSE)
    if request is None or response is None or api_version not in request.versions:
        return None
    name = schema.api_name(api_key)
    requests: list[tuple[Level, ...]] = []
    responses: tuple[Level, ...] = ()
    api = _table().get(name, _ApiChains(False, []))
    for request_chain, response_chain in api.chains:
        levels = _read_chain(request_chain, request, api_version)
        found = _read_chain(response_chain, response, api_version)
        if levels is not None and found is not None:
            requests.append(levels)
            responses = found
    own = tuple(
        (key, field.name)
        for field in request.fields
        if api_version in field.versions and (key := _own_key(field)) is not None
    )
    return Shape(name, api_version, own, tuple(requests), responses, api.reads)


def _own_key(field: schema.Field) -> str | None:
    if field.type != "string":
        return None
    if field.entity == "groupId" or field.name == "group_id":
        return "group"
    return "transactional_id" if field.entity == "transactionalId" else None


def _read_chain(text: str, message: schema.Message, version: int) -> tuple[Level, ...] | None:
    """Return the levels of a chain; None if the version lacks one of them."""
    levels: list[Level] = []
    fields = message.fields
    classes: Any = messages.message_class(message.name)
    for array, words in _LEVEL.findall(text):
        field = next((field for field in fields if field.name == array), None)
        if field is None or version not in field.versions:
            return None
        fields = field.fields
        present = {inner.name for inner in fields if version in inner.versions} | {"."}
        pairs = [
            (key, source or key) for key, _, source in (w.partition("=") for w in words.split())
        ]
        keys = tuple((key, source) for key, source in pairs if source in present)
        levels.append(Level(array, keys, getattr(classes, field.element) if fields else None))
    return tuple(levels)


def leaves(value: Any, levels: Sequence[Level], keys: Keys) -> Iterator[tuple[Keys, Any]]:
    """Yield the innermost elements of a message's chain, with the keys of all levels."""
    for element in getattr(value, levels[0].array) or () if levels else ():
        below = keys | levels[0].read(element)
        if len(levels) > 1:
            yield from leaves(element, levels[1:], below)
        else:
            yield below, element


def elements(value: Any, levels: Sequence[Level], keys: Keys) -> Iterator[Item]:
    """Yield all elements of a message's chain, at every level."""
    for depth in range(1, len(levels) + 1):
        yield from (Item(found) for found, _ in leaves(value, levels[:depth], keys))


# ── requests ─────────────────────────────────────────────────────────────────────────────────


def own_keys(shape: Shape, body: Any) -> Keys:
    """Return the keys that a request's top level gives to all of its items."""
    found = {key: getattr(body, field) for key, field in shape.own}
    if shape.name == "FindCoordinator" and body.key:
        found |= _coordinator_keys(body, body.key)
    return {key: value for key, value in found.items() if value not in (None, "")}


def _coordinator_keys(body: Any, key: str) -> Keys:
    kind = _COORDINATORS.get(body.key_type)
    return {} if kind is None else {kind: key}


def items(shape: Shape, body: Any) -> list[Item]:
    """Return the items that a request asks for; none where the API has no chain."""
    own = own_keys(shape, body)
    found: list[Item] = []
    for levels in shape.requests:
        found += _items_below(shape, body, levels, own, bool(shape.open_keys))
    if shape.name == "FindCoordinator":
        found = [
            attrs.evolve(item, keys=item.keys | _coordinator_keys(body, item.keys.get("key", "")))
            for item in found
        ]
    return found


def _items_below(
    shape: Shape, value: Any, levels: tuple[Level, ...], keys: Keys, is_open: bool
) -> Iterator[Item]:
    level = levels[0]
    elements = getattr(value, level.array)
    if not elements and (elements is None or (shape.name, shape.version) in _EMPTY_IS_ALL):
        if shape.name not in _NULL_IS_UNCHANGED:
            yield Item(keys, open=True)
        return
    for element in elements:
        found = keys | level.read(element)
        if len(levels) == 1:
            yield Item(found, is_open)
        else:
            yield from _items_below(shape, element, levels[1:], found, is_open)


def without(shape: Shape, body: Any, drops: Callable[[Keys], bool]) -> Any:
    """Return a request body without the items that `drops` picks, or elements left empty."""
    own = own_keys(shape, body)
    for levels in shape.requests:
        if getattr(body, levels[0].array):
            body = _without(body, levels, own, drops)
    return body


def _without(
    value: Any, levels: tuple[Level, ...], keys: Keys, drops: Callable[[Keys], bool]
) -> Any:
    level = levels[0]
    kept: list[Any] = []
    for element in getattr(value, level.array):
        found = keys | level.read(element)
        if len(levels) == 1:
            if not drops(found):
                kept.append(element)
        else:
            below = _without(element, levels[1:], found, drops)
            if getattr(below, levels[1].array) or not getattr(element, levels[1].array):
                kept.append(below)
    changed = copy.copy(value)
    setattr(changed, level.array, kept)
    return changed
