"""The rows that exchanges become: what a request and its response did, in flat values.

They are the vocabulary of the history. A row says nothing of who, when and with what outcome the
exchange was: that is in the `Ref` beside it, whose `is_taken` says whether a broker has answered.
An `error` of a row is the broker's, of the part that the row is about; "" if it has none.
"""

from __future__ import annotations

from typing import NamedTuple

from kproxy.exchange.entities import TopicPartition
from kproxy.history.ref import Client, Ref

Producer = tuple[int, int]
"""Producer id and epoch."""

# ── groups ───────────────────────────────────────────────────────────────────────────────────


class Joined(NamedTuple):
    """A member asked to join (JoinGroup, ConsumerGroupHeartbeat with epoch 0)."""

    group: str
    member: str
    """The id that it was given; else the one that it asked with."""
    asked_member: str
    """The id that it asked with: "" of a new member."""
    instance: str
    """The group.instance.id; "" of a dynamic member."""
    kind: str
    """"classic" or "consumer" (KIP-848)."""
    generation: int | None
    """Generation or epoch; None if it got none."""
    protocol_type: str
    protocols: tuple[str, ...]
    """The assignors that it offers."""
    topics: tuple[str, ...]
    """What it subscribes to."""
    session_ms: int
    rebalance_ms: int
    """Its rebalance timeout: most consumers send their max.poll.interval.ms."""
    members: tuple[str, ...]
    """The coordinator's list of members, which only the leader gets."""
    reason: str
    error: str
    owned: tuple[TopicPartition, ...] = ()
    """What it has, as members of cooperative groups say (KIP-429)."""


class Assigned(NamedTuple):
    """A member was told its partitions (SyncGroup, ConsumerGroupHeartbeat)."""

    group: str
    member: str
    generation: int
    partitions: tuple[TopicPartition, ...]
    undecoded: str
    """Why the assignment could not be read; "" if it was."""
    heartbeat_ms: int
    """The interval that the coordinator wants (KIP-848); 0 if it says none."""
    error: str
    instance: str = ""


class Beat(NamedTuple):
    """A member was heard of (Heartbeat, ConsumerGroupHeartbeat)."""

    group: str
    member: str
    generation: int
    owned: tuple[TopicPartition, ...] | None
    """The partitions that it says to own (KIP-848); None if it says nothing of them."""
    error: str
    instance: str = ""
    given: int = -1
    """The epoch that it is told (KIP-848); −1 if it is told none."""


class Left(NamedTuple):
    """A member left (LeaveGroup; ConsumerGroupHeartbeat with a negative epoch)."""

    group: str
    member: str
    instance: str
    is_for_now: bool
    """True if a static member of KIP-848 means to come again."""
    reason: str
    error: str


class CommitRequested(NamedTuple):
    """An offset was sent to be committed; when it counts, `transactions` says."""

    group: str
    member: str
    generation: int
    where: TopicPartition
    offset: int
    transactional_id: str
    """"" of an OffsetCommit."""
    producer: Producer
    """That of a TxnOffsetCommit; (-1, -1) of an OffsetCommit."""
    error: str
    instance: str = ""


class Commit(NamedTuple):
    """An offset that counts from now on: made by `transactions`."""

    group: str
    member: str
    where: TopicPartition
    offset: int
    certain: bool
    """False for those of a transaction whose EndTxn has no answer: they may have been aborted."""
    by: Ref
    """The OffsetCommit or the EndTxn that made it count."""


class OffsetsFetched(NamedTuple):
    """A group asked how far it had committed (OffsetFetch)."""

    group: str
    where: TopicPartition
    offset: int
    """−1 if nothing was committed."""
    error: str


class Coordinator(NamedTuple):
    """The coordinator of a group or a transactional id was named (FindCoordinator)."""

    is_group: bool
    key: str
    node: int


# ── transactions and producers ───────────────────────────────────────────────────────────────


class Initialized(NamedTuple):
    """A producer asked for a producer id (InitProducerId)."""

    transactional_id: str
    """"" of an idempotent producer without transactions."""
    asked: Producer
    """The producer id and epoch that it has; (-1, -1) of a new one."""
    given: Producer
    """What it got; (-1, -1) if it got nothing."""
    timeout_ms: int
    """Of its transactions."""
    error: str


class AddedToTxn(NamedTuple):
    """A transaction got partitions, or the offsets of a group (AddPartitionsToTxn,
    AddOffsetsToTxn)."""

    transactional_id: str
    producer: Producer
    partitions: tuple[TopicPartition, ...]
    group: str
    """"" if it is about partitions."""
    error: str


class Ended(NamedTuple):
    """A transaction was to end (EndTxn)."""

    transactional_id: str
    producer: Producer
    committed: bool
    raised: Producer
    """The producer id and epoch of the next transaction (KIP-890); (-1, -1) if it says none."""
    error: str


class Aborted(NamedTuple):
    """Records that turn out to be those of an aborted transaction: made by `transactions`."""

    client: Client
    where: TopicPartition
    records: int
    """Less than 0 if an EndTxn that is read late may have committed them."""


# ── logs ─────────────────────────────────────────────────────────────────────────────────────


