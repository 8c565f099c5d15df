"""What is routine of the protocol: errors by which clients and brokers come to terms.

::

    errors of an exchange ─ each has an entry in ROUTINE, whose condition holds ─▶ routine

Kafka says with error codes what is no failure, too: a new member is to ask again with the id that
it was given, a client that speaks a newer version is told the broker's, a member learns from its
heartbeat that the group is to be formed anew, a producer that the end of its transaction before is
still being written, and who describes a classic group asks with DescribeGroups next.
Clients answer these by themselves, at once, and nothing is lost. Others are routine for a moment
only: a topic that has just been created, a coordinator that has not read its partition yet
(`beginnings` says what "just" is).

An error is routine if the recording proves its condition, and never if a fault rule made it. So an
unknown topic is an error where nobody was seen to create it: brokers that create topics when they
are asked for do not say so. What is told again and again becomes an error when the moment is over.
All that speaks of errors goes by this table; `error:NAME` and the list of errors have them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from kproxy.exchange import body_facts, meanings
from kproxy.exchange.entities import topic_of
from kproxy.wire.protocol import error_code

if TYPE_CHECKING:
    from kproxy.exchange.exchange import Exchange

Condition = Callable[["Exchange", str], bool]
"""An exchange, and the name of an error in its response → whether it is routine there."""


def _always(exchange: Exchange, error: str) -> bool:
    return True


def _without_member_id(exchange: Exchange, error: str) -> bool:
    """A new member joins, and is given the id with which it is to ask again (KIP-394)."""
    return exchange.request is not None and not exchange.request.member_id


def _in_version_0(exchange: Exchange, error: str) -> bool:
    """The broker does not know so new a version, and says which ones it knows (KIP-511)."""
    return bool(exchange.api_version) and exchange.response_version <= 0


def _in_session(exchange: Exchange, error: str) -> bool:
    """The broker has started anew, or forgot the session: the client begins another (KIP-227)."""
    return exchange.request is not None and getattr(exchange.request, "session_id", 0) != 0


def _first_looked_up(exchange: Exchange, error: str) -> bool:
    """The coordinator of what it names was first looked up just before, or is now; or the first
    producer id was asked for, of which brokers must get a block first."""
    request, beginnings = exchange.request, exchange.topic_names.beginnings
    if request is None:
        return False
    keys = [*exchange.groups, *exchange.transactional_ids]
    if not keys and (exchange.api, error) == ("InitProducerId", "COORDINATOR_LOAD_IN_PROGRESS"):
        keys = [""]
    return bool(keys) and all(beginnings.is_new_key(key, exchange.time_ns) for key in keys)


def _just_created(exchange: Exchange, error: str) -> bool:
    """Each topic with this error was created just before."""
    beginnings = exchange.topic_names.beginnings
    topics = list(_topics_with(exchange, error))
    return bool(topics) and all(beginnings.is_new_topic(each, exchange.time_ns) for each in topics)


def _topics_with(exchange: Exchange, error: str) -> Iterator[str]:
    code = error_code(error)
    if exchange.response is None:
        return
    for found in body_facts.found_in(exchange.response, meanings.ERROR):
        if found.value == code:
            yield topic_of(found.within, exchange.topic_names)


_STARTS: Mapping[str, Condition] = dict.fromkeys(
    ("JoinGroup", "OffsetFetch", "InitProducerId", "ConsumerGroupHeartbeat"), _first_looked_up
)
"""What clients send first to a coordinator that they have just found."""
_NEW_TOPIC: Mapping[str, Condition] = dict.fromkeys(
    ("Metadata", "DescribeTopicPartitions", "Produce", "Fetch", "ShareFetch", "ListOffsets",
     "AddPartitionsToTxn", "DescribeConfigs"),
    _just_created,
)  # fmt: skip

ROUTINE: Mapping[str, Mapping[str, Condition]] = {
    "MEMBER_ID_REQUIRED": {"JoinGroup": _without_member_id},
    "UNSUPPORTED_VERSION": {"ApiVersions": _in_version_0},
    "CONCURRENT_TRANSACTIONS": {
        "InitProducerId": _first_looked_up,
        **dict.fromkeys(("AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn"), _always),
    },
    "GROUP_ID_NOT_FOUND": {"ConsumerGroupDescribe": _always},
    "REBALANCE_IN_PROGRESS": dict.fromkeys(("Heartbeat", "JoinGroup", "SyncGroup"), _always),
    "FETCH_SESSION_ID_NOT_FOUND": {"Fetch": _in_session},
    "COORDINATOR_NOT_AVAILABLE": {"FindCoordinator": _first_looked_up, **_STARTS},
    "NOT_COORDINATOR": _STARTS,
    "COORDINATOR_LOAD_IN_PROGRESS": _STARTS,
    "UNKNOWN_TOPIC_OR_PARTITION": _NEW_TOPIC,
    "UNKNOWN_TOPIC_ID": _NEW_TOPIC,
    "LEADER_NOT_AVAILABLE": _NEW_TOPIC,
}
"""Error → API → the condition on which it is routine there."""
_BY_TIMING = frozenset(
    (
        *("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"),
        *("CONCURRENT_TRANSACTIONS", "MEMBER_ID_REQUIRED", "REBALANCE_IN_PROGRESS"),
        *("ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "LEADER_NOT_AVAILABLE"),
        *("FETCH_SESSION_ID_NOT_FOUND", "INVALID_FETCH_SESSION_EPOCH"),
        *("FETCH_SESSION_TOPIC_ID_ERROR", "UNKNOWN_LEADER_EPOCH", "NOT_LEADER_OR_FOLLOWER"),
    )
)
_BY_TIMING_IN = {"Metadata": "UNKNOWN_TOPIC_OR_PARTITION", "ApiVersions": "UNSUPPORTED_VERSION"}


def depends_on_timing(api: str | None, error: str) -> bool:
    """Return whether clients ask again after an error, and need not get it in the next run."""
    return error in _BY_TIMING or _BY_TIMING_IN.get(api or "") == error


def is_routine(exchange: Exchange) -> bool:
    """Return whether an exchange has errors, and all of them are routine."""
    errors = exchange.facts.errors
    if not errors:
        return False
    api = exchange.api or ""
    conditions = [ROUTINE.get(error, {}).get(api) for error in errors]
    if None in conditions or _is_made_by_rule(exchange):
        return False
    pairs = zip(conditions, errors, strict=True)
    return all(holds is not None and holds(exchange, error) for holds, error in pairs)


def _is_made_by_rule(exchange: Exchange) -> bool:
    """Return whether a fault rule may have made the errors of an exchange."""
    if exchange.broker_errors is not None:
        return True
    return exchange.injected and bool(exchange.row.fault_ids)
