"""Groups form again, whatever moments make of them: members and a coordinator, by seeds.

The coordinator does what Kafka's does for classic groups: it answers a JoinGroup when all members
have joined, or, of a group that was empty, behind `group.initial.rebalance.delay.ms`, with whoever
has come by then; where the one who led has gone, any other leads.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Generator
from typing import Any

import attrs
import pytest

from kproxy.wire.protocol import codes, messages
from tests.exchange.making import MS, START_NS, request, response
from tests.send.made_up import Later, MadeUp
from tests.versions import ALL

After = Callable[[int, Callable[[], None]], None]
Reply = Callable[[Any], None]


class Coordinator:
    """Of one group."""

    def __init__(self, after: After, chance: random.Random, delay_ns: int, gives_ids: bool) -> None:
        self.after, self.chance, self.delay_ns = after, chance, delay_ns
        self.gives_ids = gives_ids
        """Members come with an id that was given them (KIP-394)."""
        self.state, self.generation, self.leader = "Empty", 0, ""
        self.given: set[str] = set()
        self.members: dict[str, Reply | None] = {}
        """Who waits for the answer to JoinGroup, or does not."""
        self.syncing: dict[str, Reply] = {}
        self.assigned: dict[str, bytes] = {}

    def ask(self, body: Any, reply: Reply) -> None:
        """Answer a request, now or later."""
        name = type(body).__name__.removesuffix("Request")
        getattr(self, f"_{name}")(body, reply)

    def _JoinGroup(self, body: Any, reply: Reply) -> None:
        kind, member = messages.JoinGroupResponse, body.member_id
        if not member:
            member = f"{self.chance.getrandbits(32):08x}"
            self.given.add(member)
            if self.gives_ids:
                reply(kind(error_code=codes.MEMBER_ID_REQUIRED, member_id=member))
                return
        if member not in self.given | self.members.keys():
            reply(kind(error_code=codes.UNKNOWN_MEMBER_ID, member_id=member))
        elif member in self.members and (
            self.state == "Completing" or (self.state == "Stable" and member != self.leader)
        ):
            reply(self._joined(member))
        else:
            self.given.discard(member)
            self.members[member] = reply
            self._prepare()

    def _prepare(self) -> None:
        was_empty = self.state == "Empty"
        for each in self.syncing.values():
            each(messages.SyncGroupResponse(error_code=codes.REBALANCE_IN_PROGRESS))
        self.syncing = {}
        if was_empty:
            generation = self.generation

            def complete() -> None:
                if (self.state, self.generation) == ("Initial", generation):
                    self._complete()

            self.after(self.delay_ns, complete)
        if self.state != "Initial":
            self.state = "Initial" if was_empty else "Preparing"
            self._complete_if_all()

    def _complete_if_all(self) -> None:
        if self.state == "Preparing" and self.members and all(self.members.values()):
            self._complete()

    def _complete(self) -> None:
        self.generation += 1
        self.state = "Completing"
        if self.leader not in self.members:
            self.leader = self.chance.choice(sorted(self.members))
        replies, self.members = self.members, dict.fromkeys(self.members)
        for member, reply in replies.items():
            assert reply
            reply(self._joined(member))

    def _joined(self, member: str) -> Any:
        kind = messages.JoinGroupResponse
        about = {"generation_id": self.generation, "leader": self.leader, "member_id": member}
        is_leader = member == self.leader
        listed = [kind.JoinGroupResponseMember(member_id=each) for each in self.members]
        return kind(**about, members=listed if is_leader else [])

    def _refusal(self, body: Any) -> int:
        if body.member_id not in self.members:
            return codes.UNKNOWN_MEMBER_ID
        if body.generation_id != self.generation:
            return codes.ILLEGAL_GENERATION
        preparing = self.state in ("Preparing", "Initial")
        return codes.REBALANCE_IN_PROGRESS if preparing else codes.NONE

    def _SyncGroup(self, body: Any, reply: Reply) -> None:
        kind, member = messages.SyncGroupResponse, body.member_id
        if error := self._refusal(body):
            reply(kind(error_code=error))
            return
        if self.state == "Completing":
            self.syncing[member] = reply
            if member != self.leader:
                return
            self.assigned = {each.member_id: each.assignment for each in body.assignments}
            self.state = "Stable"
            waiting, self.syncing = self.syncing, {}
        else:
            waiting = {member: reply}
        for each, answer in waiting.items():
            answer(kind(assignment=self.assigned.get(each, b"")))

    def _Heartbeat(self, body: Any, reply: Reply) -> None:
        reply(messages.HeartbeatResponse(error_code=self._refusal(body)))

    def _LeaveGroup(self, body: Any, reply: Reply) -> None:
        kind = messages.LeaveGroupResponse
        is_member = body.member_id in self.members
        reply(kind(error_code=0 if is_member else codes.UNKNOWN_MEMBER_ID))
        if is_member:
            del self.members[body.member_id]
            if not self.members:
                self.state = "Empty"
            else:
                self._prepare()
                self._complete_if_all()


# ---- what is recorded

Member = Generator[Any, Any, None]
"""Yields a request, or the milliseconds that it waits; gets the response."""


def member(begins_ms: int, heartbeats: int, every_ms: int) -> Member:
    """A member that stays for so many heartbeats of which none is refused, and then leaves."""
    kind, member_id = messages.JoinGroupRequest, ""
    yield begins_ms
    while heartbeats > 0:
        joined = yield kind(group_id="g", member_id=member_id)
        member_id = joined.member_id
        if joined.error_code:
            continue
        about = {"group_id": "g", "member_id": member_id, "generation_id": joined.generation_id}
        assigned = messages.SyncGroupRequest.SyncGroupRequestAssignment
        everyone = enumerate(each.member_id for each in joined.members)
        listed = [assigned(member_id=each, assignment=b"%d" % n) for n, each in everyone]
        answer = yield messages.SyncGroupRequest(**about, assignments=listed)
        while not answer.error_code and heartbeats > 0:
            yield every_ms
            heartbeats -= 1
            answer = yield messages.HeartbeatRequest(**about)
    yield messages.LeaveGroupRequest(group_id="g", member_id=member_id)


@attrs.define
class Recording:
    """Members and a coordinator, and the frames between them."""

    chance: random.Random
    delay_ns: int
    gives_ids: bool
    frames: list[Any] = attrs.field(factory=list)
    _events: list[Any] = attrs.field(factory=list)
    _numbers: Any = attrs.field(factory=lambda: itertools.count(1))
    _now_ns: int = START_NS

    def after(self, delay_ns: int, event: Callable[[], None]) -> None:
        """Have something happen."""
        heapq.heappush(self._events, (self._now_ns + delay_ns, next(self._numbers), event))

    def run(self, members: list[Member]) -> list[Any]:
        """Return the frames."""
        group = Coordinator(self.after, self.chance, self.delay_ns, self.gives_ids)
        for connection, each in enumerate(members, 1):
            self._go_on(group, each, connection, None)
        while self._events:
            self._now_ns, _, event = heapq.heappop(self._events)
            event()
        return sorted(self.frames, key=lambda each: each.received_ns)

    def _latency_ns(self) -> int:
        return self.chance.randint(1, 4 * MS)

    def _go_on(self, group: Coordinator, each: Member, connection: int, answer: Any) -> None:
        try:
            body = each.send(answer)
        except StopIteration:
            return
        if isinstance(body, int):
            self.after(body * MS + 1, lambda: self._go_on(group, each, connection, None))
            return
        times = dict.fromkeys(("received_ns", "sent_ns"), self._now_ns)
        name = type(body).__name__.removesuffix("Request")
        versions = {"JoinGroup": 5 if self.gives_ids else 3, "LeaveGroup": 1}
        version = versions.get(name, 3)
        asked = request(name, version, body, next(self._numbers), connection, **times)
        self.frames.append(asked)

        def reply(body: Any) -> None:
            def take() -> None:
                times = dict.fromkeys(("received_ns", "sent_ns"), self._now_ns)
                self.frames.append(response(asked, body, **times))
                self.after(1, lambda: self._go_on(group, each, connection, body))

            self.after(self._latency_ns(), take)

        self.after(self._latency_ns(), lambda: group.ask(body, reply))


def sent_again(seed: int) -> MadeUp:
    """Record members, and send that to another coordinator, whose delay may be another, too."""
    chance = random.Random(seed)
    delays_ms = 0, 2, 50, 3000
    gives_ids = chance.choice([True, True, False])
    recording = Recording(chance, chance.choice(delays_ms) * MS, gives_ids)
    latest_ms = chance.choice([8, 300])
    frames = recording.run(
        [
            member(chance.randint(0, latest_ms), chance.randint(1, 6), chance.randint(5, 60))
            for _ in range(chance.randint(1, 4))
        ]
    )

    def answer(body: Any) -> Any:
        later = Later()
        made_up.after(0, lambda: group.ask(body, later.then))
        return later

    made_up = MadeUp(answer)
    made_up.delay_ns = lambda: chance.randint(1, 4 * MS)
    group = Coordinator(made_up.after, chance, chance.choice(delays_ms) * MS, gives_ids)
    (conversation,) = made_up.send(frames)
    assert group.state == "Empty"
    assert not conversation._groups.waiting(made_up.sender.now_ns)
    return made_up


@pytest.mark.parametrize("error", [codes.REBALANCE_IN_PROGRESS, codes.ILLEGAL_GENERATION])
@pytest.mark.parametrize("api", ["SyncGroup", "Heartbeat"])
def test_a_member_that_is_refused_for_ever_gives_up(api: str, error: int) -> None:
    frames = Recording(random.Random(1), 0, True).run([member(0, 5, 10) for _ in range(3)])
    known = messages.JoinGroupResponse(generation_id=1, leader="a", member_id="a")

    def answer(body: Any) -> Any:
        name = type(body).__name__.removesuffix("Request")
        kind = getattr(messages, f"{name}Response")
        return known if name == "JoinGroup" else kind(error_code=error if name == api else 0)

    made_up = MadeUp(answer)
    made_up.send(frames)
    assert made_up.sender.now_ns < 60_000 * MS
    assert len(made_up.asked) < 2000


def test_a_group_forms_again_whatever_moments_make_of_it() -> None:
    """Nobody is refused in the end, nor waits for a member that does not come; and but for some
    that were in a generation which cannot come again, all have what they had."""
    seeds, others = range(2000 if ALL else 100), 0
    for seed in seeds:
        made_up = sent_again(seed)
        differences = made_up.sender.sent.differences
        assert {(each.api, each.what) for each in differences} <= {("SyncGroup", "assignment")}
        others += bool(differences)
        assert made_up.sender.now_ns < 20_000 * MS, seed
    assert others <= len(seeds) * 0.08
