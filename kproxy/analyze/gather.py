"""The data of a report, from the tables of an analysis; its size does not depend on the recordings.

Parquet tables ─ SQL ─▶ ReportData: counts by slot of time, by API, the first of long lists
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import attrs

from kproxy.analyze.compare import ENOUGH
from kproxy.analyze.queries import SERVED, bucket, percentile, rank, ranked
from kproxy.exchange.entries import EVENTS, Note
from kproxy.recording.notices import notice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SLOTS_MAX = 120
_WIDTHS_MS = (
    10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000,
    600_000, 1_800_000, 3_600_000, 7_200_000, 14_400_000, 43_200_000, 86_400_000,
)  # fmt: skip
ROWS_MAX = 15
_MARKS_MAX = 300
_GROUPS_MAX = 50

Row = dict[str, Any]


@attrs.define
class ReportData:
    """The data of a report. A slot is an interval of time, the same for all plots."""

    start_us: int
    """The arrival of the first request, since 1970."""
    span_ms: float
    slot_ms: float
    totals: Row
    group_totals: Row
    """Numbers of groups: known, rebalanced, behind the ends of their topics."""
    fault_totals: Row
    """Number of all faults, of those after which the client recovered, and the longest recovery."""
    heat: dict[int, Counter[int]]
    """Slot → histogram of the broker's time."""
    apis: list[Row]
    histograms: dict[str, Counter[int]]
    """API → histogram of the broker's time."""
    rates: list[Row]
    """Number of exchanges, by slot and API."""
    traffic: list[Row]
    """Bytes and records produced and consumed, by slot and topic."""
    errors_over_time: list[Row]
    errors: list[Row]
    slowest: list[Row]
    rebalances: list[Row]
    groups: list[Row]
    """The groups that rebalanced most often, and those that are furthest behind."""
    faults: list[Row]
    """All faults; of more than fit, a sample spread over their time."""
    ended_by: list[Row]
    differences: list[Row]
    notices: list[str]
    """Sentences on damage and loss in the recordings."""
    parts: list[Row] = attrs.field(factory=list)
    """APIs by topic, and by client, with histograms: of each kind those with the largest p99."""
    minutes: list[Row] = attrs.field(factory=list)
    """APIs by topic, with their slowest and their fastest minute."""
    rules: list[Row] = attrs.field(factory=list)
    """Fault rules, with their hits, and the retries and times until clients recovered."""


def notices(spark: SparkSession) -> list[str]:
    """Return sentences on what is missing in the recordings, from the tables: torn files and lost
    frames. Of many, the first."""
    found = [Note(EVENTS, 0, json.loads(row["body"])) for row in _rows(spark, _INCOMPLETE)]
    return [text for note in found if (text := notice(note)) is not None]


def gather(spark: SparkSession, differences: list[Row], notices: list[str]) -> ReportData:
    """Read the data of a report from the tables, which are views of the session by their names."""
    totals = _rows(spark, _TOTALS)[0]
    start, end = totals.pop("start_us") or 0, totals.pop("end_us") or 0
    span_ms = (end - start) / 1000
    slot_ms = next((w for w in _WIDTHS_MS if span_ms / w < _SLOTS_MAX), span_ms / _SLOTS_MAX)

    def slot(column: str) -> str:
        """Return the SQL of the slot of a time."""
        return f"CAST((UNIX_MICROS({column}) - {start}) DIV {round(slot_ms * 1000)} AS INT)"

    heat: defaultdict[int, Counter[int]] = defaultdict(Counter)
    histograms: defaultdict[str, Counter[int]] = defaultdict(Counter)
    queries = {
        "heat": _HEAT.format(slot=slot("time")),
        "apis": _APIS,
        "rates": _RATES.format(slot=slot("time")),
        "traffic": _TRAFFIC.format(slot=slot("second")),
        "errors_over_time": _ERRORS_OVER_TIME.format(slot=slot("time")),
        "errors": _ERRORS,
        "slowest": _SLOWEST,
        "rebalances": _REBALANCES,
        "groups": GROUPS,
        "faults": _FAULTS,
        "rules": _RULES,
        "ended_by": _ENDED_BY,
        "parts": _PARTS,
        "minutes": _MINUTES,
    }
    with ThreadPoolExecutor(4) as pool:  # most of a short query is planning it
        made = pool.map(lambda query: _rows(spark, query), queries.values())
        found = dict(zip(queries, made, strict=True))
    for row in found.pop("heat"):
        heat[row["slot"]][row["bucket"]] += row["n"]
        histograms[row["api"] or "?"][row["bucket"]] += row["n"]
    return ReportData(
        start_us=start,
        span_ms=span_ms,
        slot_ms=slot_ms,
        totals=totals,
        group_totals=totals.pop("groups"),
        fault_totals=totals.pop("faults"),
        heat=dict(heat),
        histograms=dict(histograms),
        differences=differences,
        notices=notices,
        **found,
    )


