"""The story of a consumer group: `kproxy why FILE group:G`.

::

    JoinGroup, SyncGroup, Heartbeat, LeaveGroup ─▶ Generations ─▶ sentences, one per change
    ConsumerGroupHeartbeat (KIP-848) ────────────▶ Epochs ─────▶ sentences, one per change

A generation changes when a member joins, leaves, or is silent for longer than its session timeout.
The coordinator does not report the cause, so the story is put together from the requests of the
members. Members are named by their client ids.

Invariant: only the coordinator's list of members, which it sends to the leader, shows that a member
is gone. If the list of a generation is not recorded, only members that sent LeaveGroup are reported
as gone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import attrs

from kproxy.exchange import embedded
from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.words.wording import (
    Context,
    age,
    by_topic,
    count,
    listed,
    partitions,
    shortened,
)
from kproxy.view.stream import Stream

_OTHERS_MAX = 5
"""Exchanges named in the story, if none of them joins or leaves."""
_BEATS_MISSED = 3
"""Heartbeats that a member of KIP-848 must miss to be called silent."""
NO_PARTITIONS = "nothing"
_NEW_IDS = frozenset({"MEMBER_ID_REQUIRED"})
"""Errors of a normal join: the coordinator gives a new member its id."""


@attrs.define(eq=False)
class StoryMember:
    """A member of the group, as its own requests show it."""

    id: str
    client: str
    session_ms: int = 0
    rebalance_ms: int = 0
    """Rebalance timeout; consumers send their max.poll.interval.ms."""
    last_accepted: Exchange | None = None
    """Its last request that the coordinator accepted."""
    left: Exchange | None = None
    reason: str = ""
    instance: str = ""
    """The group.instance.id of a static member, which keeps it when it joins again."""
    owns: str = NO_PARTITIONS
    """KIP-848: the partitions in its last report."""
    assigned: tuple[int, str] = (0, NO_PARTITIONS)
    """KIP-848: epoch and partitions of its last assignment."""
    reported_silence: Exchange | None = None
    """KIP-848: its last request before the silence that was reported last."""


_SentencePart = str | StoryMember | Callable[[], str]
"""A part of a sentence: text, a member to be named, or text known only at the end."""


def _tail(member_id: str) -> str:
    """Return the end of a member id, as `show` prints it."""
    start, cut, end = shortened(member_id).partition("…")
    return cut + end or start


@attrs.define(eq=False)
class Generation:
    """One generation of a classic group."""

    number: int
    joins: dict[str, Exchange] = attrs.field(factory=dict[str, Exchange])
    """Member id → its JoinGroup."""
    members: set[str] = attrs.field(factory=set[str])
    """The members on the coordinator's list, and those whose JoinGroup is recorded."""
    has_member_list: bool = False
    """True if the coordinator's list of members is recorded."""
    synced: dict[str, Exchange] = attrs.field(factory=dict[str, Exchange])
    earlier: dict[str, StoryMember] = attrs.field(factory=dict[str, StoryMember])
    """Copies of all members known before this generation, as they were then."""


def group_story(stream: Stream, group: str) -> Iterator[str]:
    """Yield the story of a group in one recording, in order of time."""
    story = _Story(group)
    others: list[str] = []
    more = 0
    for exchange in stream.shown():
        if isinstance(exchange, ConnectionEnd):
            story.ends[exchange.connection] = exchange
            continue
        handle = _HANDLERS.get(exchange.api or "")
        if handle is not None and group in exchange.groups:
            handle(story, exchange)
        elif len(others) < _OTHERS_MAX:
            others.append(f"{exchange.api} #{exchange.number}")
        else:
            more += 1
    found = list(story.lines())
    if not found and others:
        named = ", ".join(others) + (f" and {more} more" if more else "")
        found = [f"Who joins or leaves {group} is not in the recording; it is named by {named}."]
    yield from found


def answered(exchange: Exchange) -> datetime:
    """Return the arrival of the response, or the best estimate."""
    return exchange.time + timedelta(milliseconds=exchange.broker_ms or 0)


