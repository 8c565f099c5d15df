"""The metrics of the proxy, in Prometheus' text format.

Only `traffic` is counted for this, chunk by chunk. Every other metric is an attribute of the pump,
the machine, the rules, the recorder or the recording, read when it is requested. The disk is asked
in a thread, for a second at most: it may hang.

Names: units at the end, `_total` on counters, labels from the vocabulary of `kproxy show
--json`. All of it is valid OpenMetrics as well. Labels have values of kproxy or of Kafka's
definitions, names that the operator gave, or ids of nodes, of which there are `nodes_max` at most:
no peer can make series without end. `kproxy/manual/metrics.md` lists all of them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import trio
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from kproxy import __version__
from kproxy.net.control import Answer, ControlCall, Route
from kproxy.net.operated import Operated
from kproxy.net.traffic import BUCKETS_SECONDS, Latencies, Traffic
from kproxy.proxy.faults import Rules

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The oldest version of the format, which all readers support."""
_DISK_SECONDS = 1.0
"""The time for which a disk is asked; then nothing is said of it."""

_COUNTER, _GAUGE = CounterMetricFamily, GaugeMetricFamily
_ROWS: list[tuple[str, type[CounterMetricFamily | GaugeMetricFamily], str, str, str]] = [
    ("pump", _GAUGE, "kproxy_connections_open", "pump.connections_open",
     "Clients that are connected."),
    ("pump", _GAUGE, "kproxy_connections_max", "pump.acceptor.connections_max",
     "The most clients at once (--connections-max, or what ulimit -n allows)."),
    ("pump", _COUNTER, "kproxy_connections_accepted", "pump.connections_accepted",
     "Connections of clients that were taken on."),
    ("pump", _COUNTER, "kproxy_connections_refused", "pump.acceptor.connections_refused",
     "Connections of clients that were closed at once, because there were too many."),
    ("recording", _COUNTER, "kproxy_frames_recorded", "recorder.frames_recorded",
     "Frames, and pieces of large ones, that are in the recording."),
    ("recording", _COUNTER, "kproxy_frames_lost", "recorder.frames_lost",
     "Frames, and pieces of large ones, that passed and could not be recorded."),
    ("recording", _COUNTER, "kproxy_frames_lost_bytes", "recorder.frame_bytes_lost",
     "Size of the frames that could not be recorded."),
    ("recording", _COUNTER, "kproxy_recording_bytes", "recording.bytes_written",
     "Written to the files of the recording."),
    ("recording", _GAUGE, "kproxy_backlog_bytes", "recorder.backlog_bytes",
     "Memory that holds what the disk has not taken yet."),
    ("recording", _GAUGE, "kproxy_backlog_max_bytes", "recorder.backlog_bytes_max",
     "What is over it is lost (--backlog-bytes-max)."),
    ("retention", _COUNTER, "kproxy_files_removed", "retention.files_removed",
     "Files of recordings that were removed (--keep, --keep-free)."),
    ("retention", _COUNTER, "kproxy_files_removed_bytes", "retention.bytes_removed",
     "Size of the files that were removed."),
]  # fmt: skip
"""Metrics: what of `Operated` there must be for them, kind, name, attribute of `Operated`, help."""


