"""Causes that lie with logins and permissions."""

from __future__ import annotations

from collections.abc import Iterator

from kproxy.exchange.words.wording import listed
from kproxy.history.connections import LOGIN_APIS
from kproxy.history.events import DENIED
from kproxy.history.ref import Ref
from kproxy.look.why.case import Case
from kproxy.look.why.sentences import NOT_RECORDED, named

_OPERATIONS = {
    "Produce": "WRITE on the topic",
    "Fetch": "READ on the topic",
    "ListOffsets": "DESCRIBE on the topic",
    "Metadata": "DESCRIBE on the topic",
    "CreateTopics": "CREATE on the topic or the cluster",
    "DeleteTopics": "DELETE on the topic",
    "DeleteRecords": "DELETE on the topic",
    "CreatePartitions": "ALTER on the topic",
    "JoinGroup": "READ on the group",
    "SyncGroup": "READ on the group",
    "Heartbeat": "READ on the group",
    "LeaveGroup": "READ on the group",
    "ConsumerGroupHeartbeat": "READ on the group, DESCRIBE on the topics",
    "OffsetCommit": "READ on the group, READ on the topic",
    "OffsetFetch": "DESCRIBE on the group, DESCRIBE on the topic",
    "TxnOffsetCommit": "READ on the group, READ on the topic, WRITE on the transactional id",
    "AddPartitionsToTxn": "WRITE on the transactional id, WRITE on the topic",
    "AddOffsetsToTxn": "WRITE on the transactional id, READ on the group",
    "EndTxn": "WRITE on the transactional id",
    "FindCoordinator": "DESCRIBE on the group or transactional id",
}
"""API → the permissions that it takes."""


def login(case: Case) -> Iterator[str]:
    """Yield how the client logged in, and the permission that it lacks."""
    connection = case.history.connections.get(case.exchange.connection)
    if connection is None or connection.handshake is None:
        user = f"as whom the broker knows it {NOT_RECORDED}"
        if case.exchange.user:
            user = f"the client's certificate is of {case.exchange.user}"
        yield f"Its connection shows no SASL login; {user}."
    else:
        ref, handshake = connection.handshake
        shown = listed(named(each) for each in (ref, connection.authenticated) if each)
        mechanism = handshake.mechanism or "SASL"
        user = f" as user {case.exchange.user}" if case.exchange.user else ""
        unknown = "" if user else f"; the user's name {NOT_RECORDED}"
        yield f"Its client logged in by {mechanism} ({shown}){user}{unknown}."
    if needed := permissions(case.exchange.api, case.failure.error):
        yield f"{case.exchange.api} takes {listed(needed)}."


def permissions(api: str | None, error: str) -> list[str]:
    """Return the permissions of which one is missing where an API has this error."""
    resource, operations = DENIED.get(error), _OPERATIONS.get(api or "", "").split(", ")
    return [each for each in operations if resource and resource in each]


def chosen(case: Case) -> Iterator[str]:
    """Yield the mechanism of a login."""
    connection = case.history.connections.get(case.exchange.connection)
    if connection is not None and connection.handshake is not None:
        ref, handshake = connection.handshake
        if handshake.mechanism:
            yield f"The client had chosen {handshake.mechanism} ({named(ref)})."


def next_login(case: Case) -> Iterator[str]:
    """Yield how the next login of the same client ended."""
    own = Ref.of(case.exchange)
    later = [
        each
        for connection in case.history.connections
        if connection.client == own.client and connection.number != own.connection
        for each in (connection.refused, connection.let_in if own.client_id else None)
        if each is not None and each.time_ns >= own.completed_ns
    ]
    if not later:
        yield (
            "The recording shows no later login of the same client id and host that came to an end."
        )
        return
    first = min(later, key=lambda each: each.completed_ns)
    if first.api in LOGIN_APIS:
        failed = listed(first.errors)
        yield f"The client tried again: {case.when(first)}, failed with {failed}."
    else:
        yield f"A later connection of the client was let in: {case.when(first)}."


def mechanisms(case: Case) -> Iterator[str]:
    """Yield the mechanism that a client chose, and those that the broker offers."""
    asked = getattr(case.exchange.request, "mechanism", None)
    offered = listed(getattr(case.exchange.response, "mechanisms", None) or (), 8)
    if asked:
        yield f"The client asks for {asked}; the broker offers {offered or 'none'}."
