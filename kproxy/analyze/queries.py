"""The tables that are made from those of the tasks: each is one query of Spark's SQL.

::

    exchanges ─▶ latency     traffic ─▶ throughput

The SQL computes the histograms and percentiles of `exchange.histogram`; unlike Spark's approximate
percentiles, they do not depend on the query plan. The broker's time (`service_ms`) excludes waits
in long polls and for groups, as in `kproxy stats`.
"""

from __future__ import annotations

from kproxy.exchange.histogram import BUCKETS, PERCENTILES


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

QUERIES = {"latency": LATENCY, "throughput": THROUGHPUT}
"""Tables and their queries, which name in braces the tables of tasks that they read."""
