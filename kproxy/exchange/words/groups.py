"""Groups and transactions in words: members, assignments, commits."""

from __future__ import annotations

from typing import Any

from kproxy.exchange import embedded
from kproxy.exchange.words.wording import (
    Context,
    Words,
    at,
    by_topic,
    count,
    joined,
    listed,
    no_text,
    partitions,
    shortened,
    transaction,
)
from kproxy.units import format_bytes

# ---- groups


def _member(body: Any) -> str:
    name = getattr(body, "group_instance_id", None) or getattr(body, "instance_id", None)
    return name or shortened(body.member_id)


def _quote_reason(reason: str | None) -> str:
    """Quote the reason that a client gives for joining or leaving."""
    return f"“{reason}”" if reason else ""


def _join_group_request(request: Any, context: Context) -> str:
    protocols = listed(protocol.name for protocol in request.protocols or ())
    topics = undecoded = ""
    if request.protocol_type == "consumer" and request.protocols:
        wanted, undecoded = embedded.read_subscription(request.protocols[0].metadata)
        topics = "" if wanted is None else listed(wanted.topics)
    member = _member(request) or "new member"
    return joined(
        f"{request.group_id}: {member}",
        f"wants {topics}" if topics else "",
        f"its subscription cannot be read whole ({undecoded})" if undecoded else "",
        protocols,
        _quote_reason(request.reason),
    )


def _join_group_response(response: Any, context: Context) -> str:
    if response.error_code:
        return ""
    leads = response.leader == response.member_id
    role = f"leader of {count(len(response.members or ()), 'member')}" if leads else "follower"
    return joined(f"generation {response.generation_id}", role, response.protocol_name or "")


def _sync_group_request(request: Any, context: Context) -> str:
    assigns = count(len(request.assignments), "member") if request.assignments else ""
    return joined(
        f"{request.group_id}: generation {request.generation_id}",
        f"assigns {assigns}" if assigns else "",
    )


def _sync_group_response(response: Any, context: Context) -> str:
    if response.protocol_type not in (None, "", "consumer"):
        return f"assignment {format_bytes(len(response.assignment))}"
    return "" if response.error_code else _assigned_partitions(response.assignment)


def _assigned_partitions(assignment: bytes | None) -> str:
    found, undecoded = embedded.read_assignment(assignment)
    if found is None:
        size = f"assignment {format_bytes(len(assignment or b''))}"
        return f"{size} ({undecoded})" if undecoded else "nothing assigned"
    topics = found.assigned_partitions
    text = listed(partitions(each.topic, [str(p) for p in each.partitions]) for each in topics)
    note = f"the assignment cannot be read whole ({undecoded})" if undecoded else ""
    return joined(text or "nothing assigned", note)


def _heartbeat_request(request: Any, context: Context) -> str:
    return joined(f"{request.group_id}: generation {request.generation_id}", _member(request))


def _leave_group_request(request: Any, context: Context) -> str:
    members = request.members or [request]
    reasons = dict.fromkeys(getattr(member, "reason", None) or "" for member in members)
    leaving = listed(_member(member) for member in members)
    return joined(f"{request.group_id}: {leaving}", *(_quote_reason(reason) for reason in reasons))


_MEMBER_EPOCHS = {0: "joins", -1: "leaves", -2: "leaves for now"}


def _group_heartbeat_request(request: Any, context: Context) -> str:
    epoch = request.member_epoch
    topics = listed(getattr(request, "subscribed_topic_names", None) or ())
    member = _member(request)
    return joined(
        f"{request.group_id}: {member or 'new member'}",
        _MEMBER_EPOCHS.get(epoch, f"epoch {epoch}"),
        f"wants {topics}" if topics else "",
        getattr(request, "subscribed_topic_regex", None) or "",
        _owned_partitions(request, context),
    )


