"""What varies from run to run, though clients do the same: fields, and how often an API is asked.

::

    a message ─▶ left_out ─▶ the names of its fields that say nothing of what clients do
    an API ────▶ Purpose ──▶ who has something to say of it

All that compares goes by these tables: two recordings, a replay, what a cluster answers. Errors
that depend on timing are in `routine`.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from kproxy.exchange.entries import SASL_TOKEN
from kproxy.wire.protocol import schema
from kproxy.wire.protocol.plain import base64_text, uuid_text
from kproxy.wire.protocol.schema import Field


class Why(enum.Enum):
    """Why a field varies."""

    TIME = "when something was, or how long somebody waits"
    SIZE = "how much there is, or is asked for at once"
    CHANCE = "made up in each run, by the client or by a coordinator"
    ID = "made up by the cluster, once"
    CLUSTER = "where the cluster keeps something"
    OFFSET = "depends on what was in the log before, and on markers"
    MEMBERS = "depends on who is in the group at the time"
    WORDS = "for a person, or for the client itself when it comes back"
    OPTION = "an option of the response, or a side effect: the recorded response is what it is"
    OWN = "what the broker says of itself"
    NORMALIZED = "one or several: they are compared as sorted keys"
    NEWER = "written by a client that is newer than this schema"


_NAMES = {
    Why.TIME: "timestamp max_timestamp transaction_state",
    Why.CHANCE: "member_id session_id",
    Why.ID: "topic_id cluster_id",
    Why.CLUSTER: "host port rack brokers nodes node_endpoints replica_nodes isr_nodes"
    " offline_replicas node_id broker_id leader_id controller_id",
    Why.MEMBERS: "leader members group_state target_assignment status client_id client_host",
    Why.WORDS: "error_message committed_metadata",
    Why.OPTION: "include_synonyms include_documentation include_authorized_operations"
    " include_topic_authorized_operations include_cluster_authorized_operations"
    " allow_auto_topic_creation",
    Why.OWN: "synonyms documentation config_source authorized_operations"
    " topic_authorized_operations cluster_authorized_operations",
    Why.NEWER: "unknown_tags",
}
_BY_NAME = {name: why for why, names in _NAMES.items() for name in names.split()}
_ENDINGS = {
    ("_ms", "_timestamp"): Why.TIME,
    ("_bytes", "_size"): Why.SIZE,
    ("epoch", "generation_id", "producer_id"): Why.CHANCE,
    ("offset", "watermark"): Why.OFFSET,
}
_OF_MESSAGES = {
    ("FindCoordinatorRequest", "key"): Why.NORMALIZED,
    ("FindCoordinatorRequest", "coordinator_keys"): Why.NORMALIZED,
    ("JoinGroupRequest", "reason"): Why.WORDS,
    ("JoinGroupRequest", "protocols"): Why.MEMBERS,
    ("SyncGroupRequest", "protocol_type"): Why.MEMBERS,
    ("SyncGroupRequest", "protocol_name"): Why.MEMBERS,
    ("SyncGroupRequest", "assignments"): Why.MEMBERS,
    ("ConsumerGroupHeartbeatRequest", "topic_partitions"): Why.MEMBERS,
    ("OffsetFetchResponse", "committed_offset"): None,
    ("OffsetForLeaderEpochRequest", "leader_epoch"): None,
    ("DescribeTransactionsResponse", "transaction_timeout_ms"): None,
    ("ListOffsetsRequest", "timestamp"): None,
    ("CreateDelegationTokenRequest", "max_lifetime_ms"): None,
    ("RenewDelegationTokenRequest", "renew_period_ms"): None,
    ("ExpireDelegationTokenRequest", "expiry_time_period_ms"): None,
    ("CreateAclsRequest", "host"): None,
}
"""Fields of one message that vary, or do not although those of this name do elsewhere."""


@functools.cache
def left_out(message: str, *compared: Why) -> frozenset[str]:
    """Return the names of the fields of a message that vary, for another reason than these."""
    found = {name for name, why in _varying(message, schema.named(message).fields)
             if why not in (None, *compared)}  # fmt: skip
    return frozenset(found | {"unknown_tags"})


def _varying(message: str, fields: tuple[Field, ...]) -> Iterator[tuple[str, Why | None]]:
    for field in fields:
        yield field.name, _why(message, field)
        yield from _varying(message, field.fields)


def _why(message: str, field: Field) -> Why | None:
    name = field.name
    if (message, name) in _OF_MESSAGES:
        return _OF_MESSAGES[message, name]
    ending = (why for ends, why in _ENDINGS.items() if name.endswith(ends))
    by_entity = Why.CLUSTER if field.entity == "brokerId" else None
    return _BY_NAME.get(name) or next(ending, by_entity)


def meaning(body: Any, *compared: Why) -> Any:
    """Return what a request or a response means as plain values, the same in any version: without
    what varies, but for these reasons, what has its default, and the order of arrays."""
    return _meaning(body, left_out(type(body).__name__, *compared))


def _meaning(value: Any, names: frozenset[str]) -> Any:
    if isinstance(value, list):
        found = (_meaning(each, names) for each in value if not _is_unset_config(each))
        return sorted(found, key=repr)
    if defaults := getattr(type(value), "__field_defaults__", None):
        fields = ((name, getattr(value, name)) for name in defaults if name not in names)
        return {
            name: _meaning(each, names) for name, each in fields if each not in ([], defaults[name])
        }
    if isinstance(value, UUID):
        return uuid_text(value)
    if is_blanked(value):
        return "a secret"
    return base64_text(value) if isinstance(value, bytes) else value


def is_blanked(value: Any) -> bool:
    """Return whether a value is a secret that was blanked out: of any length, for salts vary."""
    # One "*" is all hosts, or all topics.
    return isinstance(value, bytes | str) and len(value) > 1 and set(value) <= {"*", ord("*"), 0}


def _is_unset_config(value: Any) -> bool:
    """Return whether a value is a config that the cluster, a file or nobody has set."""
    return getattr(value, "config_source", None) in (3, 4, 5)


KEYS = ("name", "topic", "topic_name", "group_id", "key", "resource_name", "member_id")
"""Fields that tell an element of an array from the others."""


# ---- APIs


class Purpose(enum.Enum):
    """What clients ask for with an API."""

    LOGIN = "who they are"
    TELEMETRY = "what they measure of themselves"
    LOOKUP = "where something is, and what is possible"
    MEMBERSHIP = "to be in a group"
    RECORDS = "to write and to read"
    PROGRESS = "to commit offsets and transactions"
    ADMIN = "to see or to change the cluster"


_APIS = {
    Purpose.LOGIN: f"{SASL_TOKEN} SaslHandshake SaslAuthenticate",
    Purpose.TELEMETRY: "GetTelemetrySubscriptions PushTelemetry",
    Purpose.LOOKUP: "ApiVersions Metadata DescribeTopicPartitions DescribeCluster FindCoordinator"
    " ListOffsets OffsetForLeaderEpoch OffsetFetch",
    Purpose.MEMBERSHIP: "JoinGroup SyncGroup Heartbeat LeaveGroup ConsumerGroupHeartbeat"
    " ShareGroupHeartbeat StreamsGroupHeartbeat",
    Purpose.RECORDS: "Produce Fetch ShareFetch ShareAcknowledge",
    Purpose.PROGRESS: "OffsetCommit TxnOffsetCommit InitProducerId AddPartitionsToTxn"
    " AddOffsetsToTxn EndTxn",
}
_PURPOSES = {api: purpose for purpose, apis in _APIS.items() for api in apis.split()}
BY_CHANCE = frozenset(
    ("Heartbeat", "LeaveGroup", "OffsetForLeaderEpoch", *_APIS[Purpose.TELEMETRY].split())
)
"""APIs that clients use or not, depending on how long they run."""
OF_CLUSTER = frozenset(
    (
        *("ApiVersions", "DescribeCluster", "DescribeLogDirs", "DescribeQuorum", "FindCoordinator"),
        *("DescribeAcls", "DescribeClientQuotas", "DescribeUserScramCredentials"),
        *("DescribeProducers", "ListConfigResources", "ListGroups", "ListPartitionReassignments"),
        *("ElectLeaders", "ListOffsets", "ListTransactions", "OffsetForLeaderEpoch"),
        *("ConsumerGroupHeartbeat", "ShareGroupHeartbeat", "StreamsGroupHeartbeat"),
    )
)
"""APIs of whose responses only the errors say something of the client: the rest depends on what
else is in the cluster."""


def purpose(api: str | None) -> Purpose:
    """Return what clients ask for with an API; one that is not known is of admins."""
    return _PURPOSES.get(api or "", Purpose.ADMIN)
