"""The cluster that requests are sent to: what it has answered of itself, and what that means.

::

    ApiVersions ───────▶ the version to send a request in
    Metadata ──────────▶ brokers, leaders, ids of topics ─┐
    FindCoordinator ───▶ coordinators ────────────────────┴─▶ which broker a request goes to

Whoever feeds it asks for what is not known; what turns out to be wrong is forgotten, and asked for
again. A request to the leaders of several partitions is divided (`divided`), and what they
answer is one response again (`merged`).
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import attrs

from kproxy.exchange.entities import TopicNames, own_topic_name, partition_of
from kproxy.exchange.meanings import (
    GROUP,
    PARTITION,
    PREDICATES,
    TRANSACTIONAL_ID,
    fields_in_body,
)
from kproxy.proxy.actions import Address
from kproxy.send import forms
from kproxy.send.apis import Answers, answers
from kproxy.send.substitution import Where
from kproxy.wire.protocol import messages, schema
from kproxy.wire.protocol.select import select

METADATA, FIND_COORDINATOR = 3, 10
NEWEST = 1 << 15
"""Instead of a recorded version: the newest that both know."""
_NAMED_BY_ID = frozenset(("ConsumerGroupHeartbeat", "OffsetCommit", "OffsetFetch"))
_GROUP, _TRANSACTION = 0, 1
_COMMITS = frozenset(("OffsetCommit", "TxnOffsetCommit"))
_LACKED = -1
"""Instead of the leader of a partition that the cluster lacks."""
_NO_TOPIC = -1
"""Instead of the number of partitions."""


class CannotBeSent(Exception):
    """A request that this cluster does not know in any form; the text says why."""


@attrs.define(eq=False)
class TargetCluster:
    """What the cluster has answered of itself."""

    nodes: dict[int, Address] = attrs.field(factory=dict)
    controller: int = -1
    cluster_id: str | None = None
    versions: dict[int, tuple[int, int]] = attrs.field(factory=dict)
    """By API key, the versions that all of its brokers know."""
    leaders: dict[Where, int] = attrs.field(factory=dict)
    partitions: dict[str, int] = attrs.field(factory=dict)
    """How many a topic has."""
    topic_ids: dict[str, Any] = attrs.field(factory=dict)
    """The ids of all topics that it is known to have; of zeros, where it has none."""
    names: TopicNames = attrs.field(factory=TopicNames)
    coordinators: dict[tuple[int, str], int] = attrs.field(factory=dict)

    # ---- what it answers of itself

    def learn_versions(self, body: Any) -> None:
        """Take an ApiVersions response."""
        for each in body.api_keys:
            least, most = self.versions.get(each.api_key, (0, NEWEST))
            known = max(least, each.min_version), min(most, each.max_version)
            self.versions[each.api_key] = known

    def learn_metadata(self, body: Any) -> None:
        """Take a Metadata response."""
        self.nodes |= {each.node_id: (each.host, each.port) for each in body.brokers}
        self.controller, self.cluster_id = body.controller_id, body.cluster_id or self.cluster_id
        self.names.learn(body)
        for topic in body.topics:
            if topic.error_code or topic.name is None:
                continue
            self.topic_ids[topic.name] = topic.topic_id
            self.partitions[topic.name] = len(topic.partitions)
            for each in topic.partitions:
                if each.leader_id >= 0:
                    self.leaders[topic.name, each.partition_index] = each.leader_id

    def miss(self, topics: Iterable[str]) -> None:
        """Take it that it does not have topics, as far as it has not told them."""
        self.partitions.update(dict.fromkeys({*topics} - self.topic_ids.keys(), _NO_TOPIC))

    def lacks(self, where: Where) -> bool:
        """Return whether it has not this topic, or not this partition of it."""
        return where[1] >= self.partitions.get(where[0], where[1] + 1)

    def forget(self, topics: Iterable[str], key: tuple[int, str] | None) -> None:
        """Forget leaders and a coordinator that turned out to be others."""
        gone = {*topics}
        self.leaders = {where: node for where, node in self.leaders.items() if where[0] not in gone}
        if key is not None:
            self.coordinators.pop(key, None)

    # ---- versions

    def version(self, api_key: int, recorded: int, body: Any) -> int:
        """Return the version to send a request in: the recorded one, or the newest that both know.

        Raises: CannotBeSent.
        """
        api = schema.api_name(api_key)
        known, request = self.versions.get(api_key), schema.message(api_key, schema.REQUEST)
        if known is None or request is None:
            raise CannotBeSent(f"{api} is not known")
        both = [each for each in request.versions if known[0] <= each <= known[1]]
        if not both:
            raise CannotBeSent(f"{api} is known in versions {known[0]} to {known[1]} only")
        version = recorded if recorded in both else both[-1]
        if version == recorded or request.name in forms.MESSAGES:
            return version
        for field in request.fields:
            is_said = field.is_array and getattr(body, field.name)
            if is_said and version not in field.versions and recorded in field.versions:
                what = f"{api} v{recorded} has {field.name}, which v{version} cannot say"
                raise CannotBeSent(what)
        return version

    # ---- brokers

    def needs_topics(self, api: str) -> bool:
        """Return whether the leaders, or ids, of the topics in a request must be known."""
        return answers(api) is Answers.LEADER or api in _NAMED_BY_ID

    def coordinator_key(self, api: str, body: Any) -> tuple[int, str] | None:
        """Return whose coordinator answers a request: type and key; None if none does."""
        kind = answers(api)
        if kind is Answers.GROUP:
            meaning, key_type = GROUP, _GROUP
        elif kind is Answers.TRANSACTION:
            meaning, key_type = TRANSACTIONAL_ID, _TRANSACTION
        else:
            return None
        for each in fields_in_body(type(body), meaning).values(body):
            if each:
                return key_type, each
        return None

    def divided(self, api: str, body: Any) -> list[tuple[int | None, Any]]:
        """Return to which brokers a request goes, with the part for each; None is any. Partitions
        that the cluster lacks are left out."""
        parts = [*forms.one_by_one(body)]
        if len(parts) > 1:
            return [each for part in parts for each in self.divided(api, part)]
        kind = answers(api)
        if kind is Answers.CONTROLLER:
            return [(self.controller if self.controller in self.nodes else None, body)]
        key = self.coordinator_key(api, body)
        node = None if key is None else self.coordinators.get(key)
        is_led = kind is Answers.LEADER
        place = _partitions(type(body)) if is_led or api in _COMMITS else None
        if place is None:
            return [(node, body)]

        def answering(where: Where) -> int | None:
            return _LACKED if self.lacks(where) else self.leaders.get(where) if is_led else node

        led = _grouped(body, place, answering)
        lacked = led.pop(_LACKED, None)
        if len(led) < 2 and not lacked:
            return [(next(iter(led), None), body)]
        return [(node, _part(body, place, topics)) for node, topics in led.items()]


_Topics = list[tuple[Any, list[Any]]]
"""Topics of a request, each with partitions of it."""


def without(body: Any, partitions: Collection[Where]) -> Any:
    """Return a request, or a response, without these partitions; itself, if no other is left."""
    place = _partitions(type(body))
    parts = _grouped(body, place, partitions.__contains__) if partitions and place else {}
    return _part(body, place, parts[False]) if place and len(parts) == 2 else body


def _grouped(body: Any, place: tuple[str, str], key: Callable[[Where], Any]) -> dict[Any, _Topics]:
    """Return the partitions in a body, grouped by what `key` says of each."""
    groups: dict[Any, _Topics] = {}
    for topic in getattr(body, place[0]) or ():
        name = own_topic_name(topic)
        for each in getattr(topic, place[1]):
            number = each if isinstance(each, int) else partition_of(each)
            found = groups.setdefault(key((name, number)), [])
            if not found or found[-1][0] is not topic:
                found.append((topic, []))
            found[-1][1].append(each)
    return groups


def _part(body: Any, place: tuple[str, str], topics: _Topics) -> Any:
    part = copy.copy(body)
    chosen = [copy.copy(topic) for topic, _ in topics]
    for topic, (_, partitions) in zip(chosen, topics, strict=True):
        setattr(topic, place[1], partitions)
    setattr(part, place[0], chosen)
    return part


def merged(bodies: Sequence[Any]) -> Any:
    """Return the responses to the parts of a request as one."""
    first, *others = bodies
    topics, partitions = _partitions(type(first)) or ("", "")
    for name in type(first).__slots__:
        for other in others:
            if isinstance(getattr(other, name), list):
                setattr(first, name, [*(getattr(first, name) or ()), *getattr(other, name)])
            elif name == "error_code":
                first.error_code = first.error_code or other.error_code
    if others and topics:
        by_name: dict[Any, list[Any]] = {}
        for each in getattr(first, topics):
            key = own_topic_name(each), getattr(each, "topic_id", None)
            by_name.setdefault(key, []).append(each)
        for same, *more in by_name.values():
            parts = (part for each in (same, *more) for part in getattr(each, partitions))
            setattr(same, partitions, [*parts])
        setattr(first, topics, [same[0] for same in by_name.values()])
    return first


@functools.cache
def _partitions(body: type) -> tuple[str, str] | None:
    """Return the field of a body with its topics, and that of these with their partitions."""
    for place in select(schema.named(body.__name__), PREDICATES[PARTITION]).places:
        if len(place.fields) >= 2 and place.fields[0].is_array and place.fields[1].is_array:
            if place.fields[0].name != "forgotten_topics_data":
                return place.fields[0].name, place.fields[1].name
    return None


def metadata_request(topics: Iterable[str]) -> Any:
    """Return a request for the brokers, and for these topics."""
    kind = messages.MetadataRequest
    asked = [kind.MetadataRequestTopic(name=each) for each in sorted(topics)]
    return kind(topics=asked, allow_auto_topic_creation=False)


def coordinator_request(key: tuple[int, str]) -> Any:
    """Return a request for a coordinator, in all versions."""
    return messages.FindCoordinatorRequest(key_type=key[0], key=key[1], coordinator_keys=[key[1]])
