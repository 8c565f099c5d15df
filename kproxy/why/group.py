"""The story of a consumer group: `kproxy why FILE group:G`.

::

    JoinGroup, SyncGroup, Heartbeat, LeaveGroup ─▶ Generations ─▶ sentences, one per change
    ConsumerGroupHeartbeat (KIP-848) ────────────▶ Epochs ─────▶ sentences, one per change

A generation changes when a member joins, leaves, or is silent for longer than its session timeout.
The coordinator does not report the cause, so the story is put together from the requests of the
members. Members are named by their client ids. A sentence about a request has the time at which it
arrived, as `show` has; one about a generation has that of its first SyncGroup.

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

from kproxy.exchange import delivered, embedded
from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import matching
from kproxy.exchange.words import faults
from kproxy.exchange.words.wording import (
    Context,
    age,
    by_topic,
    count,
    listed,
    partitions,
    shortened,
)
from kproxy.history import attempts as again
from kproxy.history.items import Gap
from kproxy.units import moment, time_of_day
from kproxy.why.committed import CommittedFor
from kproxy.why.instance_findings import INSTANCE_ERRORS, instance_id
from kproxy.why.members import NO_PARTITIONS, Generation, StoryMember
from kproxy.why.sentences import NOT_RECORDED, client, ended_by, host_of, named, no_answer
from kproxy.why.source import Source

_OTHERS_MAX = 5
"""Exchanges named in the story, if none of them joins or leaves."""
_BEATS_MISSED = 3
"""Heartbeats that a member of KIP-848 must miss to be called silent."""

_SentencePart = str | StoryMember | Callable[[], str]
"""A part of a sentence: text, a member to be named, or text known only at the end."""


def _tail(member_id: str) -> str:
    """Return the end of a member id, as `show` prints it."""
    start, cut, end = shortened(member_id).partition("…")
    return cut + end or start


def group_story(source: Source, group: str) -> Iterator[str]:
    """Yield the story of a group in one recording, in order of time."""
    story = _Story(group)
    committed = CommittedFor(group)
    others: list[str] = []
    more = 0
    for exchange in source.read(matching("group", group)):
        if isinstance(exchange, ConnectionEnd):
            story.ends[exchange.connection] = exchange
            continue
        if isinstance(exchange, Gap):
            story.leave()
            continue
        handle = _HANDLERS.get(exchange.api or "")
        if handle is not None and group in exchange.groups:
            handle(story, exchange)
        if exchange.api == "OffsetCommit" and committed.add(exchange):
            continue
        if len(others) < _OTHERS_MAX:
            others.append(f"{exchange.api} #{exchange.number}")
        else:
            more += 1
    found = list(story.lines())
    yield from found
    if found or not (committed.last or others):
        return
    yield from committed.sentences()
    names = ", ".join(others) + (f" and {more} more" if more else "")
    named_by = f"; it is named by {names}" if others else ""
    yield f"Who joins or leaves {group} is not in the recording{named_by}."


def answered(exchange: Exchange) -> datetime:
    """Return the arrival of the response, or the best estimate."""
    return exchange.time + timedelta(milliseconds=exchange.broker_ms or 0)


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
    unanswered_joins: dict[str, Exchange] = attrs.field(factory=dict[str, Exchange], init=False)
    """Member id → its last JoinGroup without an answer."""
    _static: dict[str, str] = attrs.field(factory=dict[str, str], init=False)
    """Member id of a static member → the first id that its group.instance.id had."""
    _on: dict[int, str] = attrs.field(factory=dict[int, str], init=False)
    """Connection → the member that used it last."""

    def identity(self, member_id: str) -> str:
        """Return what a member has in common with those who had its group.instance.id before."""
        return self._static.get(member_id, member_id)

    def holder(self, instance: str) -> StoryMember | None:
        """Return the member that had a group.instance.id last."""
        found = [each for each in self.members.values() if instance and each.instance == instance]
        return found[-1] if found else None

    def succeed(self, before: StoryMember, member_id: str) -> None:
        """Note that a static member has a new id, maybe of another client."""
        self._static[member_id] = self.identity(before.id)

    def on_connection(self, connection: int) -> StoryMember | None:
        """Return the member that used a connection last."""
        return self.members.get(self._on.get(connection, ""))

    def member(self, member_id: str, exchange: Exchange) -> StoryMember:
        """Return the member with this id; a new one is named after the client of the exchange."""
        self._on[exchange.connection] = member_id
        if member_id not in self.members:
            client = exchange.client_id or shortened(member_id)
            self.members[member_id] = StoryMember(member_id, client)
        return self.members[member_id]

    def say(self, time: datetime, *parts: _SentencePart) -> None:
        """Add a sentence. Its parts become text at the end, when the names of members and later
        events are known."""
        self.sentences.append((time, parts))

    def leave(self) -> None:
        """Take a gap: when a member was heard of last is not known behind it."""
        for member in self.members.values():
            member.last_accepted = member.told_to_join = None

    def name(self, member_id: str) -> str:
        """Return the name of a member: its client id; with the end of its id if not unique, or with
        host and connection where a static member has several ids."""
        member = self.members.get(member_id)
        if member is None:
            return shortened(member_id)
        others = [each for each in self.members.values() if each.client == member.client]
        if len(others) == 1:
            return member.client
        if member.instance and member.joined is not None:
            hosts = {host_of(each.joined) for each in others if each.joined is not None} - {""}
            where = f"{host_of(member.joined)}, " if len(hosts) > 1 else ""
            return f"{member.client} ({where}connection {member.joined.connection})"
        return f"{member.client} ({_tail(member_id)})"

    def lines(self) -> Iterator[str]:
        """Yield all sentences in order of time."""
        previous: Generation | None = None
        for number in sorted(self.generations):
            generation = self.generations[number]
            self._generation(previous, generation)
            previous = generation
        self._ended_since(previous)
        for time, parts in sorted(self.sentences, key=lambda each: each[0]):
            yield f"{time_of_day(time)} {''.join(map(self._part_text, parts))}"

    def _part_text(self, part: _SentencePart) -> str:
        if isinstance(part, StoryMember):
            return self.name(part.id)
        return part if isinstance(part, str) else part()

    def is_over(self, connection: int, time_ns: int) -> bool:
        """Return whether a connection had ended at a time."""
        end = self.ends.get(connection)
        return end is not None and (end.first or end).time_ns <= time_ns

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
                text += self._not_committed(member, leave)
        elif end is not None:
            ended_ms = (end.first.time_ns if end.first else end.time_ns) / 1e6
            later_ms = max(0.0, ended_ms - leave.time.timestamp() * 1000)
            text += f"; its connection ends {age(later_ms)} later"
        else:
            text += "; why is not in the recording"
        return f"{text}."

    def _not_committed(self, member: StoryMember, leave: Exchange) -> str:
        commit = member.last_commit
        if commit is None or (leave.time_ns - commit.time_ns) / 1e6 < member.rebalance_ms:
            return ""
        ago = _after(leave.time, commit.time)
        return f"; its last {named(commit)} was {ago} before, longer than this timeout"

    # ---- classic groups

    def _generation(self, before: Generation | None, now: Generation) -> None:
        if not now.joins:
            return
        last = max(each.time for each in now.joins.values())
        born = min((each.time for each in now.synced.values()), default=last)
        if before is None:
            who = listed((self._joined(each, now) for each in sorted(now.members)), 6)
            many = f"{count(len(now.members), 'member')}, " if now.has_member_list else ""
            text = f"generation {now.number}: {many}{who}"
            text += "" if now.has_member_list else "; who else is in it is not in the recording"
            text += "; what was before is not in the recording" if now.number > 1 else ""
        else:
            why = self._causes(before, now)
            text = f"generation {before.number} → {now.number}: {why}"
            text += self._gap(now)
        self.say(born, f"{text}. {self._assignments(now)}".rstrip())

    def _joined(self, member_id: str, now: Generation) -> str:
        join = now.joins.get(self.identity(member_id))
        return self.name(member_id) + ("" if join is None else f" (#{join.number})")

    def _causes(self, before: Generation, now: Generation) -> str:
        missing = [self._latest(each, now.earlier) for each in self._only_in(before, now)]
        gone = [
            each for each in missing if now.has_member_list or self._left(each, now) is not None
        ]
        causes = [self._gone(each, now) for each in gone]
        causes += [self._came(each, before, now) for each in self._only_in(now, before)]
        if not causes:  # no member is known to have joined or left: one joined again
            first = min(now.joins.values(), key=lambda each: each.time)
            reason = getattr(first.request, "reason", None)
            why = f", “{reason}”" if reason else "; why is not in the recording"
            told = self._told_by_rule(first, now)
            if told is not None:
                why = f": {_told(told)}"
            causes.append(f"{first.client_id} joined again first (#{first.number}){why}")
        if unknown := [self.name(each) for each in missing if each not in gone]:
            still = "is still a member" if len(unknown) == 1 else "are still members"
            causes.append(f"whether {listed(unknown, 6)} {still} is not in the recording")
        return "; ".join(causes)

    def _told_by_rule(self, join: Exchange, now: Generation) -> Exchange | None:
        """Return the exchange by which a rule had a member join again."""
        member_id = next(each for each, one in now.joins.items() if one is join)
        member = now.earlier.get(member_id)
        return None if member is None else member.told_by_rule

    def _only_in(self, one: Generation, other: Generation) -> list[str]:
        """Return the members of one generation whose place nobody has in another."""
        there = {self.identity(each) for each in other.members}
        return sorted(each for each in one.members if self.identity(each) not in there)

    def _latest(self, member_id: str, members: dict[str, StoryMember]) -> str:
        """Return who of some members had the place of a member last."""
        place = self.identity(member_id)
        found = (each for each in reversed(members) if self.identity(each) == place)
        return next(found, member_id)

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
        if told := member.told_to_join:
            return f"{name} did not join again, as {named(told)} had told it to"
        until = min(
            (answered(each) for each in now.joins.values()), default=member.last_accepted.time
        )
        silence, last = (
            _after(until, member.last_accepted.time),
            f"{member.last_accepted.api} #{member.last_accepted.number}",
        )
        cause = _cause_of_silence(member, until)
        if until - member.last_accepted.time < timedelta(milliseconds=member.session_ms):
            why = cause or "; why is not in the recording"
            return f"{name} is no member any more, {silence} after {last}{why}"
        session = f", its session timeout is {age(member.session_ms)}" if member.session_ms else ""
        ended = self._ended_after(member.last_accepted, until)
        return f"{name} left after {silence} of silence (since {last}{session}){cause or ended}"

    def _ended_after(self, last: Exchange, until: datetime) -> str:
        """Return the end of a member's connection after its last request, without LeaveGroup."""
        end = self.ends.get(last.connection)
        if end is None:
            return ""
        ended_ns = end.time_ns if end.first is None else end.first.time_ns
        if not last.time_ns <= ended_ns <= until.timestamp() * 1e9:
            return ""
        after = age((ended_ns - last.time_ns) / 1e6)
        text = f"; its connection {last.connection} had ended {after} after that {last.api}"
        return f"{text}, {ended_by(end)}, without LeaveGroup"

    def _ended_since(self, last: Generation | None) -> None:
        """Say which members of the last generation ended their connection without LeaveGroup."""
        for member_id in () if last is None else sorted(last.members):
            member = self.members.get(self._latest(member_id, self.members))
            if member is None or member.left is not None or member.last_accepted is None:
                continue
            accepted = member.last_accepted
            end = self.ends.get(accepted.connection)
            side = None if end is None else end.first
            if end is None or side is None or side.side != "client":
                continue
            if side.time_ns >= accepted.time_ns:
                after = age((side.time_ns - accepted.time_ns) / 1e6)
                text = f" ends its connection {accepted.connection} ({side.how}), {after} after"
                text += f" {named(accepted)}, without LeaveGroup; no later generation"
                self.say(moment(side.time_ns), member, f"{text} is in the recording.")

    def _came(self, member_id: str, before: Generation, now: Generation) -> str:
        name, join = self.name(member_id), now.joins.get(self.identity(member_id))
        if join is not None:
            return f"{name} joined (#{join.number})"
        asked = self.unanswered_joins.get(member_id)
        if asked is not None:
            return f"{name} joined (#{asked.number}; {no_answer(asked)})"
        if before.has_member_list:
            return f"{name} joined; its JoinGroup is not in the recording"
        return f"{name} is a member; since when is not in the recording"

    def _gap(self, now: Generation) -> str:
        """Return how long members waited for partitions, from the first that joined."""
        if not now.synced:
            return ""
        first = min(now.joins.values(), key=lambda each: each.time)
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
            f"{self.name(each.request.member_id)} has {_assigned(each.response.assignment)}"
            f" (#{each.number})"
            for _, each in sorted(now.synced.items())
            if each.response is not None
        ]
        return f"{listed(given, 6)}." if given else ""


