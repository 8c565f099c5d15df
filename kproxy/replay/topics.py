"""The recorded cluster: its brokers, topics and partitions.

::

    generations[name]   the topics of this name, each of which a client deleted before the next came
    topics[name]        the one that exists
    later[name]         the one that is still to be created

A generation ends when a client deletes the topic in the replay; the first one is there at the
start, or comes first.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import attrs

from kproxy.replay.log import PartitionLog
from kproxy.replay.store import Store
from kproxy.wire.protocol.schema import NO_UUID

_TOPIC_IDS = uuid.UUID("6a1ea0f8-1b3c-4f0e-9d2a-6f5d0f6f2c11")
"""The UUID namespace for topics whose id was not recorded."""


@attrs.define(eq=False)
class Partition:
    """One partition of a topic."""

    index: int
    log: PartitionLog
    leader_id: int = -1
    leader_epoch: int = 0
    replicas: list[int] = attrs.Factory(list)
    in_sync: list[int] = attrs.Factory(list)


@attrs.define(eq=False)
class Topic:
    """A topic, and its partitions by index."""

    name: str
    topic_id: uuid.UUID
    internal: bool = False
    partitions: dict[int, Partition] = attrs.Factory(dict)
    later: dict[int, Partition] = attrs.Factory(dict)
    """Partitions that a client is still to create."""
    id_known: bool = False
    """True if its id is the recorded one."""
    created: bool = False
    """True if a client created it in the recording."""
    deleted_ns: int = 0
    """The time at which a client deleted it in the recording; 0 if none did."""
    partitions_first: int | None = None
    """Number of its partitions before a client created more in the recording."""

    @property
    def all_partitions(self) -> list[Partition]:
        """Its partitions, those that are still to be created included."""
        return [*self.partitions.values(), *self.later.values()]


@attrs.define(eq=False)
class ClusterState:
    """Brokers by node id, topics by name."""

    store: Store = attrs.Factory(Store)
    cluster_id: str | None = None
    controller_id: int = -1
    racks: dict[int, str | None] = attrs.Factory(dict)
    """Rack by node id: the keys are the node ids of all brokers."""
    generations: dict[str, list[Topic]] = attrs.Factory(dict)
    topics: dict[str, Topic] = attrs.Factory(dict)
    names: dict[uuid.UUID, str] = attrs.Factory(dict)
    """Topic name by topic id, of all generations."""
    later: dict[str, Topic] = attrs.Factory(dict)
    _gone: set[uuid.UUID] = attrs.field(factory=set, init=False)
    """Ids of the topics that clients have deleted."""
    coordinators: dict[tuple[int, str], int] = attrs.Factory(dict)
    """Recorded coordinators: node id by (key type, key)."""

    def topic(self, name: str | None, topic_id: uuid.UUID = NO_UUID) -> Topic | None:
        """Return the topic of this name or, without a name, of this id."""
        if name:
            return self.topics.get(name)
        found = self.topics.get(self.names.get(topic_id, ""))
        return found if found is not None and found.topic_id == topic_id else None

    def partition(self, name: str | None, topic_id: uuid.UUID, index: int) -> Partition | None:
        """Return a partition of the topic of this name or id."""
        topic = self.topic(name, topic_id)
        return None if topic is None else topic.partitions.get(index)

    @property
    def all_topics(self) -> Iterator[Topic]:
        """The topics of all generations."""
        return (each for generations in self.generations.values() for each in generations)

    # ---- in a replay

    def hold_back(self) -> None:
        """Hide the topics and partitions that clients created in the recording."""
        for topic in self.all_topics:
            for index in sorted(topic.partitions):
                if topic.partitions_first is not None and index >= topic.partitions_first:
                    topic.later[index] = topic.partitions.pop(index)
            if topic.created and self.topics.get(topic.name) is topic:
                self.later[topic.name] = self.topics.pop(topic.name)

    def begin_at_end(self) -> None:
        """Start each log where it started at the end of the recording."""
        for topic in self.all_topics:
            for partition in topic.partitions.values():
                partition.log.begin_at_end()

    def delete(self, topic: Topic) -> None:
        """Delete a topic: the next generation is still to be created, or else the same again."""
        generations = self.generations[topic.name]
        following = generations[generations.index(topic) + 1 :]
        del self.topics[topic.name]
        self._gone.add(topic.topic_id)
        self.later[topic.name] = following[0] if following else topic

    def create(self, name: str) -> None:
        """Create the topic that is still to be created, if there is one of this name."""
        if name in self.later:
            self.topics[name] = self.later.pop(name)

    def create_by_itself(self, name: str) -> Topic | None:
        """Create the next generation of a topic that no client created in the recording."""
        topic = self.later.get(name)
        if topic is None or topic.created or topic.topic_id in self._gone:
            return None
        self.create(name)
        return topic

    # ---- while a recording is read

    def add_topic(self, name: str, topic_id: uuid.UUID = NO_UUID) -> Topic:
        """Return the topic of this name and id, added if new."""
        generations = self.generations.setdefault(name, [])
        topic = self.topics.get(name)
        if topic_id != NO_UUID:
            for each in generations:
                if each.topic_id == topic_id:
                    return each
            if topic is not None and topic.id_known:
                topic = None  # it has ended
        if topic is None:
            synthetic = f"{name} {len(generations)}" if generations else name
            topic = self.topics[name] = Topic(name, uuid.uuid5(_TOPIC_IDS, synthetic))
            generations.append(topic)
            self.names[topic.topic_id] = name
        if topic_id != NO_UUID:
            topic.topic_id, topic.id_known = topic_id, True
            self.names[topic_id] = name
        return topic

    def topic_at(self, name: str, time_ns: int) -> Topic | None:
        """Return the generation of a topic that a request names that came at a time."""
        for each in self.generations.get(name, ()):
            if not each.deleted_ns or time_ns < each.deleted_ns:
                return each
        return None

    def end_topic(self, name: str, topic_id: uuid.UUID, deleted_ns: int = 0) -> None:
        """End a generation of a topic, which a client deletes at a time, or nobody knows who."""
        found = [each for each in self.generations.get(name, ()) if each.topic_id == topic_id]
        topic = found[0] if found else self.topics.get(name)
        if topic is not None:
            topic.deleted_ns = topic.deleted_ns or deleted_ns
            if self.topics.get(name) is topic:
                del self.topics[name]

    def rewind(self) -> list[tuple[Topic, Topic]]:
        """Go back to the first generation of each topic at the end of the recording; return the
        generations that are left out, because no client deleted them, each with the next one."""
        left_out: list[tuple[Topic, Topic]] = []
        for name, generations in self.generations.items():
            kept = generations[-1:]
            for each in reversed(generations[:-1]):
                if each.deleted_ns:
                    kept.insert(0, each)
                else:
                    left_out.append((each, kept[0]))
            generations[:] = kept
            self.topics[name] = kept[0]
        return left_out[::-1]

    def add_partition(self, topic: Topic, index: int) -> Partition:
        """Return a partition of a topic, added if new."""
        partition = topic.partitions.get(index)
        if partition is None:
            partition = topic.partitions[index] = Partition(index, PartitionLog(self.store))
        return partition

    def coordinator(self, key_type: int, key: str) -> int:
        """Return the recorded coordinator of a group or transactional id, or else some node."""
        found = self.coordinators.get((key_type, key))
        return found if found in self.racks else min(self.racks)
