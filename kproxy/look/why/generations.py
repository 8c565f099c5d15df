"""The generations of a classic group, as sentences: who came, who went and why, who has what."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.words.wording import age, listed, partitions
from kproxy.history.connections import Connections
from kproxy.history.group import Group
from kproxy.history.members import Generation, Given, Join, Member, Places, gave_up
from kproxy.history.ref import Ref, host_of
from kproxy.look.why.sentences import ended_by, named, no_answer, short_id

NO_PARTITIONS = "nothing"
_LISTED_MAX = 6


@attrs.frozen(eq=False)
class MemberNames:
    """The names of a group's members, and the ends of their connections."""

    group: Group
    connections: Connections
    _by_client: dict[str, list[Member]] = attrs.field(
        default=attrs.Factory(lambda self: _by_client(self.group), takes_self=True), init=False
    )

    def of(self, member_id: str) -> str:
        """Return the name of a member: its client id; with the end of its id if not unique, or with
        host and connection where a static member has several ids."""
        member = self.group.members.get(member_id)
        if member is None:
            return short_id(member_id, whole=True)
        name = client_name(member)
        others = self._by_client[name]
        if len(others) == 1:
            return name
        if member.instance and member.joined is not None:
            hosts = {host_of(each.joined) for each in others if each.joined is not None} - {""}
            where = f"{host_of(member.joined)}, " if len(hosts) > 1 else ""
            return f"{name} ({where}connection {member.joined.connection})"
        return f"{name} ({short_id(member_id)})"

    def end(self, connection: int) -> ConnectionEnd | None:
        """Return the end of a connection."""
        found = self.connections.get(connection)
        return None if found is None else found.end

    def is_over(self, connection: int, time_ns: int) -> bool:
        """Return whether a connection had ended at a time."""
        end = self.end(connection)
        return end is not None and (end.first or end).time_ns <= time_ns


def _by_client(group: Group) -> dict[str, list[Member]]:
    found: dict[str, list[Member]] = {}
    for each in group.members.values():
        found.setdefault(client_name(each), []).append(each)
    return found


def client_name(member: Member) -> str:
    """Return the client id of a member."""
    return member.ref.client_id or short_id(member.id, whole=True)


def assigned(places: Places) -> str:
    """Return partitions as text."""
    by_topic: dict[str, list[str]] = {}
    for topic, partition in sorted(places):
        by_topic.setdefault(topic, []).append(str(partition))
    return listed(partitions(*each) for each in by_topic.items()) or NO_PARTITIONS


def after(later_ns: int, earlier_ns: int) -> str:
    """Return the time between two moments as text."""
    return age(max(0.0, (later_ns - earlier_ns) / 1e6))


def generations(names: MemberNames) -> Iterator[tuple[int, str]]:
    """Yield what is to be said of each generation, with its time."""
    group = names.group
    before: Generation | None = None
    for nth, (_, now) in enumerate(sorted(group.generations.items())):
        if nth == 1 and group.generations_dropped:
            before = None
        if not now.joins:
            continue
        last_ns = max(each.ref.time_ns for each in now.joins.values())
        born_ns = min((given.ref.time_ns for _, given in now.synced.values()), default=last_ns)
        yield born_ns, f"{_generation(names, before, now)}. {_assignments(names, now)}".rstrip()
        before = now
    yield from _ended_since(names, before)


def _generation(names: MemberNames, before: Generation | None, now: Generation) -> str:
    if before is not None:
        return f"generation {before.number} → {now.number}: {causes(names, before, now)}{_gap(now)}"
    many = ""
    if now.has_member_list:
        many = f"{len(now.members)} member{'s' if len(now.members) != 1 else ''}, "
    who = listed((_joined(names, each, now) for each in sorted(now.members.values())), _LISTED_MAX)
    text = f"generation {now.number}: {many}{who}"
    text += "" if now.has_member_list else "; who else is in it is not in the recording"
    is_first = now.number == min(names.group.generations)
    return text + (
        "; what was before is not in the recording" if now.number > 1 and is_first else ""
    )


