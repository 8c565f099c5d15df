"""Findings about groups: where they stand still, who has too little to do, why they rebalance.

GroupPosition (the next offset, Fetches that brought it, lives that ended there) ─▶ standstill
Member, Generation ─▶ idle members, uneven assignments, rebalances · coordinators ─▶ moves
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.words.wording import age, count, listed
from kproxy.history.group import Group
from kproxy.history.history import History
from kproxy.history.members import Generation, Load, gave_up
from kproxy.history.ref import Ref
from kproxy.history.standstills import Standstill
from kproxy.look.why.finding import Finding, Harm, Subject, numbered
from kproxy.look.why.generations import assigned
from kproxy.look.why.sentences import clock, named, offsets, who

_GROUPS_TOLD = 3
_UNEVEN_MORE = 3
REBALANCES = "rebalances"
"""The kind of a finding that a report need not repeat."""


def standstills(history: History) -> Iterator[Finding]:
    """Yield the offsets to which groups come back, again and again."""
    for group in history.groups:
        found: dict[tuple[bool, bool], list[tuple[TopicPartition, Standstill]]] = {}
        for where, position in sorted(group.positions.items()):
            for each in (*position.stood, *filter(None, (position.stands,))):
                if each.is_found and each.record is not None:
                    kind = each.is_of_lives, each.until is None
                    found.setdefault(kind, []).append((where, each))
        for (is_of_lives, _), stood in found.items():
            yield (_lives if is_of_lives else _fetched_again)(group, stood)


def _lives(group: Group, found: list[tuple[TopicPartition, Standstill]]) -> Finding:
    """Return that members ended which had fetched these records."""
    found.sort(key=lambda each: -len(each[1].lives))
    (_, stood), lives = found[0], found[0][1].lives
    ways = Counter(each.how for each in lives)
    how = ", ".join(f"{times} {way}" for way, times in ways.most_common())
    numbers = [each.fetched.number for each in lives]
    after_ms = max(each.ended_ns - each.fetched.completed_ns for each in lives) / 1e6
    clients = listed(dict.fromkeys(who(each.fetched) for each in lives), 3)
    brought = f"{clients} fetched {offsets(stood.record or 0, stood.end - 1)}"
    records = "that record" if len(found) == 1 else "one of these records"
    evidence = (
        f"{brought} with {numbered(numbers)}. Of these members {how}, up to {age(after_ms)} later:"
        f" the app may fail at {records}."
    )
    what = f"{count(len(lives), 'member')} fetched it, and ended before committing more."
    return _standstill(group, found, Harm.DATA, "record at which members end", what, evidence)


def _fetched_again(group: Group, found: list[tuple[TopicPartition, Standstill]]) -> Finding:
    """Return that members fetched these records again and again."""
    found.sort(key=lambda each: -each[1].times)
    stood = found[0][1]
    first, last = stood.first, stood.last
    assert first is not None
    assert last is not None
    evidence = (
        f"{who(last)} fetched it from {named(first)} of {clock(first.time_ns)} until {named(last)},"
        f" {age((last.time_ns - first.time_ns) / 1e6)} later."
    )
    what = f"fetched {stood.times} times, and nothing behind it committed."
    return _standstill(group, found, Harm.LATENCY, "record that is fetched again", what, evidence)


def _standstill(
    group: Group,
    found: list[tuple[TopicPartition, Standstill]],
    harm: Harm,
    kind: str,
    what: str,
    evidence: str,
) -> Finding:
    places = [f"{topic}[{partition}]@{each.record}" for (topic, partition), each in found]
    more = () if len(found) == 1 else (f"Likewise {listed(places[1:], _GROUPS_TOLD)}.",)
    noun = "other place" if len({where for where, _ in found}) < len(found) else "other partition"
    others = f" and {count(len(found) - 1, noun)}" if more else ""
    (topic, _), stood = found[0]
    stands = "stood" if stood.until else "stands"
    return Finding(
        harm,
        kind,
        f"Group {group.name} {stands} still at {places[0]}{others}: {what}",
        tuple(each.number for each in (stood.first, stood.last) if each is not None),
        Subject("group", group.name),
        topic,
        evidence=(evidence, _committed(stood), *more),
    )


def _committed(stood: Standstill) -> str:
    if stood.committed is None:
        text = "Nothing is committed"
    else:
        ref = stood.committed
        text = f"{stood.offset} is committed since {named(ref)} ({clock(ref.time_ns)})"
    if stood.until is None:
        return f"{text}."
    return f"{text}, until {named(stood.until)} ({clock(stood.until.time_ns)})."


# ---- who has which partitions


def idle_members(history: History) -> Iterator[Finding]:
    """Yield the groups with members that have nothing to read."""
    for group in history.groups:
        crowded = [(_idle(loads), number) for number, loads in group.loads.items()]
        idle, number = max(crowded, default=([], 0), key=lambda each: (len(each[0]), each[1]))
        loads = group.loads.get(number, ())
        read = sum(len(each.given.partitions) for each in loads)
        if not idle or not read:
            continue
        times = Counter(who(each.member) for each in idle).items()
        names = listed((f"{name} ×{n}" if n > 1 else name for name, n in times), _GROUPS_TOLD)
        numbers = tuple(each.given.ref.number for each in idle)
        has = "has" if len(idle) == 1 else "have"
        yield Finding(
            Harm.CURIOSITY,
            "idle members",
            f"{len(idle)} of {count(len(loads), 'member')} of group {group.name} {has} no"
            f" partition: {names}.",
            numbers,
            Subject("group", group.name),
            evidence=(
                f"Since {numbered(numbers)}. The others read {count(read, 'partition')} together.",
                *_by_topic(loads),
            ),
        )


def _idle(loads: tuple[Load, ...]) -> list[Load]:
    return [each for each in loads if not each.given.partitions and not each.given.undecoded]


def uneven_assignments(history: History) -> Iterator[Finding]:
    """Yield the groups in which a member has many more partitions than another that subscribes to
    the same topics."""
    for group in history.groups:
        for loads in reversed(group.loads.values()):
            found = next(_uneven(loads), None)
            if found is not None:
                yield _uneven_finding(group, loads, *found)
                break


def _uneven(loads: tuple[Load, ...]) -> Iterator[tuple[Load, Load]]:
    by_topics: dict[tuple[str, ...], list[Load]] = {}
    for each in loads:
        if each.given.partitions:
            by_topics.setdefault(tuple(sorted(each.topics)), []).append(each)
    for same in by_topics.values():
        many, few = max(same, key=_partitions), min(same, key=_partitions)
        if _partitions(many) >= max(2 * _partitions(few), _partitions(few) + _UNEVEN_MORE):
            yield many, few


def _partitions(load: Load) -> int:
    return len(load.given.partitions)


def _by_topic(loads: tuple[Load, ...]) -> Iterator[str]:
    """Yield why an assignment is uneven, if it is even for each topic: then the assignor, as range
    does, shares out each by itself."""
    topics = {each for load in loads for each in load.topics}
    shares = [
        [sum(where.topic == topic for where in load.given.partitions) for load in loads]
        for topic in topics
    ]
    totals = [_partitions(load) for load in loads]
    same = len({tuple(sorted(load.topics)) for load in loads}) == 1
    if same and max(totals) - min(totals) > 1 and all(max(n) - min(n) <= 1 for n in shares):
        yield (
            "Each topic by itself is shared out evenly, as range does; cooperative-sticky, sticky"
            " and roundrobin share out the partitions of all topics together."
        )


def _uneven_finding(group: Group, loads: tuple[Load, ...], many: Load, few: Load) -> Finding:
    has = [
        f"{who(each.member)} has {assigned(each.given.partitions)} ({named(each.given.ref)})"
        for each in (many, few)
    ]
    return Finding(
        Harm.CURIOSITY,
        "uneven assignment",
        f"Group {group.name} is uneven: one member has {count(_partitions(many), 'partition')},"
        f" another {_partitions(few)}.",
        (many.given.ref.number, few.given.ref.number),
        Subject("group", group.name),
        evidence=(f"{'; '.join(has)}. Both subscribe to the same topics.", *_by_topic(loads)),
    )


# ---- coordinators, and rebalances


def coordinator_moves(history: History) -> Iterator[Finding]:
    """Yield the brokers that are coordinators no more, and those that are instead."""
    moved: dict[tuple[bool, int, int], list[tuple[str, Ref, Ref]]] = {}
    for (is_group, key), told in sorted(history.groups.coordinators.items()):
        for before, now in pairwise(told):
            if before.value != now.value:
                pair = is_group, before.value, now.value
                moved.setdefault(pair, []).append((key, before.last, now.first))
    for (is_group, before, now), found in sorted(moved.items()):
        key, last, first = found[0]
        noun = "group" if is_group else "transactional id"
        what = noun if len(found) == 1 else count(len(found), noun)
        names = listed((each for each, _, _ in found), _GROUPS_TOLD)
        yield Finding(
            Harm.CURIOSITY,
            "coordinator that moved",
            f"The coordinator of {what} {names} moved from broker {before} to broker {now}.",
            (last.number, first.number),
            Subject("group" if is_group else "transactional_id", key),
            evidence=(f"{named(last)} names broker {before}, {named(first)} broker {now}.",),
        )


def rebalances(history: History) -> Iterator[Finding]:
    """Yield how often groups rebalanced, and because of what."""
    for group in history.groups:
        found = [group.generations[number] for number in sorted(group.generations)]
        causes: dict[str, list[int]] = {}
        for before, now in pairwise(found):
            known = [*_causes(before, now)]
            if not known and (found_again := gave_up(before, now)) is not None:
                known = [("joined again to give up partitions", found_again[0].ref.number)]
            for cause, number in known:
                causes.setdefault(cause, []).append(number)
        if group.generations_dropped or not causes:
            continue
        ordered = [(cause, sorted(numbers)) for cause, numbers in causes.items()]
        ordered.sort(key=lambda each: -len(each[1]))
        said = [f"{len(numbers)} {cause}" for cause, numbers in ordered]
        said[0] = f"{count(len(ordered[0][1]), 'member')} {ordered[0][0]}"
        times = len(found) - 1
        yield Finding(
            Harm.LATENCY if times > len(group.members) else Harm.CURIOSITY,
            REBALANCES,
            f"Group {group.name} rebalanced {count(times, 'time')}: {', '.join(said)}.",
            tuple(ordered[0][1][:_GROUPS_TOLD]),
            Subject("group", group.name),
            evidence=tuple(
                f"{cause.capitalize()}: {numbered(numbers)}." for cause, numbers in ordered
            ),
        )


def _causes(before: Generation, now: Generation) -> Iterator[tuple[str, int]]:
    """Yield what members did that led from a generation to the next, and an exchange that shows
    it."""
    for place in now.members.keys() - before.members.keys():
        if place in now.joins:
            yield "joined", now.joins[place].ref.number
    for member in now.earlier.values():
        last = member.accepted
        if member.place in now.members:
            continue
        if member.left is not None:
            yield "left", member.left.number
        elif member.ended is not None:
            yield "ended without leaving", member.ended.number
        elif now.has_member_list and last is not None:
            yield "fell silent", last.number
