"""The cluster that a recording shows: its brokers, topics and partitions."""

from __future__ import annotations

import uuid

import attrs

from kproxy.protocol.schema import NO_UUID
from kproxy.replay.log import PartitionLog
from kproxy.replay.store import Store

_TOPIC_IDS = uuid.UUID("6a1ea0f8-1b3c-4f0e-9d2a-6f5d0f6f2c11")
"""The name space of ids for topics whose id was not recorded."""


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
    created: bool = False
    """Whether a client was seen creating it."""
    partitions_first: int | None = None
    """How many partitions it had before a client was seen creating more."""


@attrs.define(eq=False)
class ClusterState:
    """Brokers by node id, topics by name."""

    store: Store = attrs.Factory(Store)
    cluster_id: str | None = None
    controller_id: int = -1
    racks: dict[int, str | None] = attrs.Factory(dict)
    """Of each broker: so the keys are the node ids."""
    topics: dict[str, Topic] = attrs.Factory(dict)
    names: dict[uuid.UUID, str] = attrs.Factory(dict)
    """Every topic id that was seen; a topic that was created anew has had several."""
    later: dict[str, Topic] = attrs.Factory(dict)
    """Topics that a client is still to create."""
    coordinators: dict[tuple[int, str], int] = attrs.Factory(dict)
    """(key type, key) → node id, as recorded."""

    def topic(self, name: str | None, topic_id: uuid.UUID = NO_UUID) -> Topic | None:
        """The topic of this name, or in its absence of this id."""
        if not name:
            name = self.names.get(topic_id)
        return None if name is None else self.topics.get(name)

    def partition(self, name: str | None, topic_id: uuid.UUID, index: int) -> Partition | None:
        """A partition of the topic of this name or id."""
        topic = self.topic(name, topic_id)
        return None if topic is None else topic.partitions.get(index)

    def log(self, name: str, index: int) -> PartitionLog:
        """The log of a partition that the recording has, created already or not."""
        topic = self.topics.get(name) or self.later[name]
        return (topic.partitions.get(index) or topic.later[index]).log

    def hold_back(self) -> None:
        """Make it a cluster in which nothing is created yet that clients were seen creating."""
        for topic in list(self.topics.values()):
            for index in sorted(topic.partitions):
                if topic.partitions_first is not None and index >= topic.partitions_first:
                    topic.later[index] = topic.partitions.pop(index)
            if topic.created:
                self.later[topic.name] = self.topics.pop(topic.name)

    def add_topic(self, name: str, topic_id: uuid.UUID = NO_UUID) -> Topic:
        """The topic of this name, made if there is none; it takes the id if that is one."""
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = Topic(name, uuid.uuid5(_TOPIC_IDS, name))
            self.names[topic.topic_id] = name
        if topic_id != NO_UUID:
            topic.topic_id = topic_id
            self.names[topic_id] = name
        return topic

    def add_partition(self, topic: Topic, index: int) -> Partition:
        """A partition of a topic, made if there is none."""
        partition = topic.partitions.get(index)
        if partition is None:
            partition = topic.partitions[index] = Partition(index, PartitionLog(self.store))
        return partition

    def coordinator(self, key_type: int, key: str) -> int:
        """The node that coordinates a group or a transactional id: as recorded, or any one."""
        found = self.coordinators.get((key_type, key))
        return found if found in self.racks else min(self.racks)