def _clock(time: datetime) -> str:
    return f"{time:%H:%M:%S}.{time.microsecond // 1000:03}"


def _after(later: datetime, earlier: datetime) -> str:
    return age(max(0.0, (later - earlier) / timedelta(milliseconds=1)))


@attrs.define(eq=False)
class _Story:
    group: str
    members: dict[str, StoryMember] = attrs.field(factory=dict[str, StoryMember], init=False)
    generations: dict[int, Generation] = attrs.field(factory=dict[int, Generation], init=False)
    sentences: list[tuple[datetime, tuple[_SentencePart, ...]]] = attrs.field(
        factory=list[tuple[datetime, tuple[_SentencePart, ...]]], init=False
    )
    ends: dict[int, ConnectionEnd] = attrs.field(factory=dict[int, ConnectionEnd], init=False)
    """Connection → its end."""
    joins: dict[int, list[Exchange]] = attrs.field(factory=dict[int, list[Exchange]], init=False)
    """Connection → its JoinGroups, with and without errors."""
    _static: dict[str, str] = attrs.field(factory=dict[str, str], init=False)
    """New member id of a static member that joined again → its first id."""

    def identity(self, member_id: str) -> str:
        """Return the id under which a member is stored: its first one."""
        return self._static.get(member_id, member_id)

    def find_static(self, instance: str, member_id: str) -> StoryMember | None:
        """Return the static member that joins again with a new id; None if there is none."""
        for member in self.members.values():
            if instance and member.instance == instance and self.identity(member_id) != member.id:
                self._static[member_id] = member.id
                return member
        return None

    def member(self, member_id: str, exchange: Exchange) -> StoryMember:
        """Return the member with this id; a new one is named after the client of the exchange."""
        member_id = self.identity(member_id)
        if member_id not in self.members:
            client = exchange.client_id or shortened(member_id)
            self.members[member_id] = StoryMember(member_id, client)
        return self.members[member_id]

    def say(self, time: datetime, *parts: _SentencePart) -> None:
        """Add a sentence. Its parts become text at the end, when the names of members and later
        events are known."""
        self.sentences.append((time, parts))

    def name(self, member_id: str) -> str:
        """Return the name of a member: its client id, with the end of its id if not unique."""
        member = self.members.get(member_id)
        if member is None:
            return shortened(member_id)
        others = [each for each in self.members.values() if each.client == member.client]
        if len(others) == 1:
            return member.client
        return f"{member.client} ({_tail(member_id)})"

    def lines(self) -> Iterator[str]:
        """Yield all sentences in order of time."""
        previous: Generation | None = None
        for number in sorted(self.generations):
            generation = self.generations[number]
            self._generation(previous, generation)
            previous = generation
        for time, parts in sorted(self.sentences, key=lambda each: each[0]):
            yield f"{_clock(time)} {''.join(map(self._part_text, parts))}"

    def _part_text(self, part: _SentencePart) -> str:
        if isinstance(part, StoryMember):
            return self.name(part.id)
        return part if isinstance(part, str) else part()

    def leaving(self, member: StoryMember, leave: Exchange, connection: int | None) -> str:
        """Return the sentence about a LeaveGroup, with the cause if the connection shows one."""
        name = self.name(member.id)
        who = name if name != member.client else f"{name} ({_tail(member.id)})"
        text = f"{who} leaves with #{leave.number}"
        joins = self.joins.get(connection, ()) if connection is not None else ()
        again = next((each for each in joins if each.number > leave.number), None)
        end = self.ends.get(connection) if connection is not None else None
        if again is not None:
            text += f"; its connection stays, and it joins again {_after(again.time, leave.time)}"
            text += f" later (#{again.number})"
            if member.rebalance_ms > 0:
                text += ", as a client does whose app subscribes anew, or did not poll within"
                text += (
                    f" max.poll.interval.ms (its rebalance timeout is {age(member.rebalance_ms)})"
                )
        elif end is not None:
            ended_ms = (end.first.time_ns if end.first else end.time_ns) / 1e6
            later_ms = max(0.0, ended_ms - leave.time.timestamp() * 1000)
            text += f"; its connection ends {age(later_ms)} later"
        else:
            text += "; why is not in the recording"
        return f"{text}."

    # ---- classic groups

    def _generation(self, before: Generation | None, now: Generation) -> None:
        first = min((answered(each) for each in now.joins.values()), default=None)
        if first is None:
            return
        if before is None:
            who = listed((self._joined(each, now) for each in sorted(now.members)), 6)
            many = f"{count(len(now.members), 'member')}, " if now.has_member_list else ""
            text = f"generation {now.number}: {many}{who}"
            text += "" if now.has_member_list else "; who else is in it is not in the recording"
            text += "; what was before is not in the recording" if now.number > 1 else ""
        else:
            why = self._causes(before, now)
            text = f"generation {before.number} → {now.number}: {why}"
            text += self._gap(before, now)
        self.say(first, f"{text}. {self._assignments(now)}".rstrip())

    def _joined(self, member_id: str, now: Generation) -> str:
        join = now.joins.get(member_id)
        return self.name(member_id) + ("" if join is None else f" (#{join.number})")

    def _causes(self, before: Generation, now: Generation) -> str:
        missing = sorted(before.members - now.members)
        gone = [
            each for each in missing if now.has_member_list or self._left(each, now) is not None
        ]
        causes = [self._gone(each, now) for each in gone]
        causes += [self._came(each, before, now) for each in sorted(now.members - before.members)]
        if not causes:  # no member is known to have joined or left: one joined again
            first = min(now.joins.values(), key=lambda each: each.time)
            reason = getattr(first.request, "reason", None)
            why = f", “{reason}”" if reason else "; why is not in the recording"
            causes.append(f"{first.client_id} joined again first (#{first.number}){why}")
        if unknown := [self.name(each) for each in missing if each not in gone]:
            still = "is still a member" if len(unknown) == 1 else "are still members"
            causes.append(f"whether {listed(unknown, 6)} {still} is not in the recording")
        return "; ".join(causes)

    def _left(self, member_id: str, now: Generation) -> Exchange | None:
        """Return the LeaveGroup of a member before a generation."""
        member = now.earlier.get(member_id)
        return None if member is None else member.left

    def _gone(self, member_id: str, now: Generation) -> str:
        name, member = self.name(member_id), now.earlier.get(member_id)
        if member is not None and member.left is not None:
            reason = f" (“{member.reason}”)" if member.reason else ""
            return f"{name} left with #{member.left.number}{reason}"
        if member is None or member.last_accepted is None:
            return f"{name} is no member any more; why is not in the recording"
        until = min(
            (answered(each) for each in now.joins.values()), default=member.last_accepted.time
        )
        silence, last = (
            _after(until, member.last_accepted.time),
            f"{member.last_accepted.api} #{member.last_accepted.number}",
        )
        if until - member.last_accepted.time < timedelta(milliseconds=member.session_ms):
            return (
                f"{name} is no member any more, {silence} after {last}; why is not in the recording"
            )
        session = f", its session timeout is {age(member.session_ms)}" if member.session_ms else ""
        return f"{name} left after {silence} of silence (since {last}{session})"

    def _came(self, member_id: str, before: Generation, now: Generation) -> str:
        name, join = self.name(member_id), now.joins.get(member_id)
        if join is not None:
            return f"{name} joined (#{join.number})"
        if before.has_member_list:
            return f"{name} joined; its JoinGroup is not in the recording"
        return f"{name} is a member; since when is not in the recording"

    def _gap(self, before: Generation, now: Generation) -> str:
        """Return how long members waited for partitions, from the first that joined again."""
        again = [each for name, each in now.joins.items() if name in before.members]
        if not again or not now.synced:
            return ""
        first = min(again, key=lambda each: each.time)
        last = max(now.synced.values(), key=answered)
        text = f"; {_after(answered(last), first.time)} from the first JoinGroup (#{first.number})"
        text += f" to the last assignment (#{last.number})"
        slow = max(now.joins.values(), key=lambda each: each.time)
        if slow is not first and slow.time - first.time > timedelta(seconds=1):
            text += f", of which {_after(slow.time, first.time)} until {slow.client_id} joined"
            text += f" (#{slow.number})"
        return text

    def _assignments(self, now: Generation) -> str:
        given = [
            f"{self.name(member_id)} has {_assigned(each.response.assignment)} (#{each.number})"
            for member_id, each in sorted(now.synced.items())
            if each.response is not None
        ]
        return f"{listed(given, 6)}." if given else ""


