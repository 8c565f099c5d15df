"""Makes recordings of which stories are told: exchanges at given times."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from kproxy.exchange import notes
from kproxy.exchange.endings import SideEnd
from kproxy.exchange.entries import (
    FAULTED,
    INJECTED,
    REWRITTEN,
    WITHHELD,
    Entry,
    Frame,
    Note,
    Side,
)
from kproxy.look.why.stories import show_why
from kproxy.wire.protocol import error_code, messages, schema
from kproxy.wire.protocol.record_batch import BATCH_HEADER
from tests.exchange.batches import batch
from tests.exchange.bodies import assignment, produce_request, produce_response
from tests.exchange.making import MS, START_NS, opened, request, response, unanswered
from tests.recording.making import write

M = messages
SECOND = 1000 * MS


class Traffic:
    """Makes exchanges at given times, in milliseconds from the start."""

    def __init__(self) -> None:
        self.entries: list = [opened(1, node_id=1), opened(2, node_id=1)]
        self.number = 0

    def add(self, time_ms, api, version, asked, answered, took_ms=1, connection=1, client="a"):
        """An exchange; without an answer, a request. Returns its number."""
        self.number += 1
        frame = request(api, version, asked, self.number, connection)
        old = frame.data
        name = (client or "").encode()
        length = (-1 if client is None else len(name)).to_bytes(2, signed=True)
        rest = old[4:12] + length + name + old[17:]
        data = len(rest).to_bytes(4) + rest
        at = START_NS + time_ms * MS
        frame = attrs.evolve(
            frame, received_ns=at, sent_ns=at, pieces=[data], frame_bytes=len(data)
        )
        self.entries.append(frame)
        if answered is not None:
            back = response(frame, answered)
            done = at + round(took_ms * MS)
            self.entries.append(attrs.evolve(back, received_ns=done, sent_ns=done))
        return self.number

    def inject(self) -> None:
        """Make the last response one that kproxy made."""
        last = self.entries.pop()
        self.entries.append(attrs.evolve(last, flags=last.flags | INJECTED))

    def by_rule(self, flags: int, rule: str = "eat", **changes) -> None:
        """Make the last frame one that a fault rule touched."""
        last = self.entries.pop()
        rules = [{"fault_id": 1, "name": rule, "rule": {"api": "*"}}]
        self.entries.append(notes.fault_rules(START_NS, 1, rules))
        flags |= last.flags | FAULTED
        self.entries.append(attrs.evolve(last, flags=flags, fault_ids=[1], **changes))

    def kept(self, rule: str = "eat") -> None:
        """Make the last request one that a rule kept from the broker."""
        self.by_rule(WITHHELD, rule, sent_ns=0)
        last = self.entries[-1]
        over_ns = last.received_ns + 9 * SECOND
        self.entries.append(attrs.evolve(unanswered(last), received_ns=over_ns))

    def told(self, error: str, offset: int, rule: str = "eat") -> None:
        """Have a rule put an error into the last response, behind the broker."""
        self.by_rule(REWRITTEN, rule, splices=[(offset, 2, error_code(error).to_bytes(2))])

    def fault(self, number: int, action: str, phase: str, rule: str = "eat", **what) -> None:
        """The note on a rule that fired on an exchange."""
        note = notes.fault(START_NS, rule, 7, number, 1, action=action, phase=phase, **what)
        self.entries.append(note)

    def rewrite(self, told, rule: str = "eat", action: str = "error") -> None:
        """Have a rule tell the client something else than the broker answered last."""
        last = self.entries.pop()
        splice = 4, last.frame_bytes - 4, response(last, told).data[4:]
        flags = last.flags | FAULTED | REWRITTEN
        self.entries.append(attrs.evolve(last, flags=flags, splices=[splice], fault_ids=[7]))
        about = {"fault_id": 7, "name": rule, "rule": {}}
        self.entries.append(notes.fault_rules(START_NS, 1, [about]))
        self.fault(last.number, action, "after", rule)

    def recorded(self, tmp_path):
        """The recording of it, in order of time."""
        path = tmp_path / "story.mcap"
        path.unlink(missing_ok=True)
        write(path, [[*ended(sorted(self.entries, key=lambda entry: entry.time_ns))]])
        return path

    def story(self, tmp_path, key, value) -> list[str]:
        """What `kproxy why` says."""
        out = io.StringIO()
        show_why([self.recorded(tmp_path)], key, value, out)
        return out.getvalue().splitlines()


def ended(entries: list[Entry]) -> Iterator[Entry]:
    """Entries, with those that name the requests that nothing answers any more."""
    pending: dict[int, Frame] = {}
    for entry in entries:
        if isinstance(entry, Frame):
            pending.pop(entry.number, None)
            if entry.side is Side.CLIENT:
                pending[entry.number] = entry
        elif isinstance(entry, Note) and entry.body["event"] == "closed":
            for each in list(pending.values()):
                if each.connection == entry.body["connection"]:
                    frame = unanswered(pending.pop(each.number))
                    yield attrs.evolve(frame, received_ns=entry.time_ns)
        yield entry


def ends(traffic: Traffic, at: int, side: str = "client", connection: int = 1) -> None:
    """A connection ends, first by this side, at a time in milliseconds."""
    about = {"client_address": f"127.0.0.1:{5000 + connection}"}
    side_ends = [SideEnd(side, "reset", START_NS + at * MS)]
    at_ns = START_NS + at * MS
    traffic.entries.append(notes.closed(connection, at_ns, about, "reset", "", side, side_ends))


def numbered(producer_id: int, epoch: int, sequence: int, records: int = 1) -> bytes:
    """A batch of an idempotent producer."""
    data = batch(records, value=b"%d" % sequence)
    head = list(BATCH_HEADER.unpack_from(data))
    head[9:12] = producer_id, epoch, sequence
    return BATCH_HEADER.pack(*head) + data[BATCH_HEADER.size :]


def body(name: str, **given: Any) -> Any:
    """A message of Kafka; structs in it are given as dicts."""
    return _made(getattr(M, name), name, schema.named(name).fields, given)


def _made(kind: Any, name: str, fields: Sequence[schema.Field], given: dict[str, Any]) -> Any:
    by_name = {each.name: each for each in fields}

    def value(field: schema.Field, found: Any) -> Any:
        if not field.fields or found is None:
            return found
        inner = getattr(getattr(M, name), field.element)
        made = [
            _made(inner, name, field.fields, each)
            for each in (found if field.is_array else [found])
        ]
        return made if field.is_array else made[0]

    return kind(**{key: value(by_name[key], each) for key, each in given.items()})


def produce(data: bytes, partition: int = 0, error: str = "NONE", topic: str = "orders"):
    """A Produce of one batch; what it was answered."""
    code = error_code(error)
    asked = produce_request({partition: data}, topic)
    offset = -1 if code else 7
    return "Produce", 8, asked, produce_response({partition: offset}, code, topic)


def initialized(name: str, producer_id: int, epoch: int):
    asked = M.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
    told = M.InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch)
    return "InitProducerId", 1, asked, told


def metadata(leaders: dict[int, int], topic: str = "orders", error_code: int = 0):
    """A Metadata of one topic: partition → leader."""
    partitions = [
        {
            "partition_index": n,
            "leader_id": leader,
            "replica_nodes": [1, 2, 3],
            "isr_nodes": [leader],
        }
        for n, leader in leaders.items()
    ]
    found = {"name": topic, "partitions": partitions, "error_code": error_code}
    brokers = [{"node_id": 1, "host": "b", "port": 1}]
    told = body("MetadataResponse", brokers=brokers, topics=[found])
    return "Metadata", 8, body("MetadataRequest", topics=[{"name": topic}]), told


def join(member: str, generation: int, members=(), leader: str = "m-a", **given):
    about = {"group_id": "billing", "session_timeout_ms": 6000, "protocol_type": "consumer"}
    asked = M.JoinGroupRequest(**(about | {"member_id": member} | given))
    found = [{"member_id": each} for each in members]
    told = {"generation_id": generation, "member_id": member, "leader": leader, "members": found}
    return "JoinGroup", 8, asked, body("JoinGroupResponse", **told)


def sync(member: str, generation: int, *owned: int):
    asked = M.SyncGroupRequest(group_id="billing", generation_id=generation, member_id=member)
    return "SyncGroup", 3, asked, M.SyncGroupResponse(assignment=assignment("orders", *owned))


def beat(member: str, generation: int, error_code: int = 0):
    asked = M.HeartbeatRequest(group_id="billing", generation_id=generation, member_id=member)
    return "Heartbeat", 3, asked, M.HeartbeatResponse(error_code=error_code)


def listed(timestamp: int, offset: int, partition: int = 0):
    """A ListOffsets of one partition."""
    wanted = {"partition_index": partition, "timestamp": timestamp}
    found = {"partition_index": partition, "offset": offset}
    asked = body("ListOffsetsRequest", topics=[{"name": "orders", "partitions": [wanted]}])
    told = body("ListOffsetsResponse", topics=[{"name": "orders", "partitions": [found]}])
    return "ListOffsets", 2, asked, told


def leave(member: str = "", version: int = 1, **about: str):
    """A LeaveGroup of a member; what else is said of it."""
    asked = body("LeaveGroupRequest", group_id="billing", member_id=member)
    if version >= 3:
        found = {"member_id": member, **about}
        asked = body("LeaveGroupRequest", group_id="billing", members=[found])
    return "LeaveGroup", version, asked, M.LeaveGroupResponse()


def two_members() -> Traffic:
    traffic = Traffic()
    traffic.add(0, *join("m-a", 3, ["m-a", "m-b"]), client="fast")
    traffic.add(0, *join("m-b", 3), connection=2, client="slow")
    traffic.add(10, *sync("m-a", 3, 0, 1), client="fast")
    traffic.add(10, *sync("m-b", 3, 2, 3), connection=2, client="slow")
    return traffic