def _joined(names: MemberNames, member_id: str, now: Generation) -> str:
    join = now.joins.get(names.group.place(member_id))
    return names.of(member_id) + ("" if join is None else f" (#{join.ref.number})")


def causes(names: MemberNames, before: Generation, now: Generation) -> str:
    """Return why a generation followed another: who left, was silent, or came."""
    found: list[str] = []
    unknown: list[str] = []
    for each in _only_in(before, now):
        member = _earlier(each, now)
        if now.has_member_list or (member is not None and member.left is not None):
            found.append(_gone(names, each, member, now))
        else:
            unknown.append(names.of(each if member is None else member.id) + _ended(member))
    found += [_came(names, each, before, now) for each in _only_in(now, before)]
    if not found:  # no member is known to have joined or left: one joined again
        first = min(now.joins.values(), key=lambda each: each.ref.time_ns)
        why = _why_again(before, now, first)
        found.append(f"{first.ref.client_id} joined again first (#{first.ref.number}){why}")
    if unknown:
        still = "is still a member" if len(unknown) == 1 else "are still members"
        found.append(f"whether {listed(unknown, _LISTED_MAX)} {still} is not in the recording")
    return "; ".join(found)


def _why_again(before: Generation, now: Generation, first: Join) -> str:
    """Return why a generation followed another of the same members, one of which joined first."""
    member = now.earlier.get(first.member)
    if member is not None and member.told_by_rule is not None:
        return f": {_told(member.told_by_rule)}, had told it to"
    if (found := gave_up(before, now)) is not None:
        join, places = found
        whom = "it" if join is first else f"{join.ref.client_id} (#{join.ref.number})"
        return f": {whom} gave up {assigned(places)}, and cooperative members join again then"
    if first.reason:
        return f", “{first.reason}”"
    earlier = next((each for each in before.joins.values() if each.member == first.member), None)
    if earlier is not None and {*earlier.topics} != {*first.topics}:
        return f": it subscribes to {listed(first.topics, _LISTED_MAX)} now"
    return "; why is not in the recording"


def _ended(member: Member | None) -> str:
    if member is None or member.ended is None:
        return ""
    return f" (its connection {member.ended.connection} had ended without LeaveGroup)"


def _only_in(one: Generation, other: Generation) -> list[str]:
    """Return the members of one generation whose place nobody has in another."""
    return sorted(each for place, each in one.members.items() if place not in other.members)


def _earlier(member_id: str, now: Generation) -> Member | None:
    """Return who had the place of a member last, as it was when a generation began."""
    own = now.earlier.get(member_id)
    place = member_id if own is None else own.place
    found = (each for each in reversed(now.earlier.values()) if each.place == place)
    return next(found, own)


def _gone(names: MemberNames, member_id: str, member: Member | None, now: Generation) -> str:
    name = names.of(member_id if member is None else member.id)
    if member is not None and member.left is not None:
        reason = f" (“{member.reason}”)" if member.reason else ""
        return f"{name} left with #{member.left.number}{reason}"
    last = None if member is None else member.accepted
    if member is None or last is None:
        return f"{name} is no member any more; why is not in the recording"
    if told := member.told_to_join:
        return f"{name} did not join again, as {named(told)} had told it to"
    until_ns = min(
        (each.ref.answered_ns for each in now.joins.values()), default=last.time_ns
    )  # fmt: skip
    silence, since = after(until_ns, last.time_ns), f"{last.api} #{last.number}"
    cause = _cause_of_silence(member, until_ns) or _ended_after(names, last, until_ns)
    if until_ns - last.time_ns < member.session_ms * 1_000_000:
        why = cause or "; why is not in the recording"
        return f"{name} is no member any more, {silence} after {since}{why}"
    session = f", its session timeout is {age(member.session_ms)}" if member.session_ms else ""
    return f"{name} left after {silence} of silence (since {since}{session}){cause}"


