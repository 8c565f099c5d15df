"""Check produced records: each record of a client is looked up among the recorded ones.

::

    recorded batches ─▶ Expected … ─┐
                                    ├─▶ match ─▶ its recorded offset
    record of a client ─────────────┘        └─▶ none: a finding with the closest one

Records are compared one by one, never by batch, because the size of batches depends on timing.
Compared are topic, partition, key, value and headers. Clients choose the partition of a record
without a key at random, so it is not compared by default. Partitions of all records can be ignored,
for clients with another partitioner; so can headers by name, and parts of JSON values by path.
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
"""At most this many recorded records are searched for the closest one."""


@attrs.define(eq=False)
class Expected:
    """A record that a client produced in the recording."""

    topic: str
    partition: int
    offset: int
    """-1 if it is not recorded."""
    record: Record
    produced: bool = False
    shown_as_closest: bool = False
    """True after a finding has shown it as the closest to an unknown record."""


@attrs.define(eq=False)
class _EqualRecords:
    """Recorded records that are equal, in order. Lookups resume where the last one ended, so all
    of them together are linear."""

    expected: list[Expected] = attrs.Factory(list)
    _next: dict[int | None, int] = attrs.field(factory=dict, init=False)
    """Index of the first record that may be unproduced, by partition; None: of all partitions."""

    def first_unproduced(self, partition: int | None) -> Expected | None:
        """Return the first record that was not produced yet, of a partition or of all."""
        for place in range(self._next.get(partition, 0), len(self.expected)):
            each = self.expected[place]
            if not each.produced and partition in (None, each.partition):
                self._next[partition] = place
                return each
        self._next[partition] = len(self.expected)
        return None


@attrs.define(eq=False)
class ProduceCheck:
    """The recorded records by topic, and whether they have been produced again."""

    loaded: Loaded
    report: Report
    ignored: Ignored = attrs.Factory(Ignored)
    _topics: dict[str, dict[tuple, _EqualRecords]] = attrs.field(factory=dict, init=False)

    def expected(self, topic: str) -> Iterator[Expected]:
        """Yield all expected records of a topic."""
        for same in self._of(topic).values():
            yield from same.expected

    @property
    def topics(self) -> list[str]:
        """The topics that clients produced to in the recording."""
        found = [topic for topic, _ in sorted(self.loaded.produced)]
        return list(dict.fromkeys(found + [topic for topic, _, _ in self.loaded.unplaced]))

    def match(self, topic: str, partition: int, record: Record) -> Expected | None:
        """Return the first unproduced record equal to this one, marked as produced; or None."""
        same = self._of(topic).get(self.ignored.content(record))
        found = None if same is None else same.first_unproduced(partition)
        if found is None and same is not None and not self.ignored.compares_partition(record):
            found = same.first_unproduced(None)
        if found is not None:
            found.produced = True
        return found

    def report_unknown(self, topic: str, partition: int, record: Record) -> None:
        """Report a record without a match, and the closest unproduced one. Call this after all
        records of its batch were matched."""
        same = self._of(topic).get(self.ignored.content(record))
        again = same is not None and same.first_unproduced(None) is None
        text = "" if self.report.full else self._text(topic, partition, record, again)
        self.report.add("not recorded", text, ADVICE)

    def report_unproduced(self, report: Report) -> None:
        """Report all records that were not produced, except those shown as the closest one."""
        self._report_unproduced_to(self.topics, report)

    def report_unproduced_read(self, report: Report) -> None:
        """Report the same without reading more of the recording: of topics that nothing was
        produced to, only the name."""
        self._report_unproduced_to([each for each in self.topics if each in self._topics], report)
        for topic in self.topics:
            if topic not in self._topics:
                report.add("not produced", f"{topic}: none of its recorded records", ADVICE)

    def _report_unproduced_to(self, topics: Iterable[str], report: Report) -> None:
        for topic in topics:
            for each in self.expected(topic):
                if not each.produced and not each.shown_as_closest:
                    where = f"{topic}[{each.partition}]"
                    offset = f" at offset {each.offset}" if each.offset >= 0 else ""
                    what = f"{where}: the record{offset} was never produced: {_shown(each.record)}"
                    report.add("not produced", what, ADVICE)

    def _of(self, topic: str) -> dict[tuple, _EqualRecords]:
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = {}
            for expected in self._read(topic):
                key = self.ignored.content(expected.record)
                found.setdefault(key, _EqualRecords()).expected.append(expected)
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
        left = (each for each in expected if not each.produced and not each.shown_as_closest)
        closest = _closest(left, partition, record)
        if closest is None:
            return f"{what}, nor any other that is still to be produced there: {_shown(record)}"
        now, then = self._compared(record), self._compared(closest.record)
        closest.shown_as_closest = now.key == then.key or now.value == then.value
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
