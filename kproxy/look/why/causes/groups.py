"""Causes that lie with groups: members that are gone, generations that are over, coordinators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kproxy.exchange.words.wording import age, listed
from kproxy.history.group import Group
from kproxy.history.kept import Extents
from kproxy.history.members import Member
from kproxy.history.ref import Ref
from kproxy.look.why.case import Case
from kproxy.look.why.sentences import NOT_RECORDED, client, named


def _group(case: Case) -> Group:
    name = case.exchange.groups[0] if case.exchange.groups else ""
    return case.history.groups.get(name) or Group(name)


def _generation(request: Any) -> int:
    given = getattr(request, "generation_id", None)
    return getattr(request, "generation_id_or_member_epoch", -1) if given is None else given


def _instance(request: Any) -> str:
    named = getattr(request, "group_instance_id", None) or getattr(request, "instance_id", None)
    return named or ""


def membership_lost(case: Case) -> Iterator[str]:
    """Yield what ended a membership or its generation: a LeaveGroup, a rebalance, silence."""
    exchange = case.exchange
    member_id, generation = (
        getattr(exchange.request, "member_id", ""),
        _generation(exchange.request),
    )
    if exchange.api == "OffsetCommit" and not member_id and generation < 0:
        yield ("It commits for no member: a group takes such commits only while it has no members.")
        return
    group = _group(case)
    if member_id or exchange.api == "JoinGroup":
        member = group.members.get(member_id) or group.holder(_instance(exchange.request))
    else:
        yield "The request names no member id."
        member = group.on_connection(exchange.connection)
    said = [*_lost(case, group, member, generation)]
    yield from said or [f"What ended the membership {NOT_RECORDED}."]


def _lost(case: Case, group: Group, member: Member | None, generation: int) -> Iterator[str]:
    left = None if member is None else member.left
    if member is not None and left is not None:
        reason = f" (“{member.reason}”)" if member.reason else ""
        yield f"{case.when(left)}, took the member out of the group{reason}."
    if group.newest is not None and group.newest_generation > generation >= 0:
        yield (
            f"The group is in generation {group.newest_generation}, as"
            f" {case.when(group.newest.ref)}, shows; this request is of generation {generation}."
        )
    if member is None or member.accepted is None or left is not None:
        return
    if member.told_to_join is not None:
        told = case.when(member.told_to_join)
        yield f"{told}, told the member to join again; it had not, until then."
    silent_ms = (case.exchange.time_ns - member.accepted.completed_ns) / 1e6
    if member.session_ms and silent_ms >= member.session_ms:
        yield (
            f"Before it the member was silent for {age(silent_ms)}, since {named(member.accepted)};"
            f" its session timeout is {age(member.session_ms)}, after which a coordinator removes"
            " it."
        )


def rebalance(case: Case) -> Iterator[str]:
    """Yield the first sign of the rebalance that a member learns of."""
    found = _first_sign(case, _group(case))
    if found is None:
        yield f"What began the rebalance {NOT_RECORDED}."
        return
    what = "joins" if found.api == "JoinGroup" else "leaves"
    yield f"The first sign of the rebalance is {case.when(found)}: {client(found)} {what}."


def _first_sign(case: Case, group: Group) -> Ref | None:
    """Return the first request by which another member joined the generation after that of a
    request, or left its own."""
    request = case.exchange.request
    number, member_id = _generation(request), getattr(request, "member_id", "")
    own = group.generations.get(number)
    later = min((each for each in group.generations if each > number >= 0), default=None)
    after = None if later is None else group.generations[later]
    signs = [each.ref for each in after.joins.values() if each.member != member_id] if after else []
    if own is not None and own.joins:
        # One without an answer, or that leaves, is of this rebalance if it came in this generation.
        begun_ns = min(each.ref.completed_ns for each in own.joins.values())
        others = [*group.members.values(), *(after.earlier.values() if after else ())]
        maybe = [each.left for each in others if each.left and each.id != member_id]
        maybe += [ref for other_id, ref in group.unanswered.items() if other_id != member_id]
        signs += [each for each in maybe if each.time_ns >= begun_ns]
    known = [each for each in signs if each.time_ns <= case.exchange.completed_ns]
    return min(known, key=lambda each: each.time_ns, default=None)


def instance_taken(case: Case) -> Iterator[str]:
    """Yield who joined with the same group.instance.id."""
    instance = _instance(case.exchange.request)
    taker = _group(case).holder(instance)
    own = getattr(case.exchange.request, "member_id", "")
    if taker is None or taker.joined is None or taker.id == own:
        yield f"Who else joined as {instance or 'this static member'} {NOT_RECORDED}."
        return
    joined = taker.joined
    yield f"{case.when(joined)}, joined as static member {instance}, too: {client(joined)}."


def protocols(case: Case) -> Iterator[str]:
    """Yield the assignors that a member offers, and those that the last one offered."""
    request = case.exchange.request
    names = [each.name for each in getattr(request, "protocols", None) or ()]
    if not names:
        return
    yield f"It offers {_protocols(request.protocol_type, names)}."
    last = _group(case).offered
    if last is None:
        yield f"What the other members offer {NOT_RECORDED}."
        return
    ref, row = last
    offered = _protocols(row.protocol_type, row.protocols)
    yield f"{named(ref)} of {client(ref)} offered {offered}."


def _protocols(protocol_type: str, names: Sequence[str]) -> str:
    return f"{protocol_type} protocols {listed(names, 5)}" if names else ""


def member_epoch(case: Case) -> Iterator[str]:
    """Yield the last epoch that the coordinator gave to a member of KIP-848."""
    exchange = case.exchange
    member = _group(case).members.get(getattr(exchange.request, "member_id", ""))
    if member is None or member.epoch is None:
        yield f"Which epoch the coordinator gave the member last {NOT_RECORDED}."
        return
    last, given = member.epoch
    epoch = getattr(exchange.request, "member_epoch", None)
    epoch = _generation(exchange.request) if epoch is None else epoch
    silent_ms = max(0.0, (exchange.time_ns - last.completed_ns) / 1e6)
    yield (
        f"The last epoch that the coordinator gave the member is {given}"
        f" ({named(last)}, {age(silent_ms)} before); this request has epoch {epoch}."
    )


def coordinator(case: Case) -> Iterator[str]:
    """Yield which broker is told to be the coordinator, before and after."""
    exchange = case.exchange
    names = exchange.transactional_ids if exchange.api != "TxnOffsetCommit" else []
    keys = names or exchange.groups
    if not keys:
        return
    told = case.history.groups.coordinators.get((not names, keys[0]), Extents[int]())
    role, unknown = f"the coordinator of {keys[0]}", "Which broker is its coordinator after it"
    if exchange.api != "FindCoordinator":
        yield from case.broker_before(told, role)
    yield from case.broker_after(told, unknown)
