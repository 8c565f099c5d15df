"""The tables that are made from those of the tasks: each is one query of Spark's SQL.

::

    exchanges ─▶ latency        events, exchanges, connections ─▶ faults
    traffic ─▶ throughput       cluster_ids ─▶ recordings

The SQL computes the histograms and percentiles of `exchange.histogram`; unlike Spark's approximate
percentiles, they do not depend on the query plan. The broker's time (`service_ms`) excludes waits
in long polls and for groups, as in `kproxy stats`.

A recording that shows no cluster id, or several, is a cluster by itself.
"""

from __future__ import annotations

from kproxy.exchange.histogram import BUCKETS, PERCENTILES
from kproxy.history.attempts import COMPLETE
from kproxy.report.faults import FAULT_SECONDS


def bucket(milliseconds: str) -> str:
    """Return the SQL of the bucket of a duration.

    The duration is divided by the power of two below it first: LOG2 of the rest is exact where it
    matters, at 1 and at 2, while LOG2 of a large power of two may be off by the last bit.
    """
    us = f"GREATEST(RINT({milliseconds} * 1000), 1)"
    doublings = f"FLOOR(LOG2({us}))"
    rest = f"FLOOR(LOG2({us} / POW(2, {doublings})) * {BUCKETS})"
    return f"CAST({doublings} * {BUCKETS} + {rest} AS INT)"


def ranked(keys: str) -> str:
    """Return the SQL of the cumulative count (`passed`) and the `total` of the buckets in `filled`,
    for the same keys."""
    return f"""
    SELECT *, SUM(n) OVER (PARTITION BY {keys} ORDER BY bucket) AS passed,
        SUM(n) OVER (PARTITION BY {keys}) AS total
    FROM filled"""


def rank(name: str, where: str = "TRUE") -> str:
    """Return the SQL of the bucket of a percentile, for the rows of `ranked` that meet `where`."""
    reached = f"1000 * passed >= {PERCENTILES[name]} * total"
    return f"MIN(IF({where} AND {reached}, bucket, NULL))"


def percentile(name: str, where: str = "TRUE") -> str:
    """Return the SQL of a percentile in milliseconds. The columns `low` and `high` of `ranked` are
    the least and largest duration of a bucket."""
    middle = f"RINT(POW(2, ({rank(name, where)} + 0.5D) / {BUCKETS})) / 1000"
    low, high = f"MIN(IF({where}, low, NULL))", f"MAX(IF({where}, high, NULL))"
    return f"LEAST(GREATEST({middle}, {low}), {high})"


# The same as `exchange.derived.served_us`, computed from columns of the table of exchanges.
SERVED = "IF(service_ms > 0 OR waiting_ms = 0, service_ms, NULL)"

_KEYS = "api, api_version, client_id, topic, minute"


def _measures(kind: str) -> str:
    """Return the SQL of the histogram of a kind, its percentiles, minimum and maximum."""
    of_kind = f"kind = {kind!r}"
    entries = f"COLLECT_LIST(IF({of_kind}, STRUCT(bucket, n), NULL))"
    measures = {"histogram": f"MAP_FROM_ENTRIES({entries})"}
    measures |= {name: percentile(name, of_kind) for name in PERCENTILES}
    measures |= {
        "min": f"MIN(IF({of_kind}, low, NULL))", "max": f"MAX(IF({of_kind}, high, NULL))"
    }  # fmt: skip
    return ",\n".join(f"{sql} AS {kind}_{name}" for name, sql in measures.items())


LATENCY = f"""
WITH named AS (
    SELECT *, DATE_TRUNC('minute', time) AS minute,
        EXPLODE(CONCAT(ARRAY(CAST(NULL AS STRING)), topics)) AS topic
    FROM {{exchanges}}
), counted AS (
    SELECT {_KEYS}, COUNT(*) AS count, COUNT_IF(SIZE(errors) > 0) AS errors,
        COUNT_IF(unanswered IS NOT NULL) AS unanswered,
        COUNT_IF(waiting_ms > 0) AS waited, SUM(waiting_ms) AS waiting_ms_sum,
        COUNT_IF(queued_ms > 0) AS queued, SUM(queued_ms) AS queued_ms_sum,
        COUNT_IF(routine) AS routine
    FROM named GROUP BY {_KEYS}
), timed AS (
    SELECT {_KEYS}, EXPLODE(ARRAY(
        STRUCT('broker' AS kind, {SERVED} AS ms), STRUCT('proxy' AS kind, proxy_ms AS ms)
    )) AS timed FROM named
), filled AS (
    SELECT {_KEYS}, timed.kind AS kind, {bucket("timed.ms")} AS bucket, COUNT(*) AS n,
        MIN(timed.ms) AS low, MAX(timed.ms) AS high
    FROM timed WHERE timed.ms IS NOT NULL GROUP BY ALL
), ranked AS ({ranked(f"{_KEYS}, kind")}
), measured AS (
    SELECT {_KEYS}, {_measures("broker")}, {_measures("proxy")}
    FROM ranked GROUP BY {_KEYS}
)
SELECT counted.* EXCEPT (routine), measured.* EXCEPT ({_KEYS}), routine
FROM counted LEFT JOIN measured ON counted.api <=> measured.api
    AND counted.api_version <=> measured.api_version AND counted.topic <=> measured.topic
    AND counted.client_id <=> measured.client_id AND counted.minute <=> measured.minute
ORDER BY minute, api, topic, client_id
"""
"""Rows without a topic count every exchange once; rows with a topic, the exchanges naming it."""

