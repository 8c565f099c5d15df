"""Causes that lie with groups: members that are gone, generations that are over, coordinators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import matching
from kproxy.exchange.words.wording import age, listed, shortened
from kproxy.why.case import Case, api
from kproxy.why.sentences import NOT_RECORDED, client, named

_OF_MEMBERS = ("JoinGroup", "SyncGroup", "Heartbeat", "OffsetCommit", "LeaveGroup")


@attrs.define(eq=False)
class _Membership:
    """What the recording has of a member and its group before a request of it failed."""

    last: Exchange | None = None
    """Its last request that the coordinator accepted, or answered with a rebalance."""
    told: Exchange | None = None
    """The first answer that told it to join again, since it last did."""
    session_ms: int = 0
    left: Exchange | None = None
    reason: str = ""
    generation: int = -1
    """The newest generation that the coordinator has told to anybody."""
    newest: Exchange | None = None
    """The JoinGroup that was told it first."""


def _generation(request: Any) -> int:
    given = getattr(request, "generation_id", None)
    return getattr(request, "generation_id_or_member_epoch", -1) if given is None else given


def _group(case: Case) -> str:
    return case.exchange.groups[0] if case.exchange.groups else ""


def _membership(case: Case, member: str) -> _Membership:
    exchange = case.exchange
    instance = getattr(exchange.request, "group_instance_id", None) or ""
    own = {member, instance} - {""}
    found = _Membership()
    joins: list[Exchange] = []
    for each in case.others(matching("group", _group(case)), api(*_OF_MEMBERS)):
        if each.request is None or each.time_ns > exchange.completed_ns:
            continue
        if each.api == "JoinGroup" and member in _members(each):
            joins.append(each)
        if each.completed_ns <= exchange.completed_ns and each.response is not None:
            _take(found, each, own)
    if found.told is not None and any(one.time_ns > found.told.time_ns for one in joins):
        found.told = None
    return found


def _members(each: Exchange) -> set[str]:
    """Return the members whom a request and its response are of."""
    own = {getattr(each.request, "member_id", None), getattr(each.response, "member_id", None)}
    for one in getattr(each.request, "members", None) or ():  # of a LeaveGroup
        own |= {one.member_id, one.group_instance_id}
    return {name for name in own if name}


def _take(found: _Membership, each: Exchange, own: set[str]) -> None:
    """Take an exchange that was answered before the failure."""
    if each.errors:
        if each.errors == ["REBALANCE_IN_PROGRESS"] and own & _members(each):
            found.last, found.told = each, found.told or each
        return
    if each.api == "JoinGroup" and each.response.generation_id > found.generation:
        found.generation, found.newest = each.response.generation_id, each
    if not own & _members(each):
        return
    if each.api == "LeaveGroup":
        found.left = each
        leaving = getattr(each.request, "members", None) or ()
        found.reason = next((one.reason for one in leaving if one.reason), "")
        return
    found.last, found.left = each, None
    if each.api == "JoinGroup":
        found.session_ms, found.told = each.request.session_timeout_ms, None


def membership_lost(case: Case) -> Iterator[str]:
    """Yield what ended a membership or its generation: a LeaveGroup, a rebalance, silence."""
    exchange = case.exchange
    member, generation = getattr(exchange.request, "member_id", ""), _generation(exchange.request)
    if exchange.api == "OffsetCommit" and not member and generation < 0:
        yield ("It commits for no member: a group takes such commits only while it has no members.")
        return
    if not member and exchange.api != "JoinGroup":
        yield "The request names no member id."
        member = _member_before(case)
    found = _membership(case, member)
    said = [*_lost(case, found, generation)]
    yield from said or [f"What ended the membership {NOT_RECORDED}."]


def _member_before(case: Case) -> str:
    """Return the last member that joined the group on the connection; "" if the recording shows
    none."""
    member = ""
    on_connection = matching("connection", str(case.exchange.connection))
    for each in case.before(on_connection, matching("group", _group(case)), api("JoinGroup")):
        member = member if each.errors else each.response.member_id
    return member


def _lost(case: Case, found: _Membership, generation: int) -> Iterator[str]:
    if found.left is not None:
        reason = f" (“{found.reason}”)" if found.reason else ""
        yield f"{case.when(found.left)}, took the member out of the group{reason}."
    newer = found.newest is not None and found.generation > generation >= 0
    if newer and found.newest is not None:
        yield (
            f"The group is in generation {found.generation}, as {case.when(found.newest)}, shows;"
            f" this request is of generation {generation}."
        )
    if found.last is None or found.left is not None:
        return
    if found.told is not None:
        yield f"{case.when(found.told)}, told the member to join again; it had not, until then."
    silent_ms = (case.exchange.time_ns - found.last.completed_ns) / 1e6
    if found.session_ms and silent_ms >= found.session_ms:
        yield (
            f"Before it the member was silent for {age(silent_ms)}, since {named(found.last)}; its"
            f" session timeout is {age(found.session_ms)}, after which a coordinator removes it."
        )


def rebalance(case: Case) -> Iterator[str]:
    """Yield the first sign of the rebalance that a member learns of."""
    found = _first_sign(case)
    if found is None:
        yield f"What began the rebalance {NOT_RECORDED}."
        return
    what = "joins" if found.api == "JoinGroup" else "leaves"
    yield f"The first sign of the rebalance is {case.when(found)}: {client(found)} {what}."


def _first_sign(case: Case) -> Exchange | None:
    """Return the first request by which a member joined the generation after that of a request, or
    left its own."""
    exchange, generation = case.exchange, _generation(case.exchange.request)
    member = getattr(exchange.request, "member_id", "")
    begun_ns: int | None = None
    signs: list[Exchange] = []
    for each in case.others(matching("group", _group(case)), api("JoinGroup", "LeaveGroup")):
        if each.time_ns > exchange.completed_ns or each.errors:
            continue
        joined = getattr(each.response, "generation_id", None)
        if joined == generation:
            begun_ns = begun_ns or each.completed_ns
        elif member not in _members(each) and (joined is None or joined > generation >= 0):
            signs.append(each)
    # One without an answer, or that leaves, is of this rebalance if it came in this generation.
    for each in sorted(signs, key=lambda one: one.time_ns):
        newer = getattr(each.response, "generation_id", None) is not None
        if newer or (begun_ns is not None and each.time_ns >= begun_ns):
            return each
    return None


def member_id(case: Case) -> Iterator[str]:
    """Yield the id that the coordinator gives to a new member."""
    given = getattr(case.exchange.response, "member_id", "")
    if given:
        yield f"The new member's id is {shortened(given)}."


def instance_taken(case: Case) -> Iterator[str]:
    """Yield who joined with the same group.instance.id."""
    request = case.exchange.request
    instance = getattr(request, "group_instance_id", None) or getattr(request, "instance_id", None)
    member = getattr(request, "member_id", "")
    taker: Exchange | None = None
    for each in case.before(matching("group", _group(case)), api("JoinGroup")):
        same = getattr(each.request, "group_instance_id", None) == instance
        if each.errors or not instance or not same:
            continue
        taker = None if each.response.member_id == member else each
    if taker is None:
        yield f"Who else joined as {instance or 'this static member'} {NOT_RECORDED}."
        return
    yield f"{case.when(taker)}, joined as static member {instance}, too: {client(taker)}."


def protocols(case: Case) -> Iterator[str]:
    """Yield the assignors that a member offers, and those that the last one offered."""
    offered = _protocols(case.exchange)
    if not offered:
        return
    yield f"It offers {offered}."
    joins = case.before(matching("group", _group(case)), api("JoinGroup"))
    accepted = [each for each in joins if not each.errors]
    if accepted:
        yield f"{named(accepted[-1])} of {client(accepted[-1])} offered {_protocols(accepted[-1])}."
    else:
        yield f"What the other members offer {NOT_RECORDED}."


def _protocols(exchange: Exchange) -> str:
    given = getattr(exchange.request, "protocols", None) or ()
    names = listed((each.name for each in given), 5)
    return f"{exchange.request.protocol_type} protocols {names}" if names else ""


def session_timeout(case: Case) -> Iterator[str]:
    """Yield the session timeout that a member asks for."""
    asked_ms = getattr(case.exchange.request, "session_timeout_ms", None)
    if asked_ms is not None:
        yield f"It asks for a session timeout of {age(asked_ms)}."


def member_epoch(case: Case) -> Iterator[str]:
    """Yield the last epoch that the coordinator gave to a member of KIP-848."""
    exchange = case.exchange
    member = getattr(exchange.request, "member_id", "")
    last: Exchange | None = None
    for each in case.before(matching("group", _group(case)), api("ConsumerGroupHeartbeat")):
        if not each.errors and member and member in _members(each):
            last = each
    if last is None:
        yield f"Which epoch the coordinator gave the member last {NOT_RECORDED}."
        return
    epoch = getattr(exchange.request, "member_epoch", None)
    epoch = _generation(exchange.request) if epoch is None else epoch
    silent_ms = max(0.0, (exchange.time_ns - last.completed_ns) / 1e6)
    yield (
        f"The last epoch that the coordinator gave the member is {last.response.member_epoch}"
        f" ({named(last)}, {age(silent_ms)} before); this request has epoch {epoch}."
    )


def open_transactions(case: Case) -> Iterator[str]:
    """Yield the transactions that hold offsets of a group and have not ended."""
    held: dict[str, Exchange] = {}
    for each in case.before(api("TxnOffsetCommit", "EndTxn")):
        if each.errors or each.request is None:
            continue
        name = each.request.transactional_id
        if each.api == "EndTxn":
            held.pop(name, None)
        elif each.request.group_id == _group(case):
            held[name] = each
    if not held:
        yield f"Which transaction holds the offsets {NOT_RECORDED}."
    for name, each in list(held.items())[:2]:
        yield f"{case.when(each)}, holds offsets for transaction {name}, which has not ended."


def coordinator(case: Case) -> Iterator[str]:
    """Yield which broker is told to be the coordinator, before and after."""
    exchange = case.exchange
    names = exchange.transactional_ids if exchange.api != "TxnOffsetCommit" else []
    kind, keys = ("transactional_id", names) if names else ("group", exchange.groups)
    if not keys:
        return
    key = keys[0]
    before: tuple[Exchange, int] | None = None
    after: tuple[Exchange, int] | None = None
    for each in case.others(matching(kind, key), api("FindCoordinator")):
        node = _node(each, key)
        if node is None:
            continue
        if each.completed_ns <= exchange.time_ns:
            before = each, node
        elif each.time_ns >= exchange.completed_ns:
            after = after or (each, node)
    if exchange.api != "FindCoordinator" and before is not None:
        yield f"{case.when(before[0])}, named broker {before[1]} as the coordinator of {key}."
    if after is not None:
        yield f"{case.when(after[0])}, names broker {after[1]}."
    else:
        yield f"Which broker is its coordinator after it {NOT_RECORDED}."


def _node(found: Exchange, key: str) -> int | None:
    response = found.response
    if response is None:
        return None
    for each in response.coordinators or ():
        if each.key == key:
            return None if each.error_code else each.node_id
    return None if response.error_code or response.coordinators else response.node_id
