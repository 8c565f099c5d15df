"""Which APIs are sent, and to which broker.

What a client does all day is sent; what changes a cluster for others only if that was asked for;
what is between brokers, a login, or about the recorded client itself, never. An API whose
purpose is not known (`varying.purpose`) changes the cluster, until somebody says otherwise.
"""

from __future__ import annotations

import enum
import functools
from typing import Any

from kproxy.exchange import meanings
from kproxy.exchange.delivered import APPENDED
from kproxy.exchange.entries import REDACTED
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.meanings import ERROR, GROUP, PREDICATES, TRANSACTIONAL_ID
from kproxy.exchange.varying import Purpose, purpose
from kproxy.wire.protocol import is_retriable, schema
from kproxy.wire.protocol.codes import REBALANCE_IN_PROGRESS
from kproxy.wire.protocol.select import select

_READS = ("Describe", "List", "Metadata")

NEVER = {
    Purpose.LOGIN: "logins are kproxy's own: what was recorded of them is blanked out",
    Purpose.TELEMETRY: "what a client measured of itself",
}
"""The purposes of APIs that are never sent, and why."""

_LEADER = frozenset(
    (
        *("Fetch", "ListOffsets", "OffsetForLeaderEpoch", "Produce", "ShareAcknowledge"),
        *("DeleteRecords", "DescribeProducers", "ShareFetch"),
    )
)
"""APIs that the leader of a partition answers."""
_TRANSACTION_FIRST = frozenset(("AddOffsetsToTxn",))
"""APIs that name a group, and that the coordinator of the transaction answers."""


_NOT_TWICE = frozenset(("JoinGroup", "Produce", "SyncGroup"))
"""APIs of which a request that was refused must not be sent: here it may not be, and it came again
in the recording."""
NEEDS_ALLOW_ADMIN = "what changes the cluster, without --allow-admin"
"""Why an exchange is left out that --allow-admin would send."""


class Answers(enum.Enum):
    """The broker that answers an API."""

    LEADER = "the leader of the partition"
    GROUP = "the coordinator of the group"
    TRANSACTION = "the coordinator of the transactional id"
    CONTROLLER = "the controller"
    ANY = "any broker"


@functools.cache
def is_read(api: str) -> bool:
    """Return whether an API tells how the cluster is, and nothing else."""
    return api.startswith(_READS) or api.endswith("Describe")


@functools.cache
def is_admin(api: str) -> bool:
    """Return whether an API changes a cluster for others than the client."""
    return purpose(api) is Purpose.ADMIN and not is_read(api)


def why_left_out(exchange: Exchange, allow_admin: bool) -> str:
    """Return why an exchange is not sent; "" if it is."""
    api = exchange.api
    request = (
        schema.message(exchange.api_key, schema.REQUEST) if exchange.api_key is not None else None
    )
    if exchange.is_copy:
        return "kproxy's own copies"
    if api is None or request is None or exchange.truncated or exchange.request_frame is None:
        return "requests that are not whole"
    if reason := NEVER.get(purpose(api)):
        return reason
    if exchange.row.request_flags & REDACTED:
        return "requests with secrets, which the recording has blanked out"
    follower = getattr(exchange.request, "replica_state", exchange.request)  # from Fetch v15 on
    replicas = (getattr(each, "replica_id", -1) for each in (exchange.request, follower))
    if "broker" not in request.listeners or max(replicas) >= 0:
        return "requests between brokers"
    if exchange.request is None:
        return "requests that cannot be decoded"
    if (api in _NOT_TWICE or api.endswith("Heartbeat")) and _was_refused(exchange):
        return f"{api} that was refused for the moment, and came again"
    refused = is_admin(api) and not allow_admin
    return NEEDS_ALLOW_ADMIN if refused else ""


def _was_refused(exchange: Exchange) -> bool:
    """Return whether a broker refused all of a request by errors that pass: the client sent it
    again."""
    if exchange.response is None:
        return False
    codes = meanings.fields_in_body(type(exchange.response), ERROR).values(exchange.response)
    return bool(codes) and all(is_refused_for_now(c) or c == REBALANCE_IN_PROGRESS for c in codes)


def is_refused_for_now(code: int) -> bool:
    """Return whether an error passes, and says that nothing was done: it can be asked again."""
    return is_retriable(code) and code not in APPENDED


@functools.cache
def _names(api: str) -> frozenset[Any]:
    message = schema.named(f"{api}Request")
    both = (GROUP, TRANSACTIONAL_ID)
    return frozenset(each for each in both if select(message, PREDICATES[each]).places)


@functools.cache
def answers(api: str) -> Answers:
    """Return which broker answers an API."""
    if api in _LEADER:
        return Answers.LEADER
    if api == "FindCoordinator":
        return Answers.ANY
    named = _names(api)
    if GROUP in named and api not in _TRANSACTION_FIRST and not api.startswith("List"):
        return Answers.GROUP
    if TRANSACTIONAL_ID in named:
        return Answers.TRANSACTION
    return Answers.CONTROLLER if is_admin(api) else Answers.ANY