def _ended_after(names: MemberNames, last: Ref, until_ns: int) -> str:
    """Return the end of a member's connection after its last request, without LeaveGroup."""
    end = names.end(last.connection)
    ended_ns = 0 if end is None else (end.first or end).time_ns
    if end is None or not last.time_ns <= ended_ns <= until_ns:
        return ""
    text = f"; its connection {last.connection} had ended {after(ended_ns, last.time_ns)} after"
    return f"{text} that {last.api}, {ended_by(end)}, without LeaveGroup"


def _ended_since(names: MemberNames, last: Generation | None) -> Iterator[tuple[int, str]]:
    """Yield which members of the last generation ended their connection without LeaveGroup."""
    group = names.group
    for member_id in sorted(last.members.values()) if last is not None else ():
        place = group.place(member_id)
        member = next((m for m in reversed(group.members.values()) if m.place == place), None)
        accepted = None if member is None or member.left is not None else member.accepted
        end = None if accepted is None else names.end(accepted.connection)
        side = None if end is None else end.first
        if member is None or accepted is None or side is None or side.side != "client":
            continue
        if side.time_ns >= accepted.time_ns:
            text = f"{names.of(member.id)} ends its connection {accepted.connection} ({side.how}),"
            text += f" {after(side.time_ns, accepted.time_ns)} after {named(accepted)}, without"
            yield side.time_ns, f"{text} LeaveGroup; no later generation is in the recording."


def _came(names: MemberNames, member_id: str, before: Generation, now: Generation) -> str:
    name, join = names.of(member_id), now.joins.get(names.group.place(member_id))
    if join is not None:
        return f"{name} joined (#{join.ref.number})"
    asked = names.group.unanswered.get(member_id)
    if asked is not None:
        return f"{name} joined (#{asked.number}; {no_answer(asked)})"
    if before.has_member_list:
        return f"{name} joined; its JoinGroup is not in the recording"
    return f"{name} is a member; since when is not in the recording"


def _gap(now: Generation) -> str:
    """Return how long members waited for partitions, from the first that joined."""
    if not now.synced:
        return ""
    joins = [each.ref for each in now.joins.values()]
    first = min(joins, key=lambda each: each.time_ns)
    last = max((given.ref for _, given in now.synced.values()), key=lambda each: each.answered_ns)
    text = f"; {after(last.answered_ns, first.time_ns)} from the first JoinGroup (#{first.number})"
    text += f" to the last assignment (#{last.number})"
    slow = max(joins, key=lambda each: each.time_ns)
    if slow is not first and slow.time_ns - first.time_ns > 1_000_000_000:
        text += f", of which {after(slow.time_ns, first.time_ns)} until {slow.client_id} joined"
        text += f" (#{slow.number})"
    return text


def _assignments(names: MemberNames, now: Generation) -> str:
    given = [
        f"{names.of(member_id)} has {_given(each)} (#{each.ref.number})"
        for _, (member_id, each) in sorted(now.synced.items())
    ]
    return f"{listed(given, _LISTED_MAX)}." if given else ""


def _given(given: Given) -> str:
    if given.undecoded:
        return f"an assignment that cannot be read ({given.undecoded})"
    return assigned(given.partitions)


def _told(told: Ref) -> str:
    """Return what a rule had a client told."""
    return f"{named(told)} → {listed(told.errors)}, {told.fate.made}"


def _cause_of_silence(member: Member, until_ns: int) -> str:
    """Return what rules had to do with the silence of a member; nothing where they had not."""
    if told := member.told_by_rule:
        return f": {named(told)} had told it {listed(told.errors)}, {told.fate.made}"
    kept = kept_requests(member, until_ns)
    return f": {kept}" if kept else ""


def kept_requests(member: Member, until_ns: int) -> str:
    """Return what a member sent since it was heard of, and what kept it from the broker."""
    since = member.accepted.number if member.accepted is not None else 0
    kept = [each for each in member.kept if each.number > since and each.time_ns < until_ns]
    if not kept:
        return ""
    first = min(kept, key=lambda each: each.number)
    more = f" and {len(kept) - 1} more" if len(kept) > 1 else ""
    return f"it had sent {named(first)}{more}, {first.fate.silence}"
