"""The comparison of two recordings by what they mean.

::

    items before ─▶ RecordingMeaning ─▶ facts by aspect ─┐
          └─ records ─▶ UnmatchedRecords ────────────────┼─▶ Difference …
    items after ──▶ RecordingMeaning ─▶ facts by aspect ─┘

`kproxy diff` and the cassette mode verify compare so; `git diff` shows the same meaning as text,
and a replay compares facts of some of these aspects.

Both sides are read in turn, so that their records meet: whichever had fewer is read next. Memory
grows with the number of topics, groups, transactions, clients, and of differences.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import attrs

from kproxy.exchange.derived import UNKNOWN
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.histogram import PERCENTILES, Histogram
from kproxy.exchange.merging import contains, joined
from kproxy.exchange.topic_records import TopicRecord, Unreadable
from kproxy.exchange.varying import BY_CHANCE, KEYS, Purpose, purpose
from kproxy.exchange.words.wording import duration
from kproxy.history.behaviour import Behaviour
from kproxy.history.items import Item
from kproxy.look.diff.records import AFTER, BEFORE, UnmatchedRecords
from kproxy.look.lines.meaning import RecordingMeaning
from kproxy.look.lines.stats_lines import ENOUGH
from kproxy.look.report.significance import latency_of, worst
from kproxy.replay import differences
from kproxy.replay.compared import Difference, changes
from kproxy.replay.facts import FACTS, Fact, client_text
from kproxy.replay.ignored import Ignored
from kproxy.replay.places import flat, pairs
from kproxy.wire.protocol import records

MEANING = (
    "records", "order", "topics", "groups", "commits", "transactions", "requests", "errors",
    "faults",
)  # fmt: skip
"""The aspects of what clients do, as `git diff` shows them."""
ASPECTS = (*MEANING, "consumed", "apis", "settings", "latency")
"""What `kproxy diff --compare` takes."""
LATENCY_FACTOR = 2.0
"""A latency differs if it is so many times the other."""

_SETTINGS = {
    "ApiVersions": ("client_software_name", "client_software_version"),
    "Produce": ("acks", "timeout_ms"),
    "Fetch": ("max_wait_ms", "min_bytes", "max_bytes", "isolation_level", "rack_id"),
    "Metadata": ("allow_auto_topic_creation",),
    "InitProducerId": ("transaction_timeout_ms",),
    "JoinGroup": ("session_timeout_ms", "rebalance_timeout_ms", "group_instance_id"),
    "ConsumerGroupHeartbeat": ("rebalance_timeout_ms", "server_assignor", "instance_id", "rack_id"),
}
"""API → the fields of its request that a client's configuration sets. Of Metadata, where topics are
named: a client that only looks for brokers first, or does not, creates none."""
_UNSET = (None, "", -1)
_SECOND_NS = 1_000_000_000


@attrs.define(eq=False)
class ComparedRecording:
    """One side of a comparison."""

    meaning: RecordingMeaning
    _apis: dict[str, dict[str, set[int]]] = attrs.field(factory=dict, init=False)
    """Client → API → its versions."""
    _settings: dict[tuple[str, str], set[tuple[Any, ...]]] = attrs.field(factory=dict, init=False)
    """Client and API → its settings: names and values."""
    latencies: dict[str, Histogram] = attrs.Factory(lambda: defaultdict(Histogram))
    """API → the broker's own times."""
    seconds: dict[str, tuple[int, int]] = attrs.field(factory=dict, init=False)
    """API → the last second in which it was asked, and how many there were."""

    def add(self, item: Item) -> None:
        """Take the next item of the recording."""
        self.meaning.add(item)
        if not isinstance(item, Exchange) or not item.named:
            return
        client, api = client_text(item.client_id), item.api or "?"
        if (served_us := item.durations.served_us) != UNKNOWN:
            self.latencies[api].add(served_us)
        self._apis.setdefault(client, {}).setdefault(api, set()).add(item.row.api_version)
        second, (last, many) = item.time_ns // _SECOND_NS, self.seconds.get(api, (0, 0))
        if second > last:
            self.seconds[api] = second, many + 1
        if found := tuple(_settings(item)):
            self._settings.setdefault((client, api), set()).add(found)

    def facts(self, aspect: str, other: ComparedRecording) -> Iterator[Fact]:
        """Yield the facts of an aspect, beside another recording."""
        if aspect in FACTS:
            return FACTS[aspect](self.meaning.behaviour, self.meaning.ignored)
        own = {"apis": self._api_facts, "settings": self._setting_facts}
        return own[aspect](other) if aspect in own else self.meaning.facts(aspect)

    def _api_facts(self, other: ComparedRecording) -> Iterator[Fact]:
        for client, apis in self._apis.items():
            beside = other._apis.get(client)
            if beside is None:
                yield Fact(f"client {client}", client, f"asks {', '.join(sorted(apis))}")
                continue
            for api, versions in apis.items():
                told = purpose(api) is Purpose.ADMIN or api in BY_CHANCE  # as requests, or not
                if api in beside or not told:
                    text = ", ".join(f"v{each}" for each in sorted(versions))
                    yield Fact(f"client {client}, {api}", api, text)

    def _setting_facts(self, other: ComparedRecording) -> Iterator[Fact]:
        for (client, api), found in self._settings.items():
            by_name: dict[str, set[str]] = {}
            for name, value in itertools.chain.from_iterable(found):
                by_name.setdefault(name, set()).add(str(value))
            for name, values in by_name.items() if api in other._apis.get(client, ()) else ():
                # A batch that does not get smaller is sent as it is, whatever is configured.
                values = values - {"none"} or values if name == "compression" else values
                yield Fact(f"client {client}, {api} {name}", name, ", ".join(sorted(values)))

    def wrote(self, record: TopicRecord | Unreadable) -> bool:
        """Return whether a record that consumers got was produced in the recording."""
        written = self.meaning.behaviour.topic(record.topic).written
        logs = (spans for (_, partition), spans in written.items() if partition == record.partition)
        return any(
            contains(joined([], [each[:2] for each in spans]), record.offset or 0) for spans in logs
        )


