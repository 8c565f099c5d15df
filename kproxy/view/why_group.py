"""The story of a consumer group: `kproxy why FILE group:G`.

::

    JoinGroup, SyncGroup, Heartbeat, LeaveGroup ─▶ Generations ─▶ sentences, one per change
    ConsumerGroupHeartbeat (KIP-848) ────────────▶ Epochs ─────▶ sentences, one per news

A generation changes when a member comes, leaves, or is silent for longer than its session timeout;
the coordinator tells none of that, so it is put together from what members sent. Members are named
by their clients' ids.

Invariant: only the coordinator's list of members, which it sends to the leader, shows that somebody
is no member any more. Of a generation whose list is not recorded nobody is said to be gone who did
not say so.
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
"""So many exchanges are named that only name the group."""
_BEATS_MISSED = 3
"""A member of KIP-848 that let so many heartbeats be missed is called silent."""
NOTHING = "nothing"
_NEW_IDS = frozenset({"MEMBER_ID_REQUIRED"})
"""Not an error: the coordinator gives a new member its id."""


@attrs.define(eq=False)
class StoryMember:
    """A member of the group, as far as its own requests tell."""

    id: str
    client: str
    session_ms: int = 0
    rebalance_ms: int = 0
    """Of a consumer: clients send their max.poll.interval.ms as it."""
    seen: Exchange | None = None
    """Its last request that the coordinator accepted."""
    left: Exchange | None = None
    reason: str = ""
    instance: str = ""
    """Its group.instance.id, if it is a static member: it stays the same when it comes again."""
    owns: str = NOTHING
    """KIP-848: what it said last."""
    is_to_have: tuple[int, str] = (0, NOTHING)
    """KIP-848: in which epoch, what."""
    silence_told: Exchange | None = None
    """KIP-848: its last request before the silence that was told last."""


_SentencePart = str | StoryMember | Callable[[], str]
"""Of a sentence."""


def _tail(member_id: str) -> str:
    """The end of a member's id, as `show` has it."""
    start, cut, end = shortened(member_id).partition("…")
    return cut + end or start


@attrs.define(eq=False)
class Generation:
    """One generation of a classic group."""

    number: int
    joins: dict[str, Exchange] = attrs.field(factory=dict[str, Exchange])
    """By member id."""
    members: set[str] = attrs.field(factory=set[str])
    """Those on the coordinator's list, and those that were seen to join."""
    is_whole: bool = False
    """Whether the coordinator's list of members is in the recording."""
    synced: dict[str, Exchange] = attrs.field(factory=dict[str, Exchange])
    earlier: dict[str, StoryMember] = attrs.field(factory=dict[str, StoryMember])
    """All members that were known before it, as they were then."""


def group_story(stream: Stream, group: str) -> Iterator[str]:
    """Yield what happened to a group in one recording, in order."""
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
    told = list(story.told())
    if not told and others:
        named = ", ".join(others) + (f" and {more} more" if more else "")
        told = [f"Who joins or leaves {group} is not in the recording; it is named by {named}."]
    yield from told