def _assigned(data: bytes) -> str:
    found, undecoded = embedded.read_assignment(data)
    if found is None:
        return f"an assignment that cannot be read ({undecoded})" if undecoded else NO_PARTITIONS
    topics = ((each.topic, [*map(str, each.partitions)]) for each in found.assigned_partitions)
    return listed(partitions(*each) for each in topics) or NO_PARTITIONS


def _told(told: Exchange) -> str:
    """Return what a rule had a client told, as a sentence of its own."""
    return f"{named(told)} → {listed(told.errors)}, {faults.made(told)}, had told it to"


def _cause_of_silence(member: StoryMember, until: datetime) -> str:
    """Return what rules had to do with the silence of a member; nothing where they had not."""
    if told := member.told_by_rule:
        errors = listed(told.errors)
        return f": {named(told)} had told it {errors}, {faults.made(told)}"
    kept = _kept(member, until)
    return f": {kept}" if kept else ""


def _kept(member: StoryMember, until: datetime) -> str:
    """Return what a member sent since it was heard of, and what kept it from the broker."""
    after = member.last_accepted.number if member.last_accepted is not None else 0
    kept = [each for each in member.kept if each.number > after and each.time < until]
    if not kept:
        return ""
    first = min(kept, key=lambda each: each.number)
    more = f" and {len(kept) - 1} more" if len(kept) > 1 else ""
    return f"it had sent {named(first)}{more}, {faults.silence(first)}"