def _assigned(data: bytes) -> str:
    found = embedded.assignment(data)
    if found is None:
        return NO_PARTITIONS
    topics = found.assigned_partitions
    return (
        listed(partitions(t.topic, [str(p) for p in t.partitions]) for t in topics) or NO_PARTITIONS
    )


def _join(story: _Story, exchange: Exchange) -> None:
    request, response = exchange.request, exchange.response
    if request is None:
        return
    story.joins.setdefault(exchange.connection, []).append(exchange)
    errors = [error for error in exchange.errors if error not in _NEW_IDS]
    if response is None or exchange.errors:
        if errors:
            what = f"{exchange.client_id} could not join (#{exchange.number}): {listed(errors)}"
            story.say(exchange.time, f"{what}.")
        return
    number = response.generation_id
    if number not in story.generations:
        earlier = {each.id: copy.copy(each) for each in story.members.values()}
        story.generations[number] = Generation(number, earlier=earlier)
    generation = story.generations[number]
    instance = getattr(request, "group_instance_id", None) or ""
    if again := story.find_static(instance, response.member_id):
        _rejoin_static(story, again, exchange)
    member = story.member(response.member_id, exchange)
    member.session_ms, member.last_accepted, member.left = (
        request.session_timeout_ms,
        exchange,
        None,
    )
    member.instance = instance
    if request.protocol_type == "consumer":
        member.rebalance_ms = request.rebalance_timeout_ms
    generation.joins.setdefault(member.id, exchange)
    generation.members.add(member.id)
    generation.has_member_list |= bool(response.members)
    generation.members.update(story.identity(each.member_id) for each in response.members or ())


