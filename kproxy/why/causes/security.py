"""Causes that lie with logins and permissions."""

from __future__ import annotations

from collections.abc import Iterator

from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import Filter, matching
from kproxy.exchange.words.wording import listed
from kproxy.why.case import Case, api
from kproxy.why.sentences import NOT_RECORDED, host_of, named

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


_RESOURCES = {
    "TOPIC_AUTHORIZATION_FAILED": "topic",
    "GROUP_AUTHORIZATION_FAILED": "group",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "transactional id",
}
"""Error → what the permission is about."""


def login(case: Case) -> Iterator[str]:
    """Yield how the client logged in, and the permission that it lacks."""
    handshake, logins = _logins(case)
    if handshake is None:
        yield f"Its connection shows no SASL login; as whom the broker knows it {NOT_RECORDED}."
    else:
        mechanism = getattr(handshake.request, "mechanism", None) or "SASL"
        shown = listed(named(each) for each in [handshake, *logins[-1:]])
        yield f"Its client logged in by {mechanism} ({shown}); the user's name {NOT_RECORDED}."
    resource = _RESOURCES.get(case.failure.error)
    operations = _OPERATIONS.get(case.exchange.api or "", "").split(", ")
    needed = [each for each in operations if resource and resource in each]
    if needed:
        yield f"{case.exchange.api} takes {listed(needed)}."


def _logins(case: Case) -> tuple[Exchange | None, list[Exchange]]:
    """Return the last handshake on the connection, and the steps of the login after it."""
    handshake: Exchange | None = None
    logins: list[Exchange] = []
    on_connection = matching("connection", str(case.exchange.connection))
    for each in case.before(on_connection, api("SaslHandshake", "SaslAuthenticate")):
        if each.errors:
            continue
        if each.api == "SaslHandshake":
            handshake, logins = each, []
        else:
            logins.append(each)
    return handshake, logins


def failed_login(case: Case) -> Iterator[str]:
    """Yield the mechanism of a login, and how the next one of the same host ended."""
    handshake, _ = _logins(case)
    mechanism = getattr(handshake and handshake.request, "mechanism", None)
    if mechanism and handshake is not None:
        yield f"The client had chosen {mechanism} ({named(handshake)})."
    for each in case.others(_of_client(case)):
        later = each.time_ns >= case.exchange.completed_ns
        if not later or host_of(each) != host_of(case.exchange):
            continue
        if each.connection == case.exchange.connection or each.response is None:
            continue
        if each.errors and each.api in _LOGIN:
            failed = listed(each.errors)
            yield f"The client tried again: {case.when(each)}, failed with {failed}."
            return
        if each.api not in (*_LOGIN, "ApiVersions"):
            yield f"A later connection of the client was let in: {case.when(each)}."
            return
    yield "The recording shows no later login of the same client id and host that came to an end."


_LOGIN = ("SaslHandshake", "SaslAuthenticate")


def _of_client(case: Case) -> Filter:
    if case.exchange.client_id:
        return matching("client_id", case.exchange.client_id)
    return api(*_LOGIN)


def mechanisms(case: Case) -> Iterator[str]:
    """Yield the mechanism that a client chose, and those that the broker offers."""
    asked = getattr(case.exchange.request, "mechanism", None)
    offered = listed(getattr(case.exchange.response, "mechanisms", None) or (), 8)
    if asked:
        yield f"The client asks for {asked}; the broker offers {offered or 'none'}."
