"""Causes that lie with the cluster: leaders, replicas, topics, versions, sessions."""

from __future__ import annotations

from collections.abc import Iterator

from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.filter.values import suggestion
from kproxy.exchange.words.failures import NO_PARTITION, place_text
from kproxy.exchange.words.wording import count, listed
from kproxy.history.cluster import PartitionState
from kproxy.history.events import events
from kproxy.history.logs import CREATED, DELETED, TopicState
from kproxy.history.rows import Led, Versions
from kproxy.look.why.case import Case
from kproxy.look.why.sentences import NOT_RECORDED, named

_PLACES_MAX = 2


def _partitions(case: Case) -> Iterator[tuple[str, TopicPartition, PartitionState]]:
    """Yield the partitions that failed, with their text and what the history has of them."""
    places = [each for each in case.failure.places if each.partition != NO_PARTITION]
    for place in places[:_PLACES_MAX]:
        known = case.history.cluster.partitions.get(place, PartitionState())
        yield place_text((place,)), place, known


# ── leaders and replicas ─────────────────────────────────────────────────────────────────────


def leader(case: Case) -> Iterator[str]:
    """Yield which broker leads a partition: as the response says, and others before and after."""
    own = (each for each in events(case.exchange) if isinstance(each, Led))
    told = {each.where: each.leader for each in own if each.leader >= 0}
    for text, place, known in _partitions(case):
        if place in told:
            yield f"The response names broker {told[place]} as the leader of {text}."
        yield from case.broker_before(known.leaders, f"the leader of {text}")
        unknown = "" if place in told else f"Which broker leads {text} after it"
        yield from case.broker_after(known.leaders, unknown)


def replicas(case: Case) -> Iterator[str]:
    """Yield how many replicas of a partition are in sync, as Metadata says nearest to it."""
    for text, _, known in _partitions(case):
        near = case.told_nearest(known.replicas)
        if near is None:
            yield f"How many replicas of {text} are in sync {NOT_RECORDED}."
            continue
        ref, led = near
        of = count(len(led.replicas), "replica")
        yield f"{case.when(ref)}, shows {len(led.in_sync)} of {of} of {text} in sync."


# ── topics ───────────────────────────────────────────────────────────────────────────────────


def topic_known(case: Case) -> Iterator[str]:
    """Yield whether the recording shows that a topic exists: before, after, by another name."""
    for topic in (case.failure.topics or case.exchange.topics)[:_PLACES_MAX]:
        said = [*_life(case, topic)]
        yield from said or [_unknown(case, topic)]


def _life(case: Case, name: str) -> Iterator[str]:
    topic = case.history.logs.topics.get(name, TopicState(name))
    known_ns, lives = case.exchange.completed_ns, (CREATED, DELETED)
    changes = [
        each for each in topic.changes if each.what in lives and each.ref.time_ns <= known_ns
    ]
    if changes:
        ref, what = changes[-1].ref, changes[-1].what
        late = "; brokers learn of a new topic a little later" if what == CREATED else ""
        yield f"{case.when(ref)}, {what} {name}{late}."
    if before := case.told_before(topic.told):
        ref, size = before
        yield f"{case.when(ref)}, knew {name}, with {count(size, 'partition')}."
    if after := case.told_after(topic.told):
        yield f"{case.when(after[0])}, knows {name}."


def _unknown(case: Case, name: str) -> str:
    topics = case.history.logs.topics
    if name in topics and (used := topics[name].used):
        return f"{case.when(used)}, names {name}, too, and has no error."
    names = {each for each, topic in topics.items() if each != name and len(topic.told)}
    return f"Nothing in the recording shows that {name} exists{suggestion(name, names)}."


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
    near = case.told_nearest(case.history.cluster.brokers)
    if near is None:
        yield f"How many brokers there are {NOT_RECORDED}."
    else:
        ref, nodes = near
        yield f"{case.when(ref)}, names {count(len(nodes), 'broker')}."


# ── brokers ──────────────────────────────────────────────────────────────────────────────────


def versions(case: Case) -> Iterator[str]:
    """Yield the versions of the API that the broker takes, as it said on the connection."""
    exchange, connection = case.exchange, case.history.connections.get(case.exchange.connection)
    says = "the response says"
    told = next((each for each in events(exchange) if isinstance(each, Versions)), None)
    if told is None and connection is not None and connection.versions is not None:
        ref, told = connection.versions
        says = f"{named(ref)} says"
    found = [each for each in (told.ranges if told else ()) if each[0] == exchange.api_key]
    if not found:
        yield f"Which versions of {exchange.api} the broker takes {NOT_RECORDED}."
    for _, least, greatest in found:
        yield (
            f"The broker takes {exchange.api} v{least} to v{greatest}, {says}; this request is"
            f" v{exchange.api_version}."
        )


def controller(case: Case) -> Iterator[str]:
    """Yield which broker Metadata names as the controller after it."""
    if after := case.told_after(case.history.cluster.controllers):
        ref, node = after
        yield f"{case.when(ref)}, names broker {node} as controller."
    else:
        yield f"Which broker is the controller {NOT_RECORDED}."


def fetch_session(case: Case) -> Iterator[str]:
    """Yield where a fetch session was opened."""
    exchange = case.exchange
    session = getattr(exchange.request, "session_id", 0)
    if not session:
        return
    found = case.history.cluster.sessions.get((exchange.node_id, session))
    if found is None:
        yield f"Where fetch session {session} was opened {NOT_RECORDED}."
        return
    ref, is_opened = found
    did = "opened" if is_opened else "had used"
    on = "" if ref.connection == exchange.connection else f", on connection {ref.connection}"
    yield f"{case.when(ref)}, {did} fetch session {session}{on}."


def in_group(case: Case) -> Iterator[str]:
    """Yield who was in a group shortly before."""
    for name in case.failure.names[:1] or case.exchange.groups[:1]:
        group = case.history.groups.get(name)
        heard = [each.accepted for each in group.members.values()] if group is not None else []
        last = max(filter(None, heard), key=lambda ref: ref.completed_ns, default=None)
        if last is None:
            yield f"Who is in group {name} {NOT_RECORDED}."
        else:
            who = last.client_id or "a client without a name"
            yield f"The last of a member of {name} is {case.when(last)}, of {who}."


def refused_names(case: Case) -> Iterator[str]:
    """Yield the names that a request has where they are not legal."""
    names = [each for each in case.failure.topics or case.exchange.topics if each]
    if names:
        yield f"It names {listed(names)}."