class Appended(NamedTuple):
    """A Produce had batches for a partition."""

    where: TopicPartition
    records: int
    """0 where old formats compress their number as well."""
    size_bytes: int
    sequences: tuple[tuple[int, int, int, int], ...]
    """Producer id, producer epoch, base sequence and number of records of each batch of an
    idempotent producer."""
    outcome: str
    """`WROTE`, `SENT` or `TRIED`."""
    offset: int | None
    """The first offset at which the broker wrote; None if it gave none."""
    transactional_id: str
    acks: int
    error: str
    is_again: bool = False
    """True if the partition has these batches already, by their numbers: `transactions` says so."""

    @property
    def last_offset(self) -> int | None:
        """The last offset that the broker gave; None if that, or the number of records, is not
        known."""
        return self.offset + self.records - 1 if self.offset is not None and self.records else None

    @property
    def log_end(self) -> int | None:
        """The offset that ends the log behind it; None if that is not known."""
        last = self.last_offset
        return None if last is None or self.outcome != WROTE else last + 1


WROTE, SENT, TRIED = "wrote", "sent", "tried to write"
"""What became of a write: the broker took it; none was to answer it (acks=0); it was refused, or
not answered, or did not reach the broker."""


class FetchPosition(NamedTuple):
    """A Fetch named a partition: those of a session name what changed only (KIP-227)."""

    where: TopicPartition
    offset: int


class Forgotten(NamedTuple):
    """A Fetch removed a partition from its session."""

    where: TopicPartition


class Read(NamedTuple):
    """A Fetch brought an answer for a partition."""

    where: TopicPartition
    session: int
    """The fetch session; 0 if there is none."""
    records: int
    size_bytes: int
    first: int | None
    """The first offset of its batches, markers of transactions aside; None without records."""
    end: int | None
    """One past the last of them."""
    past: int | None
    """One past its last batch, markers included; None without batches."""
    markers: tuple[tuple[int, int], ...]
    """Offset and last offset of each marker of a transaction."""
    aborted: int
    """Records of transactions that are known to be aborted."""
    high_watermark: int
    last_stable_offset: int
    log_start: int
    """These three are −1 where the version does not have them."""
    is_committed_only: bool
    """True if it reads committed records only (isolation.level=read_committed)."""
    error: str
    aborts: tuple[tuple[int, int], ...] = ()
    """Producer id and first offset of the aborted transactions among what it brought."""

    @property
    def log_end(self) -> int | None:
        """The offset that ends the log; None if it is not told."""
        return None if self.error or self.high_watermark < 0 else self.high_watermark


class Bound(NamedTuple):
    """An end of a partition's log, or the offset of a time, told by a ListOffsets or a
    DeleteRecords."""

    where: TopicPartition
    offset: int
    kind: str
    """`EARLIEST`, `LATEST` or `A_TIME`."""
    is_stable: bool = False
    """True if it is the last stable offset, which readers of committed records are given."""

    @property
    def log_end(self) -> int | None:
        """The offset that ends the log; None if it is another one."""
        return None if self.kind != LATEST or self.is_stable else self.offset


EARLIEST, LATEST, A_TIME = "earliest", "latest", "a time"


class Deleted(NamedTuple):
    """Something was deleted: of a group or of all, of a topic or of all, of a partition or of
    all."""

    group: str | None
    topic: str | None
    partition: int | None

    def covers(self, group: str, where: TopicPartition) -> bool:
        """Return whether the offset of a group in a partition is among what was deleted."""
        return all(each in (None, own) for each, own in zip(self, (group, *where), strict=True))

    @property
    def deleted_topic(self) -> str | None:
        """The topic, if the whole of it was deleted."""
        return self.topic if self.group is None else None


class Unknown(NamedTuple):
    """A broker was asked for a topic that it does not know."""

    topic: str


class Counted(NamedTuple):
    """The number of partitions that a topic has."""

    topic: str
    partitions: int
    is_new: bool
    """True if the topic was created with them."""


# ── the cluster, and its clients' connections ────────────────────────────────────────────────


class Led(NamedTuple):
    """The leader of a partition was named (Metadata, DescribeTopicPartitions; beside an error also
    Produce and Fetch, without the replicas)."""

    where: TopicPartition
    leader: int
    """−1 if it has none."""
    in_sync: tuple[int, ...]
    replicas: tuple[int, ...]
    """Empty where they are not told."""


class ClusterDescribed(NamedTuple):
    """The brokers of the cluster were named (Metadata, DescribeCluster)."""

    cluster: str
    """The cluster's id; "" if it is not told."""
    controller: int
    """−1 if it is not told."""
    nodes: tuple[int, ...]


class Versions(NamedTuple):
    """A broker told which versions it takes (ApiVersions)."""

    ranges: tuple[tuple[int, int, int], ...]
    """API key, least and greatest version."""


class InSession(NamedTuple):
    """A Fetch was answered in a fetch session (KIP-227)."""

    session: int
    is_new: bool


class Throttled(NamedTuple):
    """A broker told a client to wait, for a quota is exceeded."""

    throttle_ms: int


class Denied(NamedTuple):
    """A broker refused a client what its user may not do."""

    error: str
    name: str
    """The topic, group or transactional id; "" for the cluster."""


class Handshake(NamedTuple):
    """A client chose a mechanism to log in (SaslHandshake)."""

    mechanism: str
    offered: tuple[str, ...]
    error: str


class Authenticated(NamedTuple):
    """A client took a step of its login (SaslAuthenticate)."""

    message: str
    """What the broker says of a failure."""
    error: str


Row = (
    Joined | Assigned | Beat | Left | CommitRequested | Commit | OffsetsFetched | Coordinator
    | Initialized | AddedToTxn | Ended | Aborted
    | Appended | FetchPosition | Forgotten | Read | Bound | Deleted | Counted | Unknown
    | Led | ClusterDescribed | Versions | InSession | Throttled | Denied | Handshake | Authenticated
)  # fmt: skip