def _rows(spark: SparkSession, query: str) -> list[Row]:
    return [row.asDict(recursive=True) for row in spark.sql(query).collect()]


_GROUP_NAME = """IF((SELECT COUNT(DISTINCT cluster) > 1 FROM groups),
    CONCAT(`group`, ' of cluster ', cluster), `group`) AS `group`"""
"""The name of a group, with its cluster if there are several clusters."""
_BORN = """group_events JOIN recordings USING (recording) WHERE generation IS NOT NULL
    AND event IN ('JoinGroup', 'ConsumerGroupHeartbeat')"""
_TOTALS = f"""
SELECT UNIX_MICROS(MIN(time)) AS start_us, UNIX_MICROS(MAX(time)) AS end_us,
    COUNT(*) AS exchanges, COUNT(DISTINCT client_id) AS clients,
    COUNT(DISTINCT recording, connection) AS connections,
    COUNT_IF(SIZE(errors) > 0) AS errors, COUNT_IF(unanswered IS NOT NULL) AS unanswered,
    COALESCE(SUM(request_bytes), 0) + COALESCE(SUM(response_bytes), 0) AS bytes,
    (SELECT COALESCE(SUM(records_produced), 0) FROM throughput) AS produced,
    (SELECT COALESCE(SUM(records_consumed), 0) FROM throughput) AS consumed,
    (SELECT STRUCT(COUNT(*) AS known, COUNT_IF(rebalances > 0) AS rebalanced,
        COUNT_IF(lag > 0) AS behind) FROM groups) AS groups,
    (SELECT COUNT(DISTINCT cluster, `group`, generation) FROM {_BORN}) AS generations,
    (SELECT STRUCT(COUNT(*) AS hits, COUNT(recovered_ms) AS recovered,
        MAX(recovered_ms) AS recovered_ms_max) FROM faults) AS faults,
    (SELECT COUNT(*) FROM events WHERE event = 'stood_still') AS stalls,
    (SELECT MAX(TRY_CAST(GET_JSON_OBJECT(body, '$.seconds') AS DOUBLE)) FROM events
        WHERE event = 'stood_still') AS stall_seconds
FROM exchanges
"""
_INCOMPLETE = f"""
SELECT body FROM (
    (SELECT TO_JSON(STRUCT('lost' AS event,
        SUM(TRY_CAST(GET_JSON_OBJECT(body, '$.frames') AS BIGINT)) AS frames,
        SUM(TRY_CAST(GET_JSON_OBJECT(body, '$.bytes') AS BIGINT)) AS bytes, reason)) AS body,
        0 AS time_ns FROM events WHERE event = 'lost' GROUP BY reason)
    UNION ALL SELECT body, time_ns FROM events WHERE event = 'torn'
) ORDER BY time_ns LIMIT {ROWS_MAX}
"""
"""Losses are summed by reason."""
_HEAT = f"""
SELECT {{slot}} AS slot, api, {bucket("ms")} AS bucket, COUNT(*) AS n
FROM (SELECT time, api, {SERVED} AS ms FROM exchanges) WHERE ms IS NOT NULL GROUP BY ALL
"""
_OWN_MS = "IF(SIZE(faults) > 0, NULL, proxy_ms)"
"""The time that kproxy took by itself, without fault rules."""
_APIS = f"""
WITH filled AS (
    SELECT api, {bucket(_OWN_MS)} AS bucket, COUNT(*) AS n, MIN({_OWN_MS}) AS low,
        MAX({_OWN_MS}) AS high
    FROM exchanges WHERE {_OWN_MS} IS NOT NULL GROUP BY ALL
), ranked AS ({ranked("api")}
), kept AS (
    SELECT api, {percentile("p99")} AS proxy_p99, MAX(total) AS proxy_count FROM ranked GROUP BY api
), counted AS (
    SELECT api, COUNT(*) AS count, COUNT_IF(SIZE(errors) > 0) AS errors,
        COUNT_IF(unanswered IS NOT NULL) AS unanswered, COUNT_IF(waiting_ms > 0) AS waited,
        COUNT_IF(queued_ms > 0) AS queued, ROUND(SUM(queued_ms), 1) AS queued_ms,
        MIN({SERVED}) AS broker_min, MAX({SERVED}) AS broker_max,
        MAX({_OWN_MS}) AS proxy_max, MAX_BY(number, {_OWN_MS}) AS proxy_max_number,
        COALESCE(SUM(request_bytes), 0) + COALESCE(SUM(response_bytes), 0) AS bytes
    FROM exchanges GROUP BY api
)
SELECT counted.*, proxy_p99, COALESCE(proxy_count, 0) AS proxy_count
FROM counted LEFT JOIN kept ON counted.api <=> kept.api ORDER BY count DESC
"""
_RATES = """
SELECT {slot} AS slot, api, COUNT(*) AS n FROM exchanges GROUP BY ALL ORDER BY slot
"""
_TRAFFIC = """
SELECT GREATEST({slot}, 0) AS slot, topic, SUM(bytes_produced) AS produced,
    SUM(bytes_consumed) AS consumed
FROM throughput GROUP BY ALL ORDER BY slot
"""
_ERRORS_OVER_TIME = """
SELECT {slot} AS slot, error, COUNT(*) AS n
FROM (SELECT time, EXPLODE(errors) AS error FROM exchanges) GROUP BY ALL ORDER BY slot
"""
_ERRORS = f"""
SELECT error, api, SUM(count) AS count, SUM(injected) AS injected,
    MIN_BY(first.number, first_time) AS number, COLLECT_SET(client_id) AS client_ids,
    FLATTEN(COLLECT_LIST(topics)) AS topics
FROM errors GROUP BY error, api ORDER BY count DESC LIMIT {ROWS_MAX}
"""
_SLOWEST = f"""
SELECT number, time, api, client_id, node_id, topics, service_ms, waiting_ms, queued_ms
FROM exchanges WHERE {SERVED} IS NOT NULL ORDER BY service_ms DESC LIMIT {ROWS_MAX}
"""
_REBALANCES = f"""
SELECT {_GROUP_NAME}, us, generation, members FROM (
    SELECT `group`, cluster, UNIX_MICROS(MIN(time)) AS us, generation,
        COUNT(DISTINCT member_id) AS members
    FROM {_BORN} GROUP BY `group`, cluster, generation
) ORDER BY us LIMIT {_MARKS_MAX}
"""
GROUPS = f"""
SELECT * EXCEPT (turn) FROM (
    SELECT * EXCEPT (`group`), {_GROUP_NAME},
        LEAST(ROW_NUMBER() OVER (ORDER BY rebalances DESC, `group`, cluster),
            ROW_NUMBER() OVER (ORDER BY lag DESC NULLS LAST, `group`, cluster)) AS turn
    FROM groups
) ORDER BY turn, `group` LIMIT {_GROUPS_MAX}
"""
_FAULTS = f"""
SELECT * EXCEPT (turn, many), UNIX_MICROS(time) AS us FROM (
    SELECT *, ROW_NUMBER() OVER (ORDER BY time, number) AS turn, COUNT(*) OVER () AS many
    FROM faults
) WHERE FLOOR(turn * {_MARKS_MAX} / many) > FLOOR((turn - 1) * {_MARKS_MAX} / many)
ORDER BY time, number
"""
"""All faults; of more than fit, as many as fit, evenly from the first to the last."""
_RULES = f"""
SELECT fault, COUNT(*) AS hits, SORT_ARRAY(COLLECT_SET(api)) AS apis,
    SORT_ARRAY(COLLECT_SET(client_id)) AS client_ids, SUM(retries) AS retries,
    MEDIAN(recovered_ms) AS recovered_ms, MAX(recovered_ms) AS recovered_ms_max,
    COUNT(*) - COUNT(recovered_ms) AS lasting
FROM faults GROUP BY fault ORDER BY hits DESC, fault LIMIT {ROWS_MAX}
"""
_ENDED_BY = """
SELECT ended_by, COUNT(*) AS n FROM connections WHERE closed IS NOT NULL GROUP BY ended_by
ORDER BY n DESC
"""