def _broker_errors(exchange: Exchange) -> list[str]:
    """Return the errors of the broker, whatever a rule had the client told."""
    return exchange.errors if exchange.broker_errors is None else exchange.broker_errors


def _join(story: _Story, exchange: Exchange) -> None:
    request, response = exchange.request, exchange.response
    if request is None:
        return
    story.joins.setdefault(exchange.connection, []).append(exchange)
    if exchange.unanswered is not None:
        story.unanswered_joins[story.identity(request.member_id)] = exchange
        text = f"{exchange.client_id} asks to join (#{exchange.number}); {no_answer(exchange)}."
        story.say(exchange.time, text)
        return
    if response is None or _broker_errors(exchange):
        if exchange.errors and not exchange.routine:
            errors = ", ".join(filter(None, [listed(exchange.errors), faults.made(exchange)]))
            what = f"{exchange.client_id} could not join (#{exchange.number}): {errors}"
            story.say(exchange.time, f"{what}{_held_by(story, exchange)}.")
        return
    _say_undelivered(story, exchange)
    number = response.generation_id
    if number not in story.generations:
        earlier = {each.id: copy.copy(each) for each in story.members.values()}
        story.generations[number] = Generation(number, earlier=earlier)
    generation = story.generations[number]
    instance = getattr(request, "group_instance_id", None) or ""
    before = story.holder(instance)
    if before is not None and before.id != response.member_id:
        story.succeed(before, response.member_id)
        member = story.member(response.member_id, exchange)
        _rejoin_static(story, before, member, exchange)
    member = story.member(response.member_id, exchange)
    member.joined = member.joined or exchange
    member.session_ms, member.last_accepted, member.left = (
        request.session_timeout_ms,
        exchange,
        None,
    )
    member.instance, member.told_to_join = instance, None
    member.told_by_rule = None
    if exchange.errors:
        member.told_by_rule = exchange
        text = f" is let in by the broker (#{exchange.number}), and told {listed(exchange.errors)}"
        story.say(answered(exchange), member, f"{text}, {faults.made(exchange)}.")
    if request.protocol_type == "consumer":
        member.rebalance_ms = request.rebalance_timeout_ms
    generation.joins.setdefault(story.identity(member.id), exchange)
    generation.has_member_list |= bool(response.members)
    known = {story.identity(each) for each in generation.members}
    listed_ids = [member.id, *(each.member_id for each in response.members or ())]
    generation.members.update(each for each in listed_ids if story.identity(each) not in known)


