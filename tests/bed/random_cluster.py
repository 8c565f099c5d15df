"""Random traffic of a small cluster, as a recording shows it: coherent, with what goes wrong.

A step is a request of a client; its fate says whether the broker acts on it, and what comes back.
The cluster keeps logs, offsets and epochs, so what is answered is what a broker would answer.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict

from kproxy.exchange import notes
from kproxy.wire.protocol import error_code, records
from kproxy.wire.protocol import messages as M
from kproxy.wire.protocol.record_batch import Record
from tests.exchange.batches import marker
from tests.exchange.bodies import assignment, fetch_request, produce_request
from tests.exchange.making import MS, START_NS, unanswered
from tests.look.why.traffic import Traffic

ANSWERED, REFUSED, LOST, KEPT = "answered", "refused", "lost", "kept"
"""The fates of a request: LOST is the response, KEPT the request, by a fault rule."""
TOPICS = {"orders": 2, "events": 1}
GROUPS = ("billing", "audit")
TRANSACTIONAL_IDS = {"pay": 100, "ship": 200}
"""Transactional id → the id of its producer."""

Where = tuple[str, int]


class RandomCluster:
    """A cluster and its clients; `run` makes so many requests."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.traffic = Traffic()
        self.at_ms = 0
        self.ends: defaultdict[Where, int] = defaultdict(int)
        self.batches: defaultdict[Where, list[tuple[int, bytes]]] = defaultdict(list)
        self.sequences: defaultdict[tuple[int, int, Where], int] = defaultdict(int)
        """Producer id, epoch and partition → the next sequence."""
        self.written: dict[tuple[int, int, Where, int], int] = {}
        """The same, and base sequence → the offset of the batch."""
        self.unsure: dict[int, tuple[Where, bytes, int, int, int]] = {}
        """Producer id → the batch that it sends again."""
        self.epochs: dict[str, int] = dict.fromkeys(TRANSACTIONAL_IDS, 0)
        self.begun: defaultdict[str, set[Where]] = defaultdict(set)
        """Transactional id → the partitions of its transaction."""
        self.owed: dict[str, str] = {}
        """Transactional id → the request that its client must have answered before all others."""
        self.offsets_sent: Counter[str] = Counter()
        self.positions: defaultdict[tuple[str, Where], int] = defaultdict(int)
        self.members: dict[str, list[str]] = {group: [] for group in GROUPS}
        self.generations: dict[str, int] = dict.fromkeys(GROUPS, 0)
        self.made = 0

    def run(self, count: int) -> Traffic:
        """Make requests; return the traffic."""
        self._metadata()
        for name in TRANSACTIONAL_IDS:
            self._initialize(name, ANSWERED)
        names = [name for name, weight in _STEPS.items() for _ in range(weight)]
        for _ in range(count):
            getattr(self, self.random.choice(names))()
        return self.traffic

    # ---- one request

    def _fate(self) -> str:
        return self.random.choices((ANSWERED, REFUSED, LOST, KEPT), (16, 2, 2, 1))[0]

    def _ask(self, fate: str, client: str, api: str, version: int, asked, answered) -> None:
        self.at_ms += self.random.randint(1, 9)
        back = answered if fate in (ANSWERED, REFUSED) else None
        self.traffic.add(self.at_ms, api, version, asked, back, client=client)
        if fate == KEPT:
            self.traffic.kept()
        elif fate == LOST and back is None and self.random.random() < 0.8:
            self.traffic.entries.append(unanswered(self.traffic.entries[-1]))

    def _where(self) -> Where:
        topic = self.random.choice([*TOPICS])
        return topic, self.random.randrange(TOPICS[topic])

    def _gap(self) -> None:
        at_ns = START_NS + self.at_ms * MS
        self.traffic.entries.append(notes.lost(3, 100, "the disk is full", at_ns, at_ns + 1))

    # ---- topics

    def _metadata(self) -> None:
        R = M.MetadataResponse
        topics = [
            R.MetadataResponseTopic(
                name=topic,
                partitions=[R.MetadataResponsePartition(partition_index=i) for i in range(many)],
            )
            for topic, many in TOPICS.items()
        ]
        self._ask(ANSWERED, "admin", "Metadata", 8, M.MetadataRequest(), R(topics=topics))

    def _delete_topic(self) -> None:
        topic, fate = self.random.choice([*TOPICS]), self._fate()
        told = M.DeleteTopicsResponse.DeletableTopicResult(
            name=topic, error_code=29 if fate == REFUSED else 0
        )
        asked = M.DeleteTopicsRequest(topic_names=[topic])
        answered = M.DeleteTopicsResponse(responses=[told])
        self._ask(fate, "admin", "DeleteTopics", 4, asked, answered)
        if fate != ANSWERED:
            return  # what nobody answered was not done here
        for number in range(TOPICS[topic]):
            where = topic, number
            self.ends.pop(where, None)
            self.batches.pop(where, None)
            for key in [each for each in self.written if each[2] == where]:
                del self.written[key]
            for key in [each for each in self.positions if each[1] == where]:
                del self.positions[key]
        A, R = M.CreateTopicsRequest, M.CreateTopicsResponse
        asked = A(topics=[A.CreatableTopic(name=topic, num_partitions=TOPICS[topic])])
        answered = R(topics=[R.CreatableTopicResult(name=topic)])
        self._ask(ANSWERED, "admin", "CreateTopics", 4, asked, answered)

    # ---- records

    def _append(self, where: Where, data: bytes, many: int) -> int:
        offset = self.ends[where]
        self.batches[where].append((offset, offset.to_bytes(8) + data[8:]))
        self.ends[where] += many
        return offset

    def _produce(self) -> None:
        """A producer without ids writes, with an answer or without one."""
        where, many = self._where(), self.random.randint(1, 4)
        data = records.encode_batch([self._record(i) for i in range(many)])
        acks, fate = self.random.choice((-1, 0, 1)), self._fate()
        self._write("plain", where, data, many, fate, acks=acks)

    def _record(self, place: int) -> Record:
        self.made += 1
        return Record(place, 0, b"k%d" % self.random.randrange(5), b"v%d" % self.made)

    def _write(self, client, where, data, many, fate, name=None, numbers=None, acks=-1) -> None:
        topic, partition = where
        code, offset = 0, -1
        if fate == REFUSED:
            code = error_code(self.random.choice(("NOT_LEADER_OR_FOLLOWER", "REQUEST_TIMED_OUT")))
        if fate in (ANSWERED, LOST) or (code == error_code("REQUEST_TIMED_OUT")):
            known = self.written.get((*numbers[:2], where, numbers[2])) if numbers else None
            offset = self._append(where, data, many) if known is None else known
            if numbers:
                self.written[(*numbers[:2], where, numbers[2])] = offset
        asked = produce_request({partition: data}, topic, transactional_id=name)
        asked.acks = acks
        P = M.ProduceResponse
        told = P.PartitionProduceResponse(index=partition, base_offset=offset, error_code=code)
        answered = P(responses=[P.TopicProduceResponse(name=topic, partition_responses=[told])])
        if acks == 0 and fate != KEPT:
            self._ask(LOST, client, "Produce", 8, asked, None)
            return
        self._ask(fate, client, "Produce", 8, asked, answered)

    def _produce_numbered(self, producer_id: int = 11, epoch: int = 0, name=None, client="idem"):
        """An idempotent producer writes, or writes again what was not answered."""
        fate = self._fate()
        if producer_id in self.unsure:
            where, data, many, sent_epoch, sequence = self.unsure.pop(producer_id)
            if sent_epoch != epoch:
                return
        else:
            where, many = self._where(), self.random.randint(1, 4)
            sequence = self.sequences[producer_id, epoch, where]
            data = records.encode_batch(
                [self._record(i) for i in range(many)], producer_id=producer_id,
                producer_epoch=epoch, base_sequence=sequence, transactional=name is not None,
            )  # fmt: skip
        if name is not None and not self._add(name, where):
            return
        self._write(client, where, data, many, fate, name, (producer_id, epoch, sequence))
        if fate == ANSWERED:
            self.sequences[producer_id, epoch, where] = sequence + many
        else:
            self.unsure[producer_id] = where, data, many, epoch, sequence

    def _fetch(self) -> None:
        group, where = self.random.choice(GROUPS), self._where()
        topic, partition = where
        key, fate = (group, where), self._fate()
        if self.random.random() < 0.1:
            self.positions[key] = 0
        at = self.positions[key]
        batches = [(first, data) for first, data in self.batches[where] if first >= at][:3]
        F = M.FetchResponse
        told = F.PartitionData(
            partition_index=partition, high_watermark=self.ends[where],
            last_stable_offset=self.ends[where], log_start_offset=0,
            records=b"".join(data for _, data in batches),
            error_code=6 if fate == REFUSED else 0,
        )  # fmt: skip
        if fate == REFUSED:
            told.records, told.high_watermark = None, -1
        answered = F(responses=[F.FetchableTopicResponse(topic=topic, partitions=[told])])
        asked = fetch_request({partition: at}, topic)
        self._ask(fate, f"{group}-app", "Fetch", 11, asked, answered)
        if fate == ANSWERED and batches:
            last = self.batches[where].index(batches[-1]) + 1
            rest = self.batches[where][last:]
            self.positions[key] = rest[0][0] if rest else self.ends[where]

    # ---- offsets

    def _offset(self, where: Where) -> int:
        return self.random.randint(0, self.ends[where])

    def _commit(self) -> None:
        group, where, fate = self.random.choice(GROUPS), self._where(), self._fate()
        offset = self._offset(where)
        topic, partition = where
        A, R = M.OffsetCommitRequest, M.OffsetCommitResponse
        wanted = A.OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
        asked = A(
            group_id=group, topics=[A.OffsetCommitRequestTopic(name=topic, partitions=[wanted])]
        )
        asked.generation_id_or_member_epoch = self.generations[group]
        told = R.OffsetCommitResponsePartition(
            partition_index=partition, error_code=22 if fate == REFUSED else 0
        )
        answered = R(topics=[R.OffsetCommitResponseTopic(name=topic, partitions=[told])])
        self._ask(fate, f"{group}-app", "OffsetCommit", 7, asked, answered)

    def _delete_group(self) -> None:
        group, fate = self.random.choice(GROUPS), self._fate()
        code = 68 if fate == REFUSED else 0
        told = M.DeleteGroupsResponse.DeletableGroupResult(group_id=group, error_code=code)
        asked = M.DeleteGroupsRequest(groups_names=[group])
        answered = M.DeleteGroupsResponse(results=[told])
        self._ask(fate, "admin", "DeleteGroups", 1, asked, answered)

    def _delete_offset(self) -> None:
        group, (topic, partition), fate = self.random.choice(GROUPS), self._where(), self._fate()
        A, R = M.OffsetDeleteRequest, M.OffsetDeleteResponse
        wanted = [A.OffsetDeleteRequestPartition(partition_index=partition)]
        asked = A(
            group_id=group, topics=[A.OffsetDeleteRequestTopic(name=topic, partitions=wanted)]
        )
        code = 86 if fate == REFUSED else 0
        told = [R.OffsetDeleteResponsePartition(partition_index=partition, error_code=code)]
        answered = R(topics=[R.OffsetDeleteResponseTopic(name=topic, partitions=told)])
        self._ask(fate, "admin", "OffsetDelete", 0, asked, answered)

    # ---- transactions

    def _initialize(self, name: str = "", fate: str = "") -> None:
        name, fate = name or self.random.choice([*TRANSACTIONAL_IDS]), fate or self._fate()
        asked = M.InitProducerIdRequest(
            transactional_id=name, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
        )
        epoch = self.epochs[name] + (fate in (ANSWERED, LOST))
        answered = M.InitProducerIdResponse(
            error_code=51 if fate == REFUSED else 0,
            producer_id=TRANSACTIONAL_IDS[name], producer_epoch=epoch,
        )  # fmt: skip
        self._ask(fate, f"{name}-app", "InitProducerId", 4, asked, answered)
        if fate in (ANSWERED, LOST):
            self.epochs[name] = epoch
            self._over(name, commits=False)
        self.owed[name] = "" if fate == ANSWERED else "InitProducerId"

    def _over(self, name: str, *, commits: bool) -> None:
        for where in sorted(self.begun.pop(name, ())):
            data = marker(commits, self.ends[where], TRANSACTIONAL_IDS[name])
            self._append(where, data, 1)
        self.offsets_sent.pop(name, None)
        self.unsure.pop(TRANSACTIONAL_IDS[name], None)

    def _ready(self) -> str:
        """Return a transactional id whose client is not waiting for an answer; "" if there is none,
        and its client does what it owes instead."""
        name = self.random.choice([*TRANSACTIONAL_IDS])
        match self.owed.get(name):
            case "InitProducerId":
                self._initialize(name)
            case "commit" | "abort" as owed:
                if self.random.random() < 0.5 and TRANSACTIONAL_IDS[name] not in self.unsure:
                    self._end(name, owed == "commit")
                else:
                    self._initialize(name)
            case _:
                return name
        return ""

    def _produce_in_transaction(self) -> None:
        if name := self._ready():
            self._produce_numbered(
                TRANSACTIONAL_IDS[name], self.epochs[name], name, client=f"{name}-app"
            )

    def _add(self, name: str, where: Where) -> bool:
        """Add a partition to the transaction; return whether the broker said so."""
        if where in self.begun[name]:
            return True
        fate = self._fate()
        A, R = M.AddPartitionsToTxnRequest, M.AddPartitionsToTxnResponse
        asked = A(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=TRANSACTIONAL_IDS[name],
            v3_and_below_producer_epoch=self.epochs[name],
            v3_and_below_topics=[A.AddPartitionsToTxnTopic(name=where[0], partitions=[where[1]])],
        )
        told = R.AddPartitionsToTxnPartitionResult(
            partition_index=where[1], partition_error_code=51 if fate == REFUSED else 0
        )
        topic = R.AddPartitionsToTxnTopicResult(name=where[0], results_by_partition=[told])
        answered = R(results_by_topic_v3_and_below=[topic])
        self._ask(fate, f"{name}-app", "AddPartitionsToTxn", 3, asked, answered)
        if fate == ANSWERED:
            self.begun[name].add(where)
        return fate == ANSWERED

    def _commit_in_transaction(self) -> None:
        name, group = self._ready(), self.random.choice(GROUPS)
        if not name:
            return
        where, fate = self._where(), self._fate()
        topic, partition = where
        A, R = M.TxnOffsetCommitRequest, M.TxnOffsetCommitResponse
        offset = self._offset(where)
        wanted = A.TxnOffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset
        )
        asked = A(
            transactional_id=name, group_id=group, producer_id=TRANSACTIONAL_IDS[name],
            producer_epoch=self.epochs[name],
            topics=[A.TxnOffsetCommitRequestTopic(name=topic, partitions=[wanted])],
        )  # fmt: skip
        told = R.TxnOffsetCommitResponsePartition(
            partition_index=partition, error_code=14 if fate == REFUSED else 0
        )
        answered = R(topics=[R.TxnOffsetCommitResponseTopic(name=topic, partitions=[told])])
        self._ask(fate, f"{name}-app", "TxnOffsetCommit", 3, asked, answered)
        self.offsets_sent[name] += fate == ANSWERED

    def _end_one(self) -> None:
        name = self._ready()
        if name and (self.begun[name] or self.offsets_sent[name]):
            unsure = TRANSACTIONAL_IDS[name] in self.unsure
            self._end(name, not unsure and self.random.random() < 0.7)

    def _end(self, name: str, commits: bool) -> None:
        fate = self._fate()
        asked = M.EndTxnRequest(
            transactional_id=name, producer_id=TRANSACTIONAL_IDS[name],
            producer_epoch=self.epochs[name], committed=commits,
        )  # fmt: skip
        answered = M.EndTxnResponse(error_code=51 if fate == REFUSED else 0)
        self._ask(fate, f"{name}-app", "EndTxn", 3, asked, answered)
        unsure = TRANSACTIONAL_IDS[name] in self.unsure  # its sequences are lost: a new epoch
        if fate in (ANSWERED, LOST):
            self._over(name, commits=commits)
        owed = "InitProducerId" if unsure else ""
        self.owed[name] = owed if fate == ANSWERED else "commit" if commits else "abort"

    # ---- members

    def _join(self) -> None:
        group, fate = self.random.choice(GROUPS), self._fate()
        there = self.members[group]
        member = self.random.choice([*there, f"{group}-m{len(there)}-{self.at_ms}"])
        client = f"{group}-app"
        members = [*dict.fromkeys([*there, member])]
        J = M.JoinGroupResponse
        error = 25 if fate == REFUSED else 0
        generation = self.generations[group] + (fate in (ANSWERED, LOST))
        asked = M.JoinGroupRequest(
            group_id=group, member_id=member, session_timeout_ms=6000, protocol_type="consumer"
        )
        found = [J.JoinGroupResponseMember(member_id=each) for each in members]
        answered = J(
            error_code=error, generation_id=-1 if error else generation, member_id=member,
            leader=member, members=[] if error else found,
        )  # fmt: skip
        self._ask(fate, client, "JoinGroup", 8, asked, answered)
        if fate not in (ANSWERED, LOST):
            return
        self.generations[group], self.members[group] = generation, members
        if fate == ANSWERED:
            topic, partition = self._where()
            asked = M.SyncGroupRequest(group_id=group, generation_id=generation, member_id=member)
            answered = M.SyncGroupResponse(assignment=assignment(topic, partition))
            self._ask(ANSWERED, client, "SyncGroup", 3, asked, answered)

    def _leave(self) -> None:
        group, fate = self.random.choice(GROUPS), self._fate()
        there = self.members[group]
        if not there:
            return
        gone = self.random.sample(there, self.random.randint(1, min(2, len(there))))
        A, R = M.LeaveGroupRequest, M.LeaveGroupResponse
        asked = A(group_id=group, members=[A.MemberIdentity(member_id=each) for each in gone])
        refused = gone[:1] if fate == REFUSED else []
        answered = R(
            members=[
                R.MemberResponse(member_id=each, error_code=25 if each in refused else 0)
                for each in gone
            ]
        )
        self._ask(fate, f"{group}-app", "LeaveGroup", 4, asked, answered)
        if fate != KEPT:
            left = [each for each in there if each not in gone or each in refused]
            self.members[group] = left

    def _beat(self) -> None:
        group, fate = self.random.choice(GROUPS), self._fate()
        if not self.members[group]:
            return
        asked = M.HeartbeatRequest(
            group_id=group, generation_id=self.generations[group],
            member_id=self.random.choice(self.members[group]),
        )  # fmt: skip
        answered = M.HeartbeatResponse(error_code=27 if fate == REFUSED else 0)
        self._ask(fate, f"{group}-app", "Heartbeat", 3, asked, answered)

    def _consumer_beat(self) -> None:
        """A member of the protocol of KIP-848 comes, stays, or goes."""
        fate, epoch = self._fate(), self.random.choice((0, 0, 4, 4, -1))
        asked = M.ConsumerGroupHeartbeatRequest(
            group_id="new", member_id=f"n{self.random.randrange(3)}", member_epoch=epoch,
            subscribed_topic_names=["orders"] if epoch == 0 else None,
            topic_partitions=[] if epoch == 0 else None,
        )  # fmt: skip
        answered = M.ConsumerGroupHeartbeatResponse(
            error_code=25 if fate == REFUSED else 0, member_id=asked.member_id,
            member_epoch=0 if fate == REFUSED else epoch if epoch < 0 else 4,
        )  # fmt: skip
        self._ask(fate, "new-app", "ConsumerGroupHeartbeat", 1, asked, answered)


_STEPS: dict[str, int] = {
    "_produce": 8, "_produce_numbered": 6, "_produce_in_transaction": 8, "_fetch": 14, "_commit": 8,
    "_commit_in_transaction": 5, "_end_one": 6, "_initialize": 2, "_join": 3, "_leave": 2,
    "_beat": 3, "_consumer_beat": 3, "_delete_topic": 1, "_delete_group": 1, "_delete_offset": 1,
    "_gap": 1,
}  # fmt: skip
"""The requests, and how often each comes."""
