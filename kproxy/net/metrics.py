"""What the proxy counts, in Prometheus' text format.

Nothing is counted for this: every metric is an attribute of what the pump, the machine, the
recorder and the recording know anyway, read when somebody asks. So the bytes that pass pay nothing.

Names: units at the end, `_total` on what only grows, labels from the vocabulary of `kproxy show
--json`. All of it is valid OpenMetrics as well.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from operator import attrgetter

import attrs
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from kproxy import __version__
from kproxy.net.control import Answer
from kproxy.net.pump import Pump
from kproxy.net.recorder import Recorder
from kproxy.proxy.cluster import Cluster
from kproxy.recording.rotation import Recording

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The oldest version of the format, which everything reads."""


@attrs.frozen(eq=False)
class Sources:
    """Where the numbers come from."""

    pump: Pump
    cluster: Cluster
    recorder: Recorder
    recording: Recording | None


_Row = tuple[str, type[CounterMetricFamily] | type[GaugeMetricFamily], str, str]
"""A metric: its name, its kind, the attribute of `Sources` that it is, its help."""

_COUNTER, _GAUGE = CounterMetricFamily, GaugeMetricFamily

_PASSING: list[_Row] = [
    ("kproxy_connections_open", _GAUGE, "pump.connections_open", "Clients that are connected."),
    (
        "kproxy_connections_max",
        _GAUGE,
        "pump.acceptor.connections_max",
        "The most clients at once (--connections-max, or what ulimit -n allows).",
    ),
    (
        "kproxy_connections_accepted",
        _COUNTER,
        "pump.connections_accepted",
        "Connections of clients that were taken on.",
    ),
    (
        "kproxy_connections_refused",
        _COUNTER,
        "pump.acceptor.connections_refused",
        "Connections of clients that were closed at once, because there were too many.",
    ),
]

_RECORDING: list[_Row] = [
    (
        "kproxy_frames_recorded",
        _COUNTER,
        "recorder.frames_recorded",
        "Frames, and pieces of large ones, that are in the recording.",
    ),
    (
        "kproxy_frames_lost",
        _COUNTER,
        "recorder.frames_lost",
        "Frames, and pieces of large ones, that passed and could not be recorded.",
    ),
    (
        "kproxy_frames_lost_bytes",
        _COUNTER,
        "recorder.frame_bytes_lost",
        "Size of the frames that could not be recorded.",
    ),
    (
        "kproxy_recording_bytes",
        _COUNTER,
        "recording.bytes_written",
        "Written to the files of the recording.",
    ),
    (
        "kproxy_backlog_bytes",
        _GAUGE,
        "recorder.backlog_bytes",
        "Memory that holds what the disk has not taken yet.",
    ),
    (
        "kproxy_backlog_max_bytes",
        _GAUGE,
        "recorder.backlog_bytes_max",
        "What is over it is lost (--backlog-bytes-max).",
    ),
]
"""Only where there is a recording."""


class _Proxy:
    """Collects the tables, and what has labels."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics as they are now."""
        sources = self._sources
        yield InfoMetricFamily("kproxy_build", "This program.", {"version": __version__})
        recording = sources.recording
        for name, kind, attribute, text in _PASSING + (_RECORDING if recording else []):
            yield kind(name, text, value=attrgetter(attribute)(sources))
        if recording:
            text = "The file that is being written."
            path = os.fsencode(recording.paths[-1]).decode("utf-8", "backslashreplace")
            yield InfoMetricFamily("kproxy_recording", text, {"file": path})
        up = GaugeMetricFamily(
            "kproxy_broker_up",
            "Whether the last attempt to connect to the broker succeeded, for a client.",
            labels=["node_id"],
        )
        for node_id, reachable in sources.cluster.reachable.items():
            up.add_metric(["bootstrap" if node_id is None else str(node_id)], reachable)
        yield up


def exposition(sources: Sources) -> Callable[[], Answer]:
    """Return what answers a request for the metrics."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Proxy(sources))
    ProcessCollector(registry=registry)
    return lambda: Answer(200, generate_latest(registry), _CONTENT_TYPE)