def answered(exchange: Exchange) -> datetime:
    """When its response arrived, or what is next to that."""
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
    """By connection."""
    joins: dict[int, list[Exchange]] = attrs.field(factory=dict[int, list[Exchange]], init=False)
    """By connection, whether they succeeded or not."""
    _static: dict[str, str] = attrs.field(factory=dict[str, str], init=False)
    """Ids that static members got when they came again: the ids that they had first."""

    def identity(self, member_id: str) -> str:
        """The id by which a member is kept."""
        return self._static.get(member_id, member_id)

    def came_again(self, instance: str, member_id: str) -> StoryMember | None:
        """The static member that has a new id, if it is one that was here before."""
        for member in self.members.values():
            if instance and member.instance == instance and self.identity(member_id) != member.id:
                self._static[member_id] = member.id
                return member
        return None

    def member(self, member_id: str, exchange: Exchange) -> StoryMember:
        """The member of this id; its client is the one that first used it."""
        member_id = self.identity(member_id)
        if member_id not in self.members:
            client = exchange.client_id or shortened(member_id)
            self.members[member_id] = StoryMember(member_id, client)
        return self.members[member_id]

    def say(self, time: datetime, *parts: _SentencePart) -> None:
        """Keep a sentence for its time; what its members are called, and what came later, is known
        when all is read."""
        self.sentences.append((time, parts))

    def name(self, member_id: str) -> str:
        """What a member is called: its client's id, told from others of the same name."""
        member = self.members.get(member_id)
        if member is None:
            return shortened(member_id)
        others = [each for each in self.members.values() if each.client == member.client]
        if len(others) == 1:
            return member.client
        return f"{member.client} ({_tail(member_id)})"

    def told(self) -> Iterator[str]:
        """All sentences in order of time."""
        previous: Generation | None = None
        for number in sorted(self.generations):
            generation = self.generations[number]
            self._generation(previous, generation)
            previous = generation
        for time, parts in sorted(self.sentences, key=lambda each: each[0]):
            yield f"{_clock(time)} {''.join(map(self._words, parts))}"

    def _words(self, part: _SentencePart) -> str:
        if isinstance(part, StoryMember):
            return self.name(part.id)
        return part if isinstance(part, str) else part()

    def leaving(self, member: StoryMember, leave: Exchange, connection: int | None) -> str:
        """Who left, and what its own connection tells of why."""
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
            many = f"{count(len(now.members), 'member')}, " if now.is_whole else ""
            text = f"generation {now.number}: {many}{who}"
            text += "" if now.is_whole else "; who else is in it is not in the recording"
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
        gone = [each for each in missing if now.is_whole or self._left(each, now) is not None]
        causes = [self._gone(each, now) for each in gone]
        causes += [self._came(each, before, now) for each in sorted(now.members - before.members)]
        if not causes:  # nobody is known to have come or gone: somebody joined again
            first = min(now.joins.values(), key=lambda each: each.time)
            reason = getattr(first.request, "reason", None)
            said = f", “{reason}”" if reason else "; why is not in the recording"
            causes.append(f"{first.client_id} joined again first (#{first.number}){said}")
        if unknown := [self.name(each) for each in missing if each not in gone]:
            still = "is still a member" if len(unknown) == 1 else "are still members"
            causes.append(f"whether {listed(unknown, 6)} {still} is not in the recording")
        return "; ".join(causes)

    def _left(self, member_id: str, now: Generation) -> Exchange | None:
        """The LeaveGroup of a member before a generation."""
        member = now.earlier.get(member_id)
        return None if member is None else member.left

    def _gone(self, member_id: str, now: Generation) -> str:
        name, member = self.name(member_id), now.earlier.get(member_id)
        if member is not None and member.left is not None:
            reason = f" (“{member.reason}”)" if member.reason else ""
            return f"{name} left with #{member.left.number}{reason}"
        if member is None or member.seen is None:
            return f"{name} is no member any more; why is not in the recording"
        until = min((answered(each) for each in now.joins.values()), default=member.seen.time)
        silence, last = _after(until, member.seen.time), f"{member.seen.api} #{member.seen.number}"
        if until - member.seen.time < timedelta(milliseconds=member.session_ms):
            return (
                f"{name} is no member any more, {silence} after {last}; why is not in the recording"
            )
        session = f", its session timeout is {age(member.session_ms)}" if member.session_ms else ""
        return f"{name} left after {silence} of silence (since {last}{session})"

    def _came(self, member_id: str, before: Generation, now: Generation) -> str:
        name, join = self.name(member_id), now.joins.get(member_id)
        if join is not None:
            return f"{name} joined (#{join.number})"
        if before.is_whole:
            return f"{name} joined; its JoinGroup is not in the recording"
        return f"{name} is a member; since when is not in the recording"

    def _gap(self, before: Generation, now: Generation) -> str:
        """How long members waited for their partitions: from the first that joined again."""
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
        return NOTHING
    topics = found.assigned_partitions
    return listed(partitions(t.topic, [str(p) for p in t.partitions]) for t in topics) or NOTHING


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
    if again := story.came_again(instance, response.member_id):
        _comes_again(story, again, exchange)
    member = story.member(response.member_id, exchange)
    member.session_ms, member.seen, member.left = request.session_timeout_ms, exchange, None
    member.instance = instance
    if request.protocol_type == "consumer":
        member.rebalance_ms = request.rebalance_timeout_ms
    generation.joins.setdefault(member.id, exchange)
    generation.members.add(member.id)
    generation.is_whole |= bool(response.members)
    generation.members.update(story.identity(each.member_id) for each in response.members or ())


