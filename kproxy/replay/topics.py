"""The recorded cluster: its brokers, topics and partitions."""

from __future__ import annotations

import uuid

import attrs

from kproxy.protocol.schema import NO_UUID
from kproxy.replay.log import PartitionLog
from kproxy.replay.store import Store

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
    created: bool = False
    """True if a client created it in the recording."""
    partitions_first: int | None = None
    """Number of its partitions before a client created more in the recording."""


@attrs.define(eq=False)
class ClusterState:
    """Brokers by node id, topics by name."""

    store: Store = attrs.Factory(Store)
    cluster_id: str | None = None
    controller_id: int = -1
    racks: dict[int, str | None] = attrs.Factory(dict)
    """Rack by node id: the keys are the node ids of all brokers."""
    topics: dict[str, Topic] = attrs.Factory(dict)
    names: dict[uuid.UUID, str] = attrs.Factory(dict)
    """Topic name by topic id; a topic that was created again has several ids."""
    later: dict[str, Topic] = attrs.Factory(dict)
    """Topics that a client is still to create."""
    coordinators: dict[tuple[int, str], int] = attrs.Factory(dict)
    """Recorded coordinators: node id by (key type, key)."""

    def topic(self, name: str | None, topic_id: uuid.UUID = NO_UUID) -> Topic | None:
        """Return the topic of this name or, without a name, of this id."""
        if not name:
            name = self.names.get(topic_id)
        return None if name is None else self.topics.get(name)

    def partition(self, name: str | None, topic_id: uuid.UUID, index: int) -> Partition | None:
        """Return a partition of the topic of this name or id."""
        topic = self.topic(name, topic_id)
        return None if topic is None else topic.partitions.get(index)

    def log(self, name: str, index: int) -> PartitionLog:
        """Return the log of a recorded partition, created already or not."""
        topic = self.topics.get(name) or self.later[name]
        return (topic.partitions.get(index) or topic.later[index]).log

    def hold_back(self) -> None:
        """Hide the topics and partitions that clients created in the recording."""
        for topic in list(self.topics.values()):
            for index in sorted(topic.partitions):
                if topic.partitions_first is not None and index >= topic.partitions_first:
                    topic.later[index] = topic.partitions.pop(index)
            if topic.created:
                self.later[topic.name] = self.topics.pop(topic.name)

    def add_topic(self, name: str, topic_id: uuid.UUID = NO_UUID) -> Topic:
        """Return the topic of this name, added if new; set its id, if one is given."""
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = Topic(name, uuid.uuid5(_TOPIC_IDS, name))
            self.names[topic.topic_id] = name
        if topic_id != NO_UUID:
            topic.topic_id = topic_id
            self.names[topic_id] = name
        return topic

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
