"""Causes that lie with the cluster: leaders, replicas, topics, versions, sessions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import Filter, matching
from kproxy.exchange.filter.values import suggestion
from kproxy.exchange.words.failures import NO_PARTITION, place_text
from kproxy.exchange.words.wording import age, count, listed
from kproxy.why.case import Case, api
from kproxy.why.sentences import NOT_RECORDED, named

_PLACES_MAX = 2


def _metadata(case: Case, topic: str) -> Iterator[Exchange]:
    """Yield the other Metadata responses that name a topic."""
    for each in case.others(matching("topic", topic), api("Metadata")):
        if each.response is not None:
            yield each


def _partition(exchange: Exchange, place: TopicPartition) -> Any:
    """Return what Metadata says of a partition; None if nothing."""
    for topic in exchange.response.topics or ():
        if topic.name == place.topic and not topic.error_code:
            for each in topic.partitions:
                if each.partition_index == place.partition:
                    return each
    return None


def _places(case: Case) -> list[TopicPartition]:
    return [each for each in case.failure.places if each.partition != NO_PARTITION][:_PLACES_MAX]


# ── leaders and replicas ─────────────────────────────────────────────────────────────────────


def leader(case: Case) -> Iterator[str]:
    """Yield which broker leads a partition: as the response says, and Metadata before and after."""
    for place in _places(case):
        yield from _leader(case, place)


def _leader(case: Case, place: TopicPartition) -> Iterator[str]:
    text = place_text((place,))
    told = _told_leader(case.exchange, place)
    if told is not None:
        yield f"The response names broker {told} as the leader of {text}."
    before: tuple[Exchange, int] | None = None
    after: tuple[Exchange, int] | None = None
    for each in _metadata(case, place.topic):
        found = _partition(each, place)
        if found is None or found.leader_id < 0:
            continue
        if each.completed_ns <= case.exchange.time_ns:
            before = each, found.leader_id
        elif each.time_ns >= case.exchange.completed_ns:
            after = after or (each, found.leader_id)
    if before is not None:
        yield f"{case.when(before[0])}, named broker {before[1]} as the leader of {text}."
    if after is not None:
        yield f"{case.when(after[0])}, names broker {after[1]}."
    elif told is None:
        yield f"Which broker leads {text} after it {NOT_RECORDED}."


def _told_leader(exchange: Exchange, place: TopicPartition) -> int | None:
    """Return the leader that the response to a Produce or Fetch names beside the error."""
    names = exchange.topic_names
    for topic in getattr(exchange.response, "responses", None) or ():
        name = getattr(topic, "name", "") or getattr(topic, "topic", "")
        if (name or names.text(topic.topic_id)) != place.topic:
            continue
        for each in getattr(topic, "partition_responses", None) or getattr(topic, "partitions", ()):
            number = getattr(each, "index", None)
            number = each.partition_index if number is None else number
            current = getattr(each, "current_leader", None)
            if number == place.partition and current is not None and current.leader_id >= 0:
                return current.leader_id
    return None


def replicas(case: Case) -> Iterator[str]:
    """Yield how many replicas of a partition are in sync, as Metadata says nearest to it."""
    for place in _places(case):
        text = place_text((place,))
        near: tuple[Exchange, Any] | None = None
        for each in _metadata(case, place.topic):
            found = _partition(each, place)
            if found is not None and (near is None or each.time_ns <= case.exchange.completed_ns):
                near = each, found
        if near is None:
            yield f"How many replicas of {text} are in sync {NOT_RECORDED}."
            continue
        metadata, found = near
        isr, nodes = found.isr_nodes or (), found.replica_nodes or ()
        yield (
            f"{case.when(metadata)}, shows {len(isr)} of {count(len(nodes), 'replica')} of {text}"
            f" in sync."
        )


# ── topics ───────────────────────────────────────────────────────────────────────────────────


def topic_known(case: Case) -> Iterator[str]:
    """Yield whether the recording shows that a topic exists: before, after, by another name."""
    topics = case.failure.topics or case.exchange.topics
    for topic in topics[:_PLACES_MAX]:
        said = [*_life(case, topic)]
        yield from said or [_unknown(case, topic)]


def _life(case: Case, topic: str) -> Iterator[str]:
    known: Exchange | None = None
    partitions = 0
    changes: list[tuple[Exchange, str]] = []
    known_after: Exchange | None = None
    apis = api("Metadata", "CreateTopics", "DeleteTopics")
    for each in case.others(matching("topic", topic), apis):
        if each.response is None:
            continue
        if each.api == "Metadata":
            size = _partition_count(each, topic)
            if size and each.completed_ns <= case.exchange.time_ns:
                known, partitions = each, size
            elif size and each.time_ns >= case.exchange.completed_ns:
                known_after = known_after or each
        elif not _failed(each, topic) and each.time_ns <= case.exchange.completed_ns:
            changes.append((each, "created" if each.api == "CreateTopics" else "deleted"))
    if changes:
        each, what = changes[-1]
        late = "; brokers learn of a new topic a little later" if what == "created" else ""
        yield f"{case.when(each)}, {what} {topic}{late}."
    if known is not None:
        yield f"{case.when(known)}, knew {topic}, with {count(partitions, 'partition')}."
    if known_after is not None:
        yield f"{case.when(known_after)}, knows {topic}."


def _partition_count(metadata: Exchange, topic: str) -> int:
    for each in metadata.response.topics or ():
        if each.name == topic and not each.error_code:
            return len(each.partitions)
    return 0


def _failed(exchange: Exchange, topic: str) -> bool:
    response = exchange.response
    for each in getattr(response, "topics", None) or getattr(response, "responses", None) or ():
        name = each.name or exchange.topic_names.text(each.topic_id)
        if name == topic:
            return bool(each.error_code)
    return True


def _unknown(case: Case, topic: str) -> str:
    for each in case.others(matching("topic", topic), api("Produce", "Fetch", "ListOffsets")):
        if each.response is not None and not each.errors:
            return f"{case.when(each)}, names {topic}, too, and has no error."
    names: set[str] = set()
    for each in case.others(api("Metadata")):
        for one in getattr(each.response, "topics", None) or ():
            if one.name and not one.error_code:
                names.add(one.name)
    names.discard(topic)
    return f"Nothing in the recording shows that {topic} exists{suggestion(topic, names)}."


def creation(case: Case) -> Iterator[str]:
    """Yield what is known of a topic that exists already."""
    for topic in case.failure.topics[:_PLACES_MAX]:
        said = [*_life(case, topic)]
        yield from said or [f"Who created {topic} {NOT_RECORDED}."]


def brokers(case: Case) -> Iterator[str]:
    """Yield how many replicas are asked for, and how many brokers Metadata names."""
    for each in getattr(case.exchange.request, "topics", None) or ():
        factor = getattr(each, "replication_factor", None)
        if factor is not None and factor > 0 and each.name in case.failure.topics:
            yield f"It asks for {count(factor, 'replica')} of {each.name}."
    near: Exchange | None = None
    for each in case.others(api("Metadata")):
        if each.response is not None and each.response.brokers:
            if near is None or each.time_ns <= case.exchange.completed_ns:
                near = each
    if near is None:
        yield f"How many brokers there are {NOT_RECORDED}."
    else:
        yield f"{case.when(near)}, names {count(len(near.response.brokers), 'broker')}."


# ── brokers ──────────────────────────────────────────────────────────────────────────────────


def versions(case: Case) -> Iterator[str]:
    """Yield the versions of the API that the broker takes, as it said on the connection."""
    exchange = case.exchange
    told = exchange if exchange.api == "ApiVersions" else None
    if told is None:
        on_connection = matching("connection", str(exchange.connection))
        for each in case.before(on_connection, api("ApiVersions")):
            told = each
    found = _range(told, exchange.api_key)
    if told is None or found is None:
        yield f"Which versions of {exchange.api} the broker takes {NOT_RECORDED}."
        return
    says = "the response says" if told is exchange else f"{named(told)} says"
    yield (
        f"The broker takes {exchange.api} v{found[0]} to v{found[1]}, {says}; this request is"
        f" v{exchange.api_version}."
    )


def _range(told: Exchange | None, api_key: int | None) -> tuple[int, int] | None:
    for each in getattr(told and told.response, "api_keys", None) or ():
        if each.api_key == api_key:
            return each.min_version, each.max_version
    return None


def throttle(case: Case) -> Iterator[str]:
    """Yield how long the broker has the client wait."""
    throttle_ms = getattr(case.exchange.response, "throttle_time_ms", 0)
    if throttle_ms:
        yield f"The broker has the client wait for {age(throttle_ms)}."


def controller(case: Case) -> Iterator[str]:
    """Yield which broker Metadata names as the controller after it."""
    for each in case.after(api("Metadata")):
        if each.response.controller_id >= 0:
            yield f"{case.when(each)}, names broker {each.response.controller_id} as controller."
            return
    yield f"Which broker is the controller {NOT_RECORDED}."


def fetch_session(case: Case) -> Iterator[str]:
    """Yield where a fetch session was opened."""
    exchange = case.exchange
    session = getattr(exchange.request, "session_id", 0)
    if not session:
        return
    opened: Exchange | None = None
    for each in case.before(_of_client(exchange), api("Fetch")):
        same_node = each.node_id == exchange.node_id
        if same_node and each.response.session_id == session and each.request is not None:
            opened = each if each.request.session_epoch <= 0 or opened is None else opened
    if opened is None:
        yield f"Where fetch session {session} was opened {NOT_RECORDED}."
        return
    again = (
        "" if opened.connection == exchange.connection else (f", on connection {opened.connection}")
    )
    if opened.request.session_epoch <= 0:
        yield f"{case.when(opened)}, opened fetch session {session}{again}."
    else:
        yield f"{case.when(opened)}, had used fetch session {session}{again}."


def _of_client(exchange: Exchange) -> Filter:
    if exchange.client_id:
        return matching("client_id", exchange.client_id)
    return matching("connection", str(exchange.connection))


def in_group(case: Case) -> Iterator[str]:
    """Yield who was in a group shortly before."""
    last: Exchange | None = None
    for group in case.failure.names[:1] or case.exchange.groups[:1]:
        for each in case.before(matching("group", group), api(*_OF_MEMBERS)):
            last = each if not each.errors else last
        if last is None:
            yield f"Who is in group {group} {NOT_RECORDED}."
        else:
            who = last.client_id or "a client without a name"
            yield f"The last of a member of {group} is {case.when(last)}, of {who}."


_OF_MEMBERS = ("JoinGroup", "SyncGroup", "Heartbeat", "ConsumerGroupHeartbeat")


def refused_names(case: Case) -> Iterator[str]:
    """Yield the names that a request has where they are not legal."""
    names = [each for each in case.failure.topics or case.exchange.topics if each]
    if names:
        yield f"It names {listed(names)}."