def _measured(keys: str, name: str) -> str:
    """Return the SQL of `measured`: percentile and histogram by keys, from the buckets `filled`."""
    return f"""ranked AS ({ranked(keys)}
), measured AS (
    SELECT {keys}, MAX(total) AS timed, {rank(name)} AS {name},
        MAP_FROM_ENTRIES(COLLECT_LIST(STRUCT(bucket, n))) AS histogram
    FROM ranked GROUP BY {keys}
)"""


_PARTS = f"""
WITH named AS (
    SELECT IF(topic IS NULL, 'client', 'topic') AS kind, api, COALESCE(topic, client_id) AS name,
        count, errors, broker_histogram
    FROM latency
), counted AS (
    SELECT kind, api, name, SUM(count) AS count, SUM(errors) AS errors FROM named
    GROUP BY kind, api, name
), filled AS (
    SELECT kind, api, name, bucket, SUM(n) AS n
    FROM (SELECT kind, api, name, EXPLODE(broker_histogram) AS (bucket, n) FROM named)
    GROUP BY kind, api, name, bucket
), {_measured("kind, api, name", "p99")}, placed AS (
    SELECT c.*, histogram, COUNT(*) OVER (PARTITION BY c.kind) AS part_count, ROW_NUMBER() OVER (
        PARTITION BY c.kind
        ORDER BY timed >= {ENOUGH} AND timed * 100 >= count DESC, p99 DESC, c.api, c.name
    ) AS place
    FROM counted c JOIN measured m ON c.kind = m.kind AND c.api <=> m.api AND c.name <=> m.name
)
SELECT * FROM placed WHERE place <= {ROWS_MAX} ORDER BY kind, place
"""
"""Rows with too few values for percentiles come last."""
_MINUTE_COUNT_MIN = 100
_MINUTES = f"""
WITH counted AS (
    SELECT api, topic, minute, SUM(count) AS count FROM latency WHERE topic IS NOT NULL
    GROUP BY api, topic, minute
), filled AS (
    SELECT api, topic, minute, bucket, SUM(n) AS n FROM (
        SELECT api, topic, minute, EXPLODE(broker_histogram) AS (bucket, n) FROM latency
        WHERE topic IS NOT NULL
    ) GROUP BY api, topic, minute, bucket
), {_measured("api, topic, minute", "p95")}
SELECT api, topic, MAX(p95) AS p95,
    MAX_BY(STRUCT(UNIX_MICROS(minute) AS us, histogram), p95) AS slowest,
    MIN_BY(STRUCT(UNIX_MICROS(minute) AS us, histogram), p95) AS quickest
FROM measured JOIN counted USING (api, topic, minute)
WHERE timed >= {_MINUTE_COUNT_MIN} AND timed * 100 >= count
GROUP BY api, topic HAVING COUNT(*) > 1 ORDER BY p95 DESC, api, topic LIMIT {ROWS_MAX}
"""