def _owned_partitions(request: Any, context: Context) -> str:
    """Return the partitions that a member of a KIP-848 group says it owns; most heartbeats do not
    say."""
    topics = getattr(request, "topic_partitions", None)
    if topics is None or (not topics and request.member_epoch <= 0):
        return ""
    return f"owns {by_topic(topics, context, 'partitions', str) or 'nothing'}"


def _group_heartbeat_response(response: Any, context: Context) -> str:
    if response.error_code or response.assignment is None:
        return ""
    where = by_topic(response.assignment.topic_partitions, context, "partitions", str)
    return joined(f"epoch {response.member_epoch}", where or "nothing assigned")


def _offset_commit_request(request: Any, context: Context) -> str:
    where = by_topic(
        request.topics, context, "partitions", lambda p: at(p.partition_index, p.committed_offset)
    )
    return joined(f"{request.group_id}: {where}", transaction(request))


def _offset_fetch_request(request: Any, context: Context) -> str:
    def group(each: Any) -> str:
        where = by_topic(each.topics, context, "partition_indexes", str)
        return f"{each.group_id}: {'all' if each.topics is None else where}"

    return listed(group(each) for each in request.groups or [request])


def _offset_fetch_response(response: Any, context: Context) -> str:
    def committed(each: Any) -> str:
        # A request for all partitions names none of them.
        return by_topic(
            each.topics, context, "partitions", lambda p: at(p.partition_index, p.committed_offset)
        )

    groups = response.groups or ()
    if len(groups) > 1:
        found = ((each.group_id, committed(each)) for each in groups)
        return listed(sorted(f"{name}: {where}" for name, where in found if where))
    where = committed(groups[0] if groups else response)
    return where or ("" if response.error_code else "nothing committed")


def _describe_groups_response(response: Any, context: Context) -> str:
    return listed(
        joined(f"{each.group_id}: {each.group_state}", count(len(each.members or ()), "member"))
        for each in sorted(response.groups or (), key=lambda group: group.group_id)
        if not each.error_code
    )


# ---- transactions


def _init_producer_id_request(request: Any, context: Context) -> str:
    return transaction(request) or "idempotent"


def _producer_id_response(response: Any, context: Context) -> str:
    if response.error_code or response.producer_id < 0:
        return ""
    return f"producer {response.producer_id} epoch {response.producer_epoch}"


def _add_partitions_request(request: Any, context: Context) -> str:
    if request.transactions:
        return listed(
            f"{each.transactional_id}: {by_topic(each.topics, context, 'partitions', str)}"
            for each in request.transactions
        )
    where = by_topic(request.v3_and_below_topics, context, "partitions", str)
    return f"{request.v3_and_below_transactional_id}: {where}"


def _add_offsets_request(request: Any, context: Context) -> str:
    return f"{request.transactional_id}: group {request.group_id}"


def _end_txn_request(request: Any, context: Context) -> str:
    return f"{request.transactional_id}: {'commit' if request.committed else 'abort'}"


WORDS: Words = {
    "JoinGroup": (_join_group_request, _join_group_response),
    "SyncGroup": (_sync_group_request, _sync_group_response),
    "Heartbeat": (_heartbeat_request, no_text),
    "LeaveGroup": (_leave_group_request, no_text),
    "ConsumerGroupHeartbeat": (_group_heartbeat_request, _group_heartbeat_response),
    "ShareGroupHeartbeat": (_group_heartbeat_request, _group_heartbeat_response),
    "OffsetCommit": (_offset_commit_request, no_text),
    "OffsetFetch": (_offset_fetch_request, _offset_fetch_response),
    "DescribeGroups": (None, _describe_groups_response),
    "ConsumerGroupDescribe": (None, _describe_groups_response),
    "ShareGroupDescribe": (None, _describe_groups_response),
    "InitProducerId": (_init_producer_id_request, _producer_id_response),
    "AddPartitionsToTxn": (_add_partitions_request, no_text),
    "AddOffsetsToTxn": (_add_offsets_request, no_text),
    "TxnOffsetCommit": (_offset_commit_request, no_text),
    "EndTxn": (_end_txn_request, _producer_id_response),
}