THROUGHPUT = """
SELECT topic, partition, TIMESTAMP_SECONDS(second) AS second,
    COALESCE(SUM(records) FILTER (WHERE produced), 0) AS records_produced,
    COALESCE(SUM(bytes) FILTER (WHERE produced), 0) AS bytes_produced,
    COALESCE(SUM(records) FILTER (WHERE NOT produced), 0) AS records_consumed,
    COALESCE(SUM(bytes) FILTER (WHERE NOT produced), 0) AS bytes_consumed,
    SUM(exchanges) AS exchanges
FROM {traffic} GROUP BY topic, partition, second ORDER BY second, topic, partition
"""

RECORDINGS = """
SELECT recording,
    IF(COUNT(DISTINCT cluster_id) = 1, MAX(cluster_id), recording) AS cluster
FROM {cluster_ids} GROUP BY recording ORDER BY recording
"""

_CLIENT = "PARTITION BY recording, client_id, host"
_ORDER = "ORDER BY at, place, mark NULLS FIRST ROWS UNBOUNDED PRECEDING"
_BACKWARDS = "ORDER BY at DESC, place DESC, mark DESC NULLS LAST ROWS UNBOUNDED PRECEDING"
_LAST_PLACE = 2**63 - 1


def _host(address: str) -> str:
    """Return the SQL of the host of an address, as `history.ref.client_of` has it."""
    return f"REGEXP_EXTRACT(COALESCE({address}, ''), '^(.*):', 1)"


_GOOD = (
    "SIZE(x.errors) = 0 AND x.response_bytes IS NOT NULL AND x.response_sent_ns > 0"
    " AND NOT (x.undelivered OR x.late OR x.opaque)"
)
"""The same as `history.attempts.outcome`, and below as `own_success`, in SQL."""
_ACTION = "GET_JSON_OBJECT(e.body, '$.action')"
_OWN = (
    f"{_ACTION} IN {tuple(COMPLETE)} AND {_GOOD}"
    f" AND ({_ACTION} <> 'truncate' OR x.fault_ms IS NOT NULL)"
)