class _Collector:
    """Collects the metrics of the tables above, and those with labels."""

    def __init__(self, operated: Operated) -> None:
        self._operated = operated
        self.disk: Any = None
        """The usage of the recording's disk, as `shutil` has it; None: it is not known."""

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics as they are now."""
        operated = self._operated
        yield InfoMetricFamily("kproxy_build", "This program.", {"version": __version__})
        recording = operated.recording
        for needed, kind, name, attribute, text in _ROWS:
            if getattr(operated, needed) is not None:
                yield kind(name, text, value=attrgetter(attribute)(operated))
        if recording:
            text = "The file that is being written."
            path = _label(os.fsdecode(recording.paths[-1]))
            yield InfoMetricFamily("kproxy_recording", text, {"file": path})
        if self.disk:
            text = "Room that is left on the disk of the recording."
            yield GaugeMetricFamily("kproxy_disk_free_bytes", text, value=self.disk.free)
            text = "Size of the disk of the recording."
            yield GaugeMetricFamily("kproxy_disk_size_bytes", text, value=self.disk.total)
        text = "Whether the last attempt to connect to the broker succeeded."
        up = operated.machine.reachable.items()
        nodes = ((("bootstrap" if each is None else str(each),), is_up) for each, is_up in up)
        yield _labelled("kproxy_broker_up", text, ("node_id",), nodes, _GAUGE)
        yield from _ends(operated)
        yield from _traffic(operated.traffic)
        yield from _faults(operated.rules)


def _ends(operated: Operated) -> Iterator[Metric]:
    traffic, failures = operated.traffic, operated.failures
    yield _labelled(
        "kproxy_connections_closed",
        "Connections of clients that ended: how, and at which side.",
        ("how", "side"),
        traffic.ends.items(),
    )
    yield _labelled(
        "kproxy_tls_failures",
        "Handshakes, and connections later, at which TLS failed with this peer.",
        ("peer", "reason"),
        failures.tls.items(),
    )
    yield _labelled(
        "kproxy_login_failures",
        "Logins that failed, of clients or of kproxy itself.",
        ("origin", "reason"),
        [
            ((origin, reason), count)
            for origin, found in (("client", traffic.login_failures), ("kproxy", failures.logins))
            for reason, count in found.items()
        ],
    )


_PER_API = [
    ("kproxy_exchanges", "exchanges", "Requests that were answered, or that want no answer."),
    ("kproxy_unanswered", "unanswered", "Requests whose connection ended before the answer."),
    ("kproxy_request_bytes", "request_bytes", "Size of the requests of these exchanges."),
    ("kproxy_response_bytes", "response_bytes", "Size of their responses, as brokers sent them."),
    (
        "kproxy_throttled_seconds",
        "throttled_seconds",
        "Time for which brokers told clients to wait, for the sake of quotas.",
    ),
]
_LATENCIES = [
    (
        "kproxy_broker_seconds",
        "broker",
        "From sending a request on to the arrival of its response, long polls included.",
    ),
    (
        "kproxy_broker_service_seconds",
        "service",
        "Of it, what is certainly the broker's own: without queue, without waits asked for.",
    ),
]


def _traffic(traffic: Traffic) -> Iterator[Metric]:
    apis = traffic.apis.items()
    for name, attribute, text in _PER_API:
        values = [((api,), getattr(found, attribute)) for api, found in apis]
        yield _labelled(name, text, ("api",), values)
    for name, attribute, text in _LATENCIES:
        taken = HistogramMetricFamily(name, text, labels=["api"])
        for api, found in apis:
            latencies: Latencies = getattr(found, attribute)
            if any(latencies.buckets):
                taken.add_metric([api], _buckets(latencies), latencies.sum_ns / 1e9)
        yield taken
    yield _labelled(
        "kproxy_errors",
        "Responses with this error: of the broker, or made by a fault rule.",
        ("api", "error", "origin"),
        (((api, *kind), n) for api, found in apis for kind, n in found.errors.items()),
    )


def _labelled(
    name: str, text: str, labels: Iterable[str], values: Iterable[tuple[Sequence[str], float]],
    kind: type[CounterMetricFamily | GaugeMetricFamily] = _COUNTER,
) -> Metric:  # fmt: skip
    family = kind(name, text, labels=[*labels])
    for key, value in values:
        family.add_metric(key, value)
    return family


def _buckets(latencies: Latencies) -> list[tuple[str, float]]:
    """Return (upper bound, number of exchanges that took no longer)."""
    bounds = [*map(str, BUCKETS_SECONDS), "+Inf"]
    return list(zip(bounds, itertools.accumulate(latencies.buckets), strict=True))


def _faults(rules: Rules) -> Iterator[Metric]:
    named = [((_label(rule.name),), rule) for rule in rules.rules]
    matched = [(name, rule.matched) for name, rule in named]
    yield _labelled("kproxy_faults_matched", "What a fault rule matched.", ("rule",), matched)
    fired = [(name, rule.fired) for name, rule in named]
    yield _labelled("kproxy_faults_fired", "How often it acted.", ("rule",), fired)


def _label(text: str) -> str:
    """Return a text as the value of a label, with undecodable bytes escaped."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def exposition(operated: Operated) -> Route:
    """Return the route of the metrics."""
    registry, collector = CollectorRegistry(auto_describe=False), _Collector(operated)
    registry.register(collector)
    ProcessCollector(registry=registry)
    one = trio.CapacityLimiter(1)  # of a disk that hangs, one thread is enough

    async def show(call: ControlCall) -> Answer:
        recording = operated.recording
        if recording:
            collector.disk = await _disk(recording.paths[-1].parent, one)
        return Answer(200, generate_latest(registry), _CONTENT_TYPE)

    return Route(show)


async def _disk(folder: Path, one: trio.CapacityLimiter) -> Any:
    """Return the usage of a disk; None if it does not tell."""
    with trio.move_on_after(_DISK_SECONDS), contextlib.suppress(OSError):
        ask = partial(shutil.disk_usage, folder)
        return await trio.to_thread.run_sync(ask, limiter=one, abandon_on_cancel=True)
    return None