def _say_undelivered(story: _Story, exchange: Exchange) -> None:
    """Say that a member does not learn that it joined, or what it was given."""
    if exchange.undelivered:
        what = f"{exchange.client_id} does not get the response to {named(exchange)}"
        story.say(exchange.time, f"{what}: {faults.undelivered(exchange)}.")


def _rejoin_static(
    story: _Story, before: StoryMember, now: StoryMember, exchange: Exchange
) -> None:
    """Say that a static member has a new id: the same client comes again, or another takes it."""
    last, more = before.last_accepted, ""
    if last is not None:
        more = f", {_after(exchange.time, answered(last))} after {named(last)}"
    quiet = exchange.response.generation_id in story.generations
    rebalance = "; the group does not rebalance" if quiet else ""

    def text() -> str:
        static, name = f"static member {before.instance}", story.name(now.id)
        if last is None or (
            again.same_client(last, exchange) and story.is_over(last.connection, exchange.time_ns)
        ):
            return f"{name} comes again as {static} ({named(exchange)}){more}{rebalance}."
        still = "" if story.is_over(last.connection, exchange.time_ns) else ", which is still open"
        return (
            f"{client(exchange)} takes {static} ({named(exchange)}) from {client(last)}{still}"
            f"{more} of that; requests of {story.name(before.id)} as {before.instance} are refused"
            f" from now on{rebalance}."
        )

    story.say(exchange.time, text)