def _rejoin_static(story: _Story, member: StoryMember, exchange: Exchange) -> None:
    text = f" comes again as static member {member.instance} (#{exchange.number})"
    if member.last_accepted is not None:
        silent = _after(exchange.time, answered(member.last_accepted))
        text += f", {silent} after {member.last_accepted.api} #{member.last_accepted.number}"
    if exchange.response.generation_id in story.generations:
        text += "; the group does not rebalance"
    story.say(exchange.time, member, f"{text}.")


def _sync(story: _Story, exchange: Exchange) -> None:
    request = exchange.request
    if request is None or exchange.response is None:
        return
    if exchange.errors:
        _say_refused(story, exchange, request.member_id)
        return
    generation = story.generations.get(request.generation_id)
    member = story.member(request.member_id, exchange)
    if generation is not None:
        generation.synced.setdefault(member.id, exchange)
    member.last_accepted = exchange


def _heartbeat(story: _Story, exchange: Exchange) -> None:
    request = exchange.request
    member_id = getattr(request, "member_id", "")
    if not member_id or exchange.response is None:
        return
    if exchange.errors:
        _say_refused(story, exchange, member_id)
    else:
        story.member(member_id, exchange).last_accepted = exchange


def _say_refused(story: _Story, exchange: Exchange, member_id: str) -> None:
    member = story.member(member_id, exchange)
    errors = listed(exchange.errors)
    news = "learns that the group rebalances" if errors == "REBALANCE_IN_PROGRESS" else "is refused"
    text = f" {news}: {exchange.api} #{exchange.number} → {errors}."
    story.say(answered(exchange), member, text)