def _comes_again(story: _Story, member: StoryMember, exchange: Exchange) -> None:
    text = f" comes again as static member {member.instance} (#{exchange.number})"
    if member.seen is not None:
        silent = _after(exchange.time, answered(member.seen))
        text += f", {silent} after {member.seen.api} #{member.seen.number}"
    if exchange.response.generation_id in story.generations:
        text += "; the group does not rebalance"
    story.say(exchange.time, member, f"{text}.")


def _sync(story: _Story, exchange: Exchange) -> None:
    request = exchange.request
    if request is None or exchange.response is None:
        return
    if exchange.errors:
        _refused(story, exchange, request.member_id)
        return
    generation = story.generations.get(request.generation_id)
    member = story.member(request.member_id, exchange)
    if generation is not None:
        generation.synced.setdefault(member.id, exchange)
    member.seen = exchange


def _beat(story: _Story, exchange: Exchange) -> None:
    request = exchange.request
    member_id = getattr(request, "member_id", "")
    if not member_id or exchange.response is None:
        return
    if exchange.errors:
        _refused(story, exchange, member_id)
    else:
        story.member(member_id, exchange).seen = exchange


def _refused(story: _Story, exchange: Exchange, member_id: str) -> None:
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
            _refused(story, exchange, member.id)
            continue
        member.left, member.reason = exchange, getattr(leaving, "reason", None) or ""
        if member.reason:
            text = f" leaves with #{exchange.number}: “{member.reason}”."
            story.say(exchange.time, member, text)
        else:
            own = member.seen is not None and member.seen.connection == exchange.connection
            connection = exchange.connection if own else None
            story.say(exchange.time, partial(story.leaving, member, exchange, connection))


def _cannot_leave(leaving: Any, response: Any) -> bool:
    """Whether the coordinator refuses that a member leaves, of several perhaps that are named."""
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
    """A heartbeat of KIP-848 joins, leaves, and brings the assignment."""
    request, response = exchange.request, exchange.response
    if request is None:
        return
    member = story.member(request.member_id or getattr(response, "member_id", "") or "?", exchange)
    if exchange.errors:
        since = ""
        if member.seen is not None:
            since = f", {_after(exchange.time, answered(member.seen))} after its last heartbeat"
        errors = listed(exchange.errors)
        text = f" is refused: #{exchange.number} → {errors}{since}."
        story.say(answered(exchange), member, text)
        return
    _heartbeat_request(story, member, exchange)
    if response is not None:
        member.seen = exchange
        if response.assignment is not None:
            _assigned_epoch(story, member, exchange)


def _assigned_epoch(story: _Story, member: StoryMember, exchange: Exchange) -> None:
    response = exchange.response
    given = _owned(response.assignment.topic_partitions, exchange)
    news = response.member_epoch, given
    if news == member.is_to_have:
        return
    member.is_to_have = news
    told: list[str | StoryMember] = [f"epoch {response.member_epoch}: ", member]
    told.append(f" is to have {given} (#{exchange.number})")
    beats = timedelta(milliseconds=_BEATS_MISSED * response.heartbeat_interval_ms)
    for other in story.members.values():
        seen = other.seen
        if other is member or other.left is not None or seen is None or seen is other.silence_told:
            continue
        if exchange.time - seen.time > beats:
            owned = "" if other.owns == NOTHING else f", which owned {other.owns},"
            silent = f"{_after(exchange.time, seen.time)}, since #{seen.number}"
            told += ["; ", other, f"{owned} has been silent for {silent} at {_clock(seen.time)}"]
            other.silence_told = seen
    story.say(answered(exchange), *told, ".")


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
    return by_topic(topics, Context(exchange.topic_names), "partitions", str) or NOTHING


_HANDLERS: dict[str, Any] = {
    "JoinGroup": _join,
    "SyncGroup": _sync,
    "Heartbeat": _beat,
    "OffsetCommit": _beat,
    "LeaveGroup": _leave,
    "ConsumerGroupHeartbeat": _group_heartbeat,
}
"""API → how it changes the story."""
