"""The story of a consumer group: `kproxy why FILE group:G`.

::

    Group of the history ─┬─ generations ─▶ sentences, one per change    (classic groups)
                          └─ happenings ──▶ sentences, one each          (members, KIP-848)

Members are named by their client ids. A sentence about a request has the time at which it arrived,
as `show` has; one about a generation has that of its first SyncGroup.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator

from kproxy.exchange.exchange import Exchange
from kproxy.exchange.words.wording import age, at, count, listed, partitions
from kproxy.history.group import INSTANCE_ERRORS, Group
from kproxy.history.history import History
from kproxy.history.members import Happening, Member
from kproxy.look.why.finding import told
from kproxy.look.why.findings import proved
from kproxy.look.why.generations import (
    NO_PARTITIONS,
    MemberNames,
    after,
    assigned,
    client_name,
    generations,
    kept_requests,
)
from kproxy.look.why.group_findings import REBALANCES
from kproxy.look.why.sentences import NOT_RECORDED, client, clock, named, no_answer, short_id
from kproxy.look.why.source import StorySource
from kproxy.look.why.standing import STANDING, stood_still
from kproxy.units import time_of_day

_ALIKE_MAX, _ALIKE_TOLD = 10, 3
"""Of more sentences that say the same, so many are told, and the last."""
_VARYING = re.compile(r"\(…\w+\)|[0-9][0-9.]*( µs| ms| s| min)?")
"""What differs in sentences that say the same: ids, numbers, times."""
_OTHERS_MAX = 5
"""Exchanges named in the story, if none of them joins or leaves."""


def group_story(source: StorySource, name: str) -> Iterator[str]:
    """Yield the story of a group in one recording: what is wrong, and then what happened."""
    history = History()
    others: list[str] = []
    more = 0
    for item in source.read(None):
        source.watch(history, item, history.add(item))
        if not isinstance(item, Exchange) or item.api == "OffsetCommit":
            continue
        if name not in item.groups:
            continue
        if len(others) < _OTHERS_MAX:
            others.append(f"{item.api} #{item.number}")
        else:
            more += 1
    group = history.groups.get(name) or Group(name)
    own = (REBALANCES, STANDING)
    of_group = [each for each in proved(history) if each.group == name and each.kind not in own]
    yield from told(of_group)
    yield from stood_still(history, group=name)
    found = [*_told(history, group)]
    yield from found
    if found or not (group.committing or others):
        return
    yield from _commits(history, group)
    names = ", ".join(others) + (f" and {more} more" if more else "")
    named_by = f"; it is named by {names}" if others else ""
    yield f"Who joins or leaves {name} is not in the recording{named_by}."


def _told(history: History, group: Group) -> Iterator[str]:
    """Yield the sentences about happenings and generations in order of time."""
    names, happenings = MemberNames(group, history.connections), group.happenings
    timed = [
        (
            each.ref.answered_ns if each.kind == "let in" else each.ref.time_ns,
            _SENTENCES[each.kind](names, each),
        )
        for each in happenings
    ]
    if happenings.dropped:
        text = f"… {count(happenings.dropped, 'more change')} …"
        timed.append((happenings.last[0].ref.time_ns - 1, text))
    timed += generations(names)
    if group.generations_dropped:
        first = sorted(group.generations)[1]
        text = f"… {count(group.generations_dropped, 'more generation')} before {first} …"
        born_ns = min(each.ref.time_ns for each in group.generations[first].joins.values())
        timed.append((born_ns - 1, text))
    for time_ns, text in _folded(sorted(timed, key=lambda each: each[0])):
        yield f"{clock(time_ns)} {text}"


def _folded(timed: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield sentences without most of those that say the same again and again, as the lives of
    members do that end soon after they began: the first stay, and the last."""
    shapes = [_VARYING.sub("", text) for _, text in timed]
    total, seen, left_out = Counter(shapes), Counter[str](), 0
    for (time_ns, text), shape in zip(timed, shapes, strict=True):
        seen[shape] += 1
        if total[shape] > _ALIKE_MAX and _ALIKE_TOLD < seen[shape] < total[shape]:
            left_out += 1
            continue
        if left_out:
            yield time_ns, f"… {left_out} more like these before …"
            left_out = 0
        yield time_ns, text