def _leave(story: _Story, exchange: Exchange) -> None:
    request = exchange.request
    for leaving in getattr(request, "members", None) or ([request] if request else []):
        instance = getattr(leaving, "group_instance_id", None) or ""
        members = story.members.values() if instance else ()
        static = next((each.id for each in members if each.instance == instance), "")
        member = story.member(leaving.member_id or static, exchange)
        if _cannot_leave(leaving, exchange.response):
            _say_refused(story, exchange, member.id)
            continue
        member.left, member.reason = exchange, getattr(leaving, "reason", None) or ""
        if member.reason:
            text = f" leaves with #{exchange.number}: “{member.reason}”."
            story.say(exchange.time, member, text)
        else:
            own = (
                member.last_accepted is not None
                and member.last_accepted.connection == exchange.connection
            )
            connection = exchange.connection if own else None
            story.say(exchange.time, partial(story.leaving, member, exchange, connection))


def _cannot_leave(leaving: Any, response: Any) -> bool:
    """Return whether the coordinator refuses a LeaveGroup, which may name several members."""
    instance = getattr(leaving, "group_instance_id", None) or ""
    codes = [
        each.error_code
        for each in getattr(response, "members", None) or ()
        if each.member_id == leaving.member_id and (each.group_instance_id or "") == instance
    ]
    return any([getattr(response, "error_code", 0), *codes])


# ---- KIP-848

_EPOCHS = {0: "joins", -1: "leaves", -2: "leaves for now (static member)"}


def _group_heartbeat(story: _Story, exchange: Exchange) -> None:
    """Take a heartbeat of KIP-848, which joins, leaves, or brings an assignment."""
    request, response = exchange.request, exchange.response
    if request is None:
        return
    member = story.member(request.member_id or getattr(response, "member_id", "") or "?", exchange)
    if exchange.errors:
        since = ""
        if member.last_accepted is not None:
            silent = _after(exchange.time, answered(member.last_accepted))
            since = f", {silent} after its last heartbeat"
        errors = listed(exchange.errors)
        text = f" is refused: #{exchange.number} → {errors}{since}."
        story.say(answered(exchange), member, text)
        return
    _heartbeat_request(story, member, exchange)
    if response is not None:
        member.last_accepted = exchange
        if response.assignment is not None:
            _assigned_epoch(story, member, exchange)


def _assigned_epoch(story: _Story, member: StoryMember, exchange: Exchange) -> None:
    response = exchange.response
    given = _owned(response.assignment.topic_partitions, exchange)
    assigned = response.member_epoch, given
    if assigned == member.assigned:
        return
    member.assigned = assigned
    parts: list[str | StoryMember] = [f"epoch {response.member_epoch}: ", member]
    parts.append(f" is to have {given} (#{exchange.number})")
    beats = timedelta(milliseconds=_BEATS_MISSED * response.heartbeat_interval_ms)
    for other in story.members.values():
        seen = other.last_accepted
        if (
            other is member
            or other.left is not None
            or seen is None
            or seen is other.reported_silence
        ):
            continue
        if exchange.time - seen.time > beats:
            owned = "" if other.owns == NO_PARTITIONS else f", which owned {other.owns},"
            silent = f"{_after(exchange.time, seen.time)}, since #{seen.number}"
            parts += ["; ", other, f"{owned} has been silent for {silent} at {_clock(seen.time)}"]
            other.reported_silence = seen
    story.say(answered(exchange), *parts, ".")


def _heartbeat_request(story: _Story, member: StoryMember, exchange: Exchange) -> None:
    request, number = exchange.request, exchange.number
    if request.member_epoch in _EPOCHS:
        member.left = None if request.member_epoch == 0 else exchange
        story.say(exchange.time, member, f" {_EPOCHS[request.member_epoch]} (#{number}).")
    elif request.topic_partitions is not None:
        owned = _owned(request.topic_partitions, exchange)
        if owned != member.owns:
            story.say(exchange.time, member, f" says that it owns {owned} (#{number}).")
        member.owns = owned


def _owned(topics: Any, exchange: Exchange) -> str:
    return by_topic(topics, Context(exchange.topic_names), "partitions", str) or NO_PARTITIONS


_HANDLERS: dict[str, Any] = {
    "JoinGroup": _join,
    "SyncGroup": _sync,
    "Heartbeat": _heartbeat,
    "OffsetCommit": _heartbeat,
    "LeaveGroup": _leave,
    "ConsumerGroupHeartbeat": _group_heartbeat,
}
"""API → how it changes the story."""
