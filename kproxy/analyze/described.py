"""Descriptions of all tables and columns of an analysis: `tables.md`.

    comments of views, and those here ─▶ describe ─▶ tables.md

Invariant: a column that comes straight from a recording has the comment of the view it is from.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from kproxy.exchange.exchange import FIELDS
from kproxy.exchange.histogram import BUCKETS, PERCENTILES
from kproxy.history.attempts import FAULT_SECONDS
from kproxy.tables.arrow_types import DOUBLE, INT32, INT64, TEXT, TEXTS, TIME
from kproxy.tables.views import VIEWS, ViewColumn

ABOUT = {
    "exchanges": (
        "A row is a request and its response. `service_ms` is what the broker took for certain;"
        " `broker_ms` also has the waits behind other requests and in long polls, so a Fetch"
        " without new records has a large one and nothing is wrong."
    ),
    "records": "A row is a record as it travelled: fetched twice, it is there twice.",
    "events": "A row is what happened to a connection, or to the recording.",
    "group_events": "A row is what a member said to its coordinator, or a partition it committed.",
    "latency": (
        "A row is the exchanges of an API, version and client in one minute: those that name a"
        " topic, and, where `topic` is null, **all** of them. Sum `count` either over the rows with"
        " `topic IS NULL`, or over one topic: over both it counts twice. Histograms of any rows may"
        f" be added: bucket b counts times from 2^(b/{BUCKETS}) µs to 2^((b+1)/{BUCKETS}) µs, and a"
        " percentile is the middle of the bucket up to which that share of the sum lies, but not"
        " outside of the least and the largest time. Percentiles may not be"
        " added, nor averaged. The broker's time is `service_ms`, of what did not wait all along."
    ),
    "throughput": (
        "A row is what went to and from a partition in a second, in the batches as they travelled:"
        " retries and replicas count, what a broker refused does not."
    ),
    "errors": "A row is one error of an API to a client.",
    "connections": "A row is a connection of a client.",
    "recordings": "A row is a recording, however many files it has.",
    "groups": (
        "A row is a group of a cluster: of all recordings with the same `cluster`, for two clusters"
        " may have groups and topics of the same name."
    ),
    "faults": (
        "A row is one hit of a fault rule, and what the client did then, within"
        f" {FAULT_SECONDS} seconds."
    ),
}
"""Table → the meaning of a row."""

_CLUSTER = "id of the cluster; of a recording that does not show exactly one, the recording's id"


_CLIENT, _API = FIELDS["client_id"].about, FIELDS["api"].about

COLUMNS: dict[str, dict[str, tuple[pa.DataType, str]]] = {
    "group_events": {
        "recording": (TEXT, "id of the recording"),
        "time": (TIME, FIELDS["time"].about),
        "group": (TEXT, "id of the group"),
        "event": (TEXT, "the API: JoinGroup, SyncGroup, Heartbeat, OffsetCommit, …"),
        "client_id": (TEXT, _CLIENT),
        "member_id": (TEXT, "of the member; empty before it has one"),
        "generation": (
            INT32, "of the group; the member's epoch in the newer protocol; null if unknown",
        ),
        "topic": (TEXT, "whose offset is committed; null of what commits none"),
        "partition": (INT32, "whose offset is committed"),
        "committed": (INT64, "the offset"),
        "error": (TEXT, "in the response; null if there is none"),
        "number": (INT64, "the exchange"),
    },
    "errors": {
        "error": (TEXT, "name of the error"),
        "api": (TEXT, _API),
        "client_id": (TEXT, _CLIENT),
        "count": (INT64, "exchanges with it"),
        "injected": (INT64, "of these, those that a fault rule made"),
        "routine": (INT64, "of these, those whose errors are all routine of the protocol"),
        "first_time": (TIME, "when the first of the requests arrived"),
        "last_time": (TIME, "when the last of them arrived"),
        "first": (
            pa.struct([("recording", TEXT), ("number", INT64)]),
            "the first exchange: id of the recording, and number in it",
        ),
        "topics": (TEXTS, "up to 20 topics that they name"),
        "messages": (TEXTS, "up to 3 messages of brokers with it"),
    },
    "connections": {
        "recording": (TEXT, "id of the recording"),
        "connection": (INT32, "number of the connection in it"),
        "client_id": (TEXT, _CLIENT),
        "client_address": (TEXT, FIELDS["client_address"].about),
        "node_id": (INT32, FIELDS["node_id"].about),
        "opened": (TIME, "when it was opened; null: before the recording began"),
        "closed": (TIME, "when it was closed; null: after the recording ended"),
        "ended_by": (TEXT, "who ended it first: client, broker, or proxy; null: it was not closed"),
        "reason": (TEXT, "what went wrong, if anything did"),
        "exchanges": (INT64, "how many it had"),
        "errors": (INT64, "exchanges whose response has an error"),
        "unanswered": (INT64, "exchanges without a response"),
        "request_bytes": (INT64, "size of all requests"),
        "response_bytes": (INT64, "size of all responses"),
        "first_request": (TIME, "when the first request arrived"),
        "last_request": (TIME, "when the last request arrived"),
    },
    "recordings": {"recording": (TEXT, "id of the recording"), "cluster": (TEXT, _CLUSTER)},
    "groups": {
        "group": (TEXT, "id of the group"),
        "cluster": (TEXT, _CLUSTER),
        "members": (INT64, "member ids: a client that starts again has another"),
        "client_ids": (TEXTS, "client.id of its members"),
        "first_generation": (INT32, "the least generation that was seen"),
        "last_generation": (INT32, "the largest generation that was seen"),
        "generations": (INT64, "how many were seen"),
        "rebalances": (INT64, "generations that began, without the first"),
        "joins": (INT64, "JoinGroup requests"),
        "leaves": (INT64, "LeaveGroup requests"),
        "commits": (INT64, "requests that committed offsets"),
        "errors": (INT64, "events with an error"),
        "first_time": (TIME, "when the first event was"),
        "last_time": (TIME, "when the last event was"),
        "lag": (
            INT64, "offsets from the last commits to the ends of logs, if seen; null: none was",
        ),
        "partitions": (
            pa.list_(pa.struct([
                ("topic", TEXT), ("partition", INT32), ("committed", INT64), ("log_end", INT64),
                ("lag", INT64),
            ])), "the same of each partition: topic, partition, committed, log_end, lag",
        ),
    },
    "faults": {
        "recording": (TEXT, "id of the recording"),
        "fault": (TEXT, "name of the rule"),
        "time": (TIME, "when it fired"),
        "number": (INT64, "the exchange that it hit"),
        "connection": (INT32, FIELDS["connection"].about),
        "client_id": (TEXT, _CLIENT),
        "api": (TEXT, _API),
        "topics": (TEXTS, "topics that it names"),
        "retries": (INT64, "requests of the same API up to the one that succeeded, it included"),
        "reconnects": (INT64, "connections that the client opened"),
        "recovered_number": (
            INT64, "the exchange of the same API that succeeded; null: none did",
        ),
        "recovered_ms": (DOUBLE, "how long until then, ms"),
        "service_ms_before": (DOUBLE, "what the broker took on average before, ms"),
        "service_ms_after": (DOUBLE, "what the broker took on average afterwards, ms"),
        "body": (TEXT, "the event, JSON"),
    },
}  # fmt: skip
"""Types and comments of the columns of tables that Python writes, and that are not views of a
recording …"""
_OF_QUERIES = {
    "latency": {
        "client_id": _CLIENT,
        "api": _API,
        "api_version": "version of the requests",
        "topic": "a topic that they name; null: all, whatever they name",
        "minute": "when they arrived, to the minute",
        "count": "exchanges",
        "errors": "exchanges whose response has an error",
        "unanswered": "exchanges without a response",
        "waited": "exchanges of which some may be a wait that was requested, as in a long poll",
        "waiting_ms_sum": "those waits together, ms",
        "queued": "exchanges that waited behind earlier ones of their connection",
        "queued_ms_sum": "those waits together, ms",
        "broker_histogram": "exchanges by bucket of what the broker took; null: none is known",
        "proxy_histogram": "exchanges by bucket of what kproxy added",
        **{
            f"{kind}_{name}": f"{thousandths / 10:g} % of them took no longer, ms"
            for kind in ("broker", "proxy")
            for name, thousandths in PERCENTILES.items()
        },
        **{
            f"{kind}_{name}": f"the {what} of them, ms"
            for kind in ("broker", "proxy")
            for name, what in (("min", "least"), ("max", "largest"))
        },
        "routine": "of `errors`, the exchanges whose errors are all routine of the protocol",
    },
    "throughput": {
        "topic": "name of the topic; its id if nothing told the name",
        "partition": "number of the partition",
        "second": "when the requests arrived, to the second",
        "records_produced": "records that brokers took; old formats that are compressed count as 0",
        "bytes_produced": "bytes of their batches, compressed as they were",
        "records_consumed": "records that brokers sent",
        "bytes_consumed": "bytes of their batches, compressed as they were",
        "exchanges": "exchanges that carried some of it",
    },
}
"""… and comments of those of queries."""


def columns(table: str) -> tuple[ViewColumn, ...]:
    """Return the columns of a table that Python writes."""
    return tuple(ViewColumn(name, *about) for name, about in COLUMNS[table].items())


def comments(table: str) -> dict[str, str]:
    """Return the comments of the columns of a table."""
    if table in _OF_QUERIES:
        return _OF_QUERIES[table]
    shown = columns(table) if table in COLUMNS else VIEWS[table]
    return {column.name: column.comment for column in shown}


def describe(schemas: Mapping[str, pa.Schema]) -> str:
    """Return the description of tables, as Markdown, by their schemas."""
    parts = ["# The tables of this analysis\n\nTimes are in UTC; sizes are in bytes.\n"]
    for table, about in ABOUT.items():
        if table in schemas:
            comment_by_column = comments(table)
            rows = "".join(
                f"| `{field.name}` | {field.type} | {comment_by_column.get(field.name, '')} |\n"
                for field in schemas[table]
            )
            parts.append(f"## {table}\n\n{about}\n\n| column | type | |\n|---|---|---|\n{rows}")
    return "\n".join(parts)