def _held_by(story: _Story, exchange: Exchange) -> str:
    """Return who has the group.instance.id because of which a request is refused."""
    if not INSTANCE_ERRORS.intersection(exchange.errors):
        return ""
    instance = instance_id(exchange)
    holder, own = story.holder(instance), getattr(exchange.request, "member_id", "")
    if holder is None or holder.joined is None or holder.id == own:
        return f"; who has its group.instance.id {NOT_RECORDED}"
    return f"; {client(holder.joined)} has {instance} since {named(holder.joined)}"


def _sync(story: _Story, exchange: Exchange) -> None:
    request = exchange.request
    if request is None or exchange.response is None:
        return
    if exchange.errors:
        _say_refused(story, exchange, request.member_id)
    if _broker_errors(exchange):
        return
    _say_undelivered(story, exchange)
    generation = story.generations.get(request.generation_id)
    member = story.member(request.member_id, exchange)
    if generation is not None:
        generation.synced.setdefault(story.identity(member.id), exchange)
    member.last_accepted = exchange


def _heartbeat(story: _Story, exchange: Exchange) -> None:
    request = exchange.request
    member_id = getattr(request, "member_id", "")
    if member_id and delivered.kept(exchange):
        story.member(member_id, exchange).kept.append(exchange)
    if exchange.response is None:
        return
    if exchange.errors:
        _say_refused(story, exchange, member_id)
    if member_id and not _broker_errors(exchange):
        member = story.member(member_id, exchange)
        member.last_accepted = exchange
        if exchange.api == "OffsetCommit":
            member.last_commit = exchange


def _say_refused(story: _Story, exchange: Exchange, member_id: str) -> None:
    errors = listed(exchange.errors)
    member = (
        story.member(member_id, exchange)
        if member_id
        else (story.on_connection(exchange.connection))
    )
    if member is None:  # it names no member, and none used its connection
        story.say(exchange.time, f"{exchange.client_id} is refused: {named(exchange)} → {errors}.")
        return
    if by_rule := faults.made(exchange):
        member.told_by_rule = member.told_by_rule or exchange
        text = f" is told {errors}, {by_rule}: {named(exchange)}."
        story.say(exchange.time, member, text)
        errors = listed(exchange.broker_errors or [])
    if errors == "REBALANCE_IN_PROGRESS":
        member.last_accepted, member.told_to_join = exchange, member.told_to_join or exchange
    if by_rule:
        return
    news = "learns that the group rebalances" if errors == "REBALANCE_IN_PROGRESS" else "is refused"
    text = f" {news}: {named(exchange)} → {errors}{_held_by(story, exchange)}"
    if member.left is not None:
        text += f"; it had left with #{member.left.number}"
    story.say(exchange.time, member, f"{text}.")


def _leave(story: _Story, exchange: Exchange) -> None:
    request = exchange.request
    for leaving in getattr(request, "members", None) or ([request] if request else []):
        instance = getattr(leaving, "group_instance_id", None) or ""
        static = story.holder(instance)
        name = leaving.member_id or ("" if static is None else static.id)
        member = story.member(name, exchange)
        if delivered.kept(exchange):
            member.kept.append(exchange)
            text = f" wants to leave with #{exchange.number}, {faults.silence(exchange)}."
            story.say(exchange.time, member, text)
            continue
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
    if delivered.kept(exchange):
        member.kept.append(exchange)
        return
    if exchange.errors:
        since = ""
        if member.last_accepted is not None:
            silent = _after(exchange.time, answered(member.last_accepted))
            since = f", {silent} after its last heartbeat"
        errors = ", ".join(filter(None, [listed(exchange.errors), faults.made(exchange)]))
        text = f" is refused: #{exchange.number} → {errors}{since}{_held_by(story, exchange)}."
        story.say(exchange.time, member, text)
    if _broker_errors(exchange):
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
            parts += [
                "; ",
                other,
                f"{owned} has been silent for {silent} at {time_of_day(seen.time)}",
            ]
            parts += [f": {kept}" for kept in [_kept(other, exchange.time)] if kept]
            other.reported_silence = seen
    story.say(exchange.time, *parts, ".")


def _heartbeat_request(story: _Story, member: StoryMember, exchange: Exchange) -> None:
    request, number = exchange.request, exchange.number
    if request.member_epoch in _EPOCHS:
        member.left = None if request.member_epoch == 0 else exchange
        if request.member_epoch == 0 and exchange.response is not None:
            member.instance, member.joined = request.instance_id or "", exchange
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