def _commits(history: History, group: Group) -> Iterator[str]:
    """Yield who committed, how often, and up to where: some apps commit without being members, as
    Flink's and those that assign partitions to themselves."""
    if group.committing is None:
        return
    first, latest, times = group.committing
    where: dict[str, list[str]] = {}
    for (name, (topic, partition)), committed in sorted(history.logs.committed.items()):
        if name == group.name and committed.deleted_by is None:
            where.setdefault(topic, []).append(at(partition, committed.commit.offset))
    text = f"{time_of_day(first.time)} {client(first)} commits for the group: {named(first)}"
    if latest is not first:
        text += f", {count(times, 'time')} until #{latest.number}"
    yield f"{text}. Committed last: {listed(partitions(*each) for each in where.items())}."


# ---- sentences


def _who(names: MemberNames, one: Happening) -> str:
    return names.of(one.member.id) if one.member is not None else str(one.ref.client_id)


def _does(names: MemberNames, one: Happening) -> str:
    return f"{_who(names, one)} {one.kind} (#{one.ref.number})."


def _asks(names: MemberNames, one: Happening) -> str:
    return f"{one.ref.client_id} asks to join (#{one.ref.number}); {no_answer(one.ref)}."


def _could_not_join(names: MemberNames, one: Happening) -> str:
    errors = ", ".join(filter(None, [listed(one.ref.errors), one.ref.fate.made]))
    return f"{one.ref.client_id} could not join (#{one.ref.number}): {errors}{_held_by(one)}."


def _undelivered(names: MemberNames, one: Happening) -> str:
    ref = one.ref
    return f"{ref.client_id} does not get the response to {named(ref)}: {ref.fate.undelivered}."


def _let_in(names: MemberNames, one: Happening) -> str:
    told = f"told {listed(one.ref.errors)}, {one.ref.fate.made}"
    return f"{_who(names, one)} is let in by the broker (#{one.ref.number}), and {told}."


def _takes_over(names: MemberNames, one: Happening) -> str:
    """Say that a static member has a new id: the same client comes again, or another takes it."""
    ref, before = one.ref, one.other
    assert before is not None
    last, static = before.accepted, f"static member {before.instance}"
    more = "" if last is None else f", {after(ref.time_ns, last.answered_ns)} after {named(last)}"
    rebalance = "; the group does not rebalance" if one.is_quiet else ""
    over = last is None or names.is_over(last.connection, ref.time_ns)
    own = last is None or last.connection == ref.connection or last.client == ref.client
    if last is None or (own and over):
        return f"{_who(names, one)} comes again as {static} ({named(ref)}){more}{rebalance}."
    still = "" if over else ", which is still open"
    return (
        f"{client(ref)} takes {static} ({named(ref)}) from {client(last)}{still}{more} of that;"
        f" requests of {names.of(before.id)} as {before.instance} are refused from now on"
        f"{rebalance}."
    )


def _held_by(one: Happening) -> str:
    """Return who has the group.instance.id because of which a request is refused."""
    if not INSTANCE_ERRORS.intersection(one.ref.errors):
        return ""
    holder = one.other
    if holder is None or holder.joined is None:
        return f"; who has its group.instance.id {NOT_RECORDED}"
    return f"; {client(holder.joined)} has {holder.instance} since {named(holder.joined)}"


def _nobody_is_refused(names: MemberNames, one: Happening) -> str:
    return f"{one.ref.client_id} is refused: {named(one.ref)} → {listed(one.ref.errors)}."


def _refused(names: MemberNames, one: Happening) -> str:
    news = "learns that the group rebalances" if one.kind == "learns" else "is refused"
    errors = listed(one.ref.broker_errors)
    text = f"{_who(names, one)} {news}: {named(one.ref)} → {errors}{_held_by(one)}"
    left = one.member.left if one.member is not None else None
    return f"{text}." if left is None else f"{text}; it had left with #{left.number}."