def _settings(exchange: Exchange) -> Iterator[tuple[str, object]]:
    names = _SETTINGS.get(exchange.api or "")
    if names is None or (request := exchange.request) is None:
        return
    if exchange.api == "Metadata" and not request.topics:
        return
    for name in names:
        if (value := getattr(request, name, None)) not in _UNSET:
            yield name, value
    if exchange.api == "JoinGroup":
        yield "protocols", " ".join(each.name for each in request.protocols)
    elif exchange.api == "Produce":
        for each in exchange.facts.records:
            if codec := next((one.compression for one in records.batches(each.data)), None):
                yield "compression", codec


def compare(
    before: Iterable[Item],
    after: Iterable[Item],
    ignored: Ignored | None = None,
    aspects: Collection[str] = ASPECTS,
    latency_factor: float = LATENCY_FACTOR,
) -> list[Difference]:
    """Return the differences in aspects of two recordings, in the order of `ASPECTS`."""
    ignored = Ignored() if ignored is None else ignored
    unmatched = UnmatchedRecords(ignored)
    items = {BEFORE: iter(before), AFTER: iter(after)}
    sides = {
        side: ComparedRecording(RecordingMeaning(ignored, Behaviour(partial(unmatched.add, side))))
        for side in items
    }
    while items:
        side = min(items, key=unmatched.taken.__getitem__)
        if (item := next(items[side], None)) is None:
            del items[side]
        else:
            sides[side].add(item)
    first, second = sides[BEFORE], sides[AFTER]
    found = list(unmatched.differences({side: each.wrote for side, each in sides.items()}))
    for aspect in aspects:
        if aspect == "requests":
            found += _requests(first.meaning.requests, second.meaning.requests)
        elif aspect not in ("records", "order", "consumed", "latency"):
            found += changes(aspect, second.facts(aspect, first), first.facts(aspect, second))
    found += _latencies(first, second, latency_factor)
    wanted = (each for each in found if each.aspect in aspects)
    return sorted(wanted, key=lambda each: ASPECTS.index(each.aspect))


_Requests = Mapping[tuple[str, str], Mapping[str, Any]]


def _requests(before: _Requests, after: _Requests) -> Iterator[Difference]:
    """Yield the requests of admins that only one side has; of those that belong together, the
    fields in which they, or their responses, differ."""
    for client, api in dict.fromkeys([*before, *after]):
        subject = f"client {client}, {api}"
        then, now = (each.get((client, api), {}) for each in (before, after))
        old = [text for text in sorted(then) if text not in now]
        new = [text for text in sorted(now) if text not in then]
        olds = [_keyed(then[text]) for text in old]
        news = [_keyed(now[text]) for text in new]
        found = pairs(*([dict(flat("", "", each)) for each in side] for side in (news, olds)))
        for here, there in sorted(found.items()):
            for which, *texts in differences.whole_parts("", news[here], olds[there]):
                now_text, then_text = (None if text == "absent" else text for text in texts)
                yield Difference("requests", subject, then_text, now_text, which)
        paired = set(found.values())
        alone = [(text, None) for at, text in enumerate(old) if at not in paired]
        alone += [(None, text) for at, text in enumerate(new) if at not in found]
        yield from (Difference("requests", subject, *each) for each in alone)


def _keyed(value: Any) -> Any:
    """Return plain values with the elements of arrays by their names, where they have some."""
    if isinstance(value, dict):
        return {name: _keyed(value[name]) for name in sorted(value)}
    if not isinstance(value, list):
        return value
    names = [next((each[key] for key in KEYS if isinstance(each, dict) and key in each), None)
             for each in value]  # fmt: skip
    elements = list(map(_keyed, value))
    is_told = None not in names and len(set(names)) == len(names)
    return dict(zip(names, elements, strict=True)) if is_told else elements


def _latencies(
    before: ComparedRecording, after: ComparedRecording, factor: float
) -> Iterator[Difference]:
    """Yield the latencies that differ. What is asked in the same second is slow together: no more
    exchanges than seconds count as measured by themselves."""
    for api in sorted(before.latencies.keys() & after.latencies.keys()):
        sides = (before, before.latencies[api]), (after, after.latencies[api])
        if min(times.count for _, times in sides) < ENOUGH:
            continue
        (_, old), (_, new) = sides
        part = min(each.seconds[api][1] / times.count for each, times in sides)
        row = latency_of(new.counts, old.counts, min(1.0, part))
        if (name := worst(row, factor)) is not None:
            then, now = (
                ", ".join(f"{each} {duration(row[prefix + each])}" for each in PERCENTILES)
                for prefix in ("baseline_", "")
            )
            size = f"{name} ×{row[f'{name}_ratio']:.2f}, {abs(row[f'{name}_sigma'])} sigma"
            yield Difference("latency", api, then, now, size, numbers=row)
