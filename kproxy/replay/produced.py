"""Produce is checked: each record that a client produces is looked up among the recorded ones.

::

    recorded batches ─▶ Expected … ─┐
                                    ├─▶ match ─▶ its recorded offset
    record of a client ─────────────┘        └─▶ none: a finding with the closest one

Records are compared one by one, never by batch: clients cut batches as timing has it. What counts
is topic, partition, key, value and headers. Where a record without a key goes is the client's
chance, so its partition does not count unless that is asked for; for another client, which
partitions otherwise, it may be left out for all. So may headers by name, and parts of JSON values
by path.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from kproxy.protocol import ProtocolError, records
from kproxy.protocol.record_batch import Record
from kproxy.replay.differences import common_prefix_length, differences, sentence, short, text_of
from kproxy.replay.ignored import Ignored
from kproxy.replay.loaded import Loaded
from kproxy.replay.report import Report

ADVICE = "if that is meant, record again: kproxy run --bootstrap BROKERS --record FILE"
_COMPARED_MAX = 1000
"""So many recorded records are looked at for the closest one."""


@attrs.define(eq=False)
class Expected:
    """A record that was seen being produced."""

    topic: str
    partition: int
    offset: int
    """-1 where the recording does not say it."""
    record: Record
    produced: bool = False
    told: bool = False
    """Whether a finding has shown it as what another record was to be."""


@attrs.define(eq=False)
class _Equal:
    """Recorded records that are equal, in order: each is passed once per partition, however many
    there are."""

    expected: list[Expected] = attrs.Factory(list)
    _next: dict[int | None, int] = attrs.field(factory=dict, init=False)
    """By partition, and of all: none is left before this place."""

    def left(self, partition: int | None) -> Expected | None:
        """The first that was not produced yet, of a partition or of all."""
        for place in range(self._next.get(partition, 0), len(self.expected)):
            each = self.expected[place]
            if not each.produced and partition in (None, each.partition):
                self._next[partition] = place
                return each
        self._next[partition] = len(self.expected)
        return None


@attrs.define(eq=False)
class ProduceCheck:
    """The recorded records, by topic, and which of them have been produced again."""

    loaded: Loaded
    report: Report
    ignored: Ignored = attrs.Factory(Ignored)
    _topics: dict[str, dict[tuple, _Equal]] = attrs.field(factory=dict, init=False)

    def expected(self, topic: str) -> Iterator[Expected]:
        """Yield all that is expected of a topic."""
        for same in self._of(topic).values():
            yield from same.expected

    @property
    def topics(self) -> list[str]:
        """The topics to which records were produced."""
        found = [topic for topic, _ in sorted(self.loaded.produced)]
        return list(dict.fromkeys(found + [topic for topic, _, _ in self.loaded.unplaced]))

    def match(self, topic: str, partition: int, record: Record) -> Expected | None:
        """Find the record among those that were not produced yet: it is produced then."""
        same = self._of(topic).get(self.ignored.content(record))
        found = None if same is None else same.left(partition)
        if found is None and same is not None and not self.ignored.compares_partition(record):
            found = same.left(None)
        if found is not None:
            found.produced = True
        return found

    def tell(self, topic: str, partition: int, record: Record) -> None:
        """Tell the report of a record that was not found, with the closest that is left: so after
        all that are found of those it was produced with."""
        same = self._of(topic).get(self.ignored.content(record))
        again = same is not None and same.left(None) is None
        text = "" if self.report.full else self._text(topic, partition, record, again)
        self.report.add("not recorded", text, ADVICE)

    def missing(self) -> None:
        """Tell the report of all that was recorded and is not produced, but for what it has shown
        as the record that a produced one was to be."""
        for topic in self.topics:
            for each in self.expected(topic):
                if not each.produced and not each.told:
                    where = f"{topic}[{each.partition}]"
                    offset = f" at offset {each.offset}" if each.offset >= 0 else ""
                    what = f"{where}: the record{offset} was never produced: {_shown(each.record)}"
                    self.report.add("not produced", what, ADVICE)

    def _of(self, topic: str) -> dict[tuple, _Equal]:
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = {}
            for expected in self._read(topic):
                key = self.ignored.content(expected.record)
                found.setdefault(key, _Equal()).expected.append(expected)
        return found

    def _read(self, topic: str) -> Iterator[Expected]:
        for name, index in sorted(self.loaded.produced):
            for batch in self.loaded.cluster.log(name, index).produced() if name == topic else ():
                for record in _records(batch):
                    yield Expected(topic, index, record.offset, record)
        for name, index, data in self.loaded.unplaced:
            for batch in records.batches(data) if name == topic else ():
                for record in _records(batch):
                    yield Expected(topic, index, -1, record)

    def _text(self, topic: str, partition: int, record: Record, again: bool) -> str:
        what = f"{topic}[{partition}]: the recording does not hold this record"
        if again:
            return f"{what} once more than it was produced before: {_shown(record)}"
        expected = self.expected(topic)
        left = (each for each in expected if not each.produced and not each.told)
        closest = _closest(left, partition, record)
        if closest is None:
            return f"{what}, nor any other that is still to be produced there: {_shown(record)}"
        now, then = self._compared(record), self._compared(closest.record)
        closest.told = now.key == then.key or now.value == then.value
        found = list(differences(now, then))
        if closest.partition != partition:
            found.insert(0, ("partition", str(partition), str(closest.partition)))
        at = f" at offset {closest.offset}" if closest.offset >= 0 else ""
        where = f"{topic}[{closest.partition}]{at}"
        return f"{what}; the closest one, {where}, differs in {sentence(found)}"

    def _compared(self, record: Record) -> Record:
        key, value, headers = self.ignored.content(record)
        return attrs.evolve(record, key=key, value=value, headers=headers)


def _records(batch: records.Batch) -> Iterable[Record]:
    try:
        return batch.records
    except ProtocolError:
        return ()


def _closest(among: Iterable[Expected], partition: int, record: Record) -> Expected | None:
    best, score = None, (-1, -1, -1)
    for _, expected in zip(range(_COMPARED_MAX), among, strict=False):
        other = expected.record
        alike = (
            2 * (other.key == record.key) + 2 * (other.value == record.value),
            (other.headers == record.headers) + (expected.partition == partition),
            common_prefix_length(other.value or b"", record.value or b""),
        )
        if alike > score:
            best, score = expected, alike
    return best


def _shown(record: Record) -> str:
    headers = f", headers {short(str(record.headers))}" if record.headers else ""
    return f"key {short(text_of(record.key))}, value {short(text_of(record.value))}{headers}"