# What a client did around each fault. Faults are not joined with their client's exchanges, which
# would be quadratic; they are marks on a time line of the client's exchanges and connections:
#
#     window_start     faulted_exchange  fault_moment                  window_end
#     ──────┼──●──●──────────●─────────────────┼─────●──●──●(success)──●───┼──▶ time
#
# `tried`, `opened`, `served` and `service_ns` are counted from the beginning of the line on
# (`so_far`, a window forwards), so the count between two marks is the difference of their counts:
# retries are those tried after the faulted exchange, up to the first success. A window backwards
# finds the next success of the same API (`ahead`). An exchange that was only late, or sent
# twice, is its own success. `report.faults` does the same for recordings that one machine reads.
FAULTS = f"""
WITH hits AS (
    SELECT e.recording, e.fault, e.number, e.time, e.time_ns, x.time AS began, x.connection,
        x.client_id, {_host("x.client_address")} AS host, x.api, x.topics, x.service_ms,
        {_OWN} AS own, e.body
    FROM {{events}} e LEFT JOIN {{exchanges}} x USING (recording, number) WHERE e.event = 'fault'
), marks AS (
    SELECT recording, client_id, host, api, fault, number, time_ns, INLINE(ARRAY(
        STRUCT('window_start' AS mark, time - INTERVAL {FAULT_SECONDS} SECONDS AS at, -1L AS place),
        STRUCT('faulted_exchange' AS mark, began AS at, number AS place),
        STRUCT('fault_moment' AS mark, time AS at, {_LAST_PLACE} AS place),
        STRUCT('window_end' AS mark, time + INTERVAL {FAULT_SECONDS} SECONDS AS at,
            {_LAST_PLACE} AS place)
    )) FROM hits WHERE began IS NOT NULL
), clients AS (
    SELECT DISTINCT recording, client_id, host FROM marks
), line AS (
    SELECT recording, client_id, host, api, fault, number, time_ns, mark, at, place,
        NULL AS service_ns, NULL AS good, 0 AS tried, 0 AS opened FROM marks
    UNION ALL
    SELECT x.recording, x.client_id, c.host, x.api, NULL, NULL, NULL, NULL, x.time, x.number,
        CAST(ROUND(x.service_ms * 1000000) AS BIGINT),
        SIZE(x.faults) = 0 AND {_GOOD}, 1, 0
    FROM {{exchanges}} x JOIN clients c ON x.recording = c.recording
        AND x.client_id <=> c.client_id AND {_host("x.client_address")} = c.host
    UNION ALL
    SELECT o.recording, o.client_id, c.host, NULL, NULL, NULL, NULL, NULL, o.opened, -1L, NULL,
        NULL, 0, 1
    FROM {{connections}} o JOIN clients c ON o.recording = c.recording
        AND o.client_id <=> c.client_id AND {_host("o.client_address")} = c.host
    WHERE o.opened IS NOT NULL
), passed AS (
    SELECT *, STRUCT(
        SUM(tried) OVER ({_CLIENT}, api {_ORDER}) AS tried,
        SUM(opened) OVER ({_CLIENT} {_ORDER}) AS opened,
        COALESCE(SUM(service_ns) OVER ({_CLIENT} {_ORDER}), 0) AS service_ns,
        COUNT(service_ns) OVER ({_CLIENT} {_ORDER}) AS served
    ) AS so_far FROM line
), ahead AS (
    SELECT *, LAST(IF(good, STRUCT(at, place, so_far.tried AS tried), NULL), true)
        OVER ({_CLIENT}, api {_BACKWARDS}) AS success
    FROM passed
), around AS (
    SELECT recording, fault, number, time_ns,
        MAX(success) FILTER (WHERE mark = 'fault_moment') AS success,
        MAX(so_far) FILTER (WHERE mark = 'window_start') AS window_start,
        MAX(so_far) FILTER (WHERE mark = 'faulted_exchange') AS faulted_exchange,
        MAX(so_far) FILTER (WHERE mark = 'fault_moment') AS fault_moment,
        MAX(so_far) FILTER (WHERE mark = 'window_end') AS window_end
    FROM ahead WHERE mark IS NOT NULL GROUP BY recording, fault, number, time_ns
), counted AS (
    SELECT h.*, IF(success.at <= h.time + INTERVAL {FAULT_SECONDS} SECONDS, success, NULL)
            AS recovered, faulted_exchange, fault_moment, window_end,
        faulted_exchange.served - IF(service_ms IS NULL, 0, 1) - window_start.served
            AS served_before,
        faulted_exchange.service_ns - COALESCE(CAST(ROUND(service_ms * 1000000) AS BIGINT), 0)
            - window_start.service_ns AS service_ns_before,
        window_end.served - faulted_exchange.served AS served_after,
        window_end.service_ns - faulted_exchange.service_ns AS service_ns_after
    FROM hits h LEFT JOIN around USING (recording, fault, number, time_ns)
)
SELECT recording, fault, time, number, connection, client_id, api, topics,
    IF(own, 0, COALESCE(GREATEST(
        COALESCE(recovered.tried, window_end.tried) - faulted_exchange.tried, 0
    ), 0)) AS retries,
    COALESCE(window_end.opened - fault_moment.opened, 0) AS reconnects,
    IF(own, number, recovered.place) AS recovered_number,
    IF(own, 0, ROUND((UNIX_MICROS(recovered.at) - UNIX_MICROS(time)) / 1000, 3)) AS recovered_ms,
    IF(served_before > 0, ROUND(service_ns_before / served_before / 1000000, 3), NULL)
        AS service_ms_before,
    IF(served_after > 0, ROUND(service_ns_after / served_after / 1000000, 3), NULL)
        AS service_ms_after,
    body
FROM counted ORDER BY time, number
"""

LINES = (
    {"latency": LATENCY},
    {"recordings": RECORDINGS},
    {"faults": FAULTS},
    {"throughput": THROUGHPUT},
)
"""Tables and their queries. A query names in braces the tables of tasks, and those before it in its
line, that it reads."""