def _refused_beat(names: MemberNames, one: Happening) -> str:
    ref, last = one.ref, one.member.accepted if one.member is not None else None
    since = ""
    if last is not None:
        since = f", {after(ref.time_ns, last.answered_ns)} after its last heartbeat"
    errors = ", ".join(filter(None, [listed(ref.errors), ref.fate.made]))
    return f"{_who(names, one)} is refused: #{ref.number} → {errors}{since}{_held_by(one)}."


def _told_by_rule(names: MemberNames, one: Happening) -> str:
    errors = listed(one.ref.errors)
    return f"{_who(names, one)} is told {errors}, {one.ref.fate.made}: {named(one.ref)}."


def _wants_to_leave(names: MemberNames, one: Happening) -> str:
    return f"{_who(names, one)} wants to leave with #{one.ref.number}, {one.ref.fate.silence}."


def _left(names: MemberNames, one: Happening) -> str:
    """Say that a member leaves, with the cause if it says one, or the connection shows one."""
    member, ref = one.member, one.ref
    assert member is not None
    if member.reason:
        return f"{_who(names, one)} leaves with #{ref.number}: “{member.reason}”."
    name = _who(names, one)
    who = name if name != client_name(member) else f"{name} ({short_id(member.id)})"
    text = f"{who} leaves with #{ref.number}"
    end = names.end(ref.connection) if member.left_by_itself else None
    if one.again is not None:
        text += "; its connection stays, and it joins again"
        text += f" {after(one.again.time_ns, ref.time_ns)} later (#{one.again.number})"
        if member.rebalance_ms > 0:
            text += ", as a client does whose app subscribes anew, or did not poll within"
            text += f" max.poll.interval.ms (its rebalance timeout is {age(member.rebalance_ms)})"
            text += _not_committed(member, one)
    elif end is not None:
        text += f"; its connection ends {after((end.first or end).time_ns, ref.time_ns)} later"
    else:
        text += "; why is not in the recording"
    return f"{text}."


def _not_committed(member: Member, one: Happening) -> str:
    commit = member.commit
    if commit is None or (one.ref.time_ns - commit.time_ns) / 1e6 < member.rebalance_ms:
        return ""
    ago = after(one.ref.time_ns, commit.time_ns)
    return f"; its last {named(commit)} was {ago} before, longer than this timeout"


def _owns(names: MemberNames, one: Happening) -> str:
    return f"{_who(names, one)} says that it owns {assigned(one.given)} (#{one.ref.number})."


def _is_to_have(names: MemberNames, one: Happening) -> str:
    has = f"{_who(names, one)} is to have {assigned(one.given)} (#{one.ref.number})"
    return "; ".join([f"epoch {one.number}: {has}", *_silent(names, one)]) + "."


def _silent(names: MemberNames, one: Happening) -> Iterator[str]:
    for other in one.silent:
        last, owned = other.accepted, assigned(other.owns)
        assert last is not None
        owning = "" if owned == NO_PARTITIONS else f", which owned {owned},"
        silent = f"{after(one.ref.time_ns, last.time_ns)}, since #{last.number} at"
        text = f"{names.of(other.id)}{owning} has been silent for {silent} {clock(last.time_ns)}"
        kept = kept_requests(other, one.ref.time_ns)
        yield f"{text}: {kept}" if kept else text


_SENTENCES: dict[str, Callable[[MemberNames, Happening], str]] = {
    "asked": _asks,
    "could not join": _could_not_join,
    "undelivered": _undelivered,
    "let in": _let_in,
    "takes over": _takes_over,
    "nobody is refused": _nobody_is_refused,
    "refused": _refused,
    "learns": _refused,
    "refused beat": _refused_beat,
    "told": _told_by_rule,
    "wants to leave": _wants_to_leave,
    "left": _left,
    "joins": _does,
    "leaves": _does,
    "leaves for now": lambda names, one: (
        f"{_who(names, one)} leaves for now (static member) (#{one.ref.number})."
    ),
    "owns": _owns,
    "is to have": _is_to_have,
}
"""Kind of happening → its sentence."""
