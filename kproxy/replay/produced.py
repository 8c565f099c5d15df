"""Check produced records: each record of a client is looked up among the recorded ones.

::

    recorded batches ─▶ Expected … ─┐
                                    ├─▶ match ─▶ its recorded offset
    record of a client ─────────────┘        └─▶ none: a finding with the closest one

Records are compared one by one, never by batch, because the size of batches depends on timing.
Compared are topic, partition, key, value and headers. Clients choose the partition of a record
without a key at random, so it is not compared by default. Partitions of all records can be ignored,
for clients with another partitioner; so can headers by name, and parts of JSON values, and of
decoded ones, by path. Keys and values are compared as bytes otherwise, whatever their schemas are:
those of the recording serve to say in which part two records differ. A batch that cannot be read
stands for a record of its own (`unreadable`).

Compared is what a reader of committed records sees. A record that was committed when it was
recorded, or was in no transaction, has to be committed; one that was aborted, or whose transaction
was left open, need not be produced, and must not be committed. Where the end is not known, it need
not be produced. What was committed in a transaction has to be in one again, in any, and so have the
offsets of the groups that went with it, or alone. Where a transaction was begun and ended outside
of the recording, its records count as in none.
"""

from __future__ import annotations

import enum
import json
from collections import Counter
from collections.abc import Iterable, Iterator

import attrs

from kproxy.exchange.behaviour import without_random_ids
from kproxy.exchange.words.wording import count
from kproxy.payloads.decoding import decode
from kproxy.payloads.meaning import Decoded
from kproxy.payloads.plain import json_text
from kproxy.protocol import ProtocolError
from kproxy.protocol.record_batch import Record
from kproxy.replay.differences import (
    Meaning,
    common_prefix_length,
    differences,
    sentence,
    short,
    text_of,
    why,
)
from kproxy.replay.ignored import Ignored
from kproxy.replay.loaded import CommittingGroups, Loaded, Other
from kproxy.replay.log import PartitionLog
from kproxy.replay.report import Report
from kproxy.replay.stored_batch import pieces
from kproxy.replay.topics import Topic
from kproxy.replay.transaction import Transaction
from kproxy.replay.unreadable import UnreadableBatch, contents

ADVICE = "if that is meant, record again: kproxy run --bootstrap BROKERS --record FILE"
_NAMED_MAX = 3
"""Of a topic to which nothing was produced, at most this many records are named one by one."""
_COMPARED_MAX = 1000
"""At most this many recorded records are searched for the closest one."""


class Outcome(enum.Enum):
    """What has become of a recorded record in the replay."""

    NEVER = "was never produced"
    PLAIN = "was produced"
    ONGOING = "was produced in a transaction that never ended"
    COMMITTED = "was produced in a transaction that was committed"
    ABORTED = "was produced in a transaction that was aborted"


class RecordedAs(enum.Enum):
    """What had become of a record when it was recorded."""

    PLAIN = "committed in no transaction"
    COMMITTED = "committed in a transaction"
    UNKNOWN = "in a transaction whose end is not known"
    UNCOMMITTED = "aborted, or left open"


_Alike = tuple[RecordedAs, ...]
"""Of records that were recorded as one of these, the first in the order of the recording counts."""
_ANY: _Alike = tuple(RecordedAs)
_CANDIDATES: dict[Outcome, tuple[_Alike, ...]] = {
    # It is committed at once: rather one that was, and only then one that was aborted.
    Outcome.PLAIN: tuple((each,) for each in RecordedAs),
    # Its end is not known yet: rather the next that a transaction wrote, whatever its end was.
    Outcome.ONGOING: (
        (RecordedAs.COMMITTED, RecordedAs.UNCOMMITTED),
        (RecordedAs.PLAIN,),
        (RecordedAs.UNKNOWN,),
    ),
    # It was taken for one that was aborted: rather one that was committed.
    Outcome.COMMITTED: ((RecordedAs.COMMITTED,), (RecordedAs.PLAIN,), (RecordedAs.UNKNOWN,)),
    # It was taken for one that was committed: rather one that need not be.
    Outcome.ABORTED: ((RecordedAs.UNCOMMITTED,),),
}
"""Of equal recorded records, those that a produced one with an outcome is taken for: of the first
kinds of which one is still to be produced."""


@attrs.define(eq=False)
class Expected:
    """A record that a client produced in the recording."""

    topic: Topic
    partition: int
    offset: int
    """-1 if it is not recorded."""
    record: Record
    log: PartitionLog
    transaction: Transaction | None = None
    """The recorded transaction that wrote it."""
    transactional: bool = False
    """True if it was produced in a transaction whose begin or end the recording shows."""
    outcome: Outcome = Outcome.NEVER
    shown_as_closest: bool = False
    """True after a finding has shown it as the closest to an unknown record."""
    place: int = 0
    """Its place among the records that are equal."""

    @property
    def committed(self) -> bool:
        """Whether readers of committed records saw it when it was recorded."""
        return self.transaction is None or self.transaction.committed

    @property
    def recorded_as(self) -> RecordedAs:
        """What had become of it when it was recorded."""
        if not self.committed:
            return RecordedAs.UNCOMMITTED
        if self.transaction is not None and self.transaction.unknown:
            return RecordedAs.UNKNOWN
        return RecordedAs.COMMITTED if self.transactional else RecordedAs.PLAIN

    @property
    def settled(self) -> bool:
        """Whether it was produced again and is committed, or aborted as when it was recorded."""
        if self.outcome is Outcome.ABORTED:
            return not self.committed
        return self.outcome in (Outcome.PLAIN, Outcome.COMMITTED)

    @property
    def produced(self) -> bool:
        """Whether it was produced again, in a transaction that may still be ongoing."""
        return self.settled or self.outcome is Outcome.ONGOING

    @property
    def demanded(self) -> bool:
        """Whether it has to be produced again, and to be committed."""
        return self.committed and (self.transaction is None or not self.transaction.unknown)

    @property
    def missing(self) -> bool:
        """Whether it is still to be produced, or to be committed."""
        return self.demanded and not self.settled


@attrs.define(eq=False)
class _EqualRecords:
    """Recorded records that are equal, in order. Lookups resume where the last one ended, so all
    of them together are linear."""

    expected: list[Expected] = attrs.Factory(list)
    _next: dict[tuple[int | None, _Alike], int] = attrs.field(factory=dict, init=False)
    """Index of the first record that may be unproduced, by partition, None for whichever, and by
    what it was recorded as."""

    def add(self, expected: Expected) -> None:
        """Add a record behind the others."""
        expected.place = len(self.expected)
        self.expected.append(expected)

    def first_unproduced(self, partition: int | None, alike: _Alike = _ANY) -> Expected | None:
        """Return the first record that was recorded as one of these and not produced yet; None
        stands for all partitions."""
        kind = partition, alike
        for place in range(self._next.get(kind, 0), len(self.expected)):
            each = self.expected[place]
            wanted = partition in (None, each.partition) and each.recorded_as in alike
            if wanted and not each.produced:
                self._next[kind] = place
                return each
        self._next[kind] = len(self.expected)
        return None

    def free(self, expected: Expected) -> None:
        """Have a record be found again."""
        self._next = {kind: min(at, expected.place) for kind, at in self._next.items()}


@attrs.define(eq=False)
class ProduceCheck:
    """The recorded records by topic, and whether they have been produced again."""

    loaded: Loaded
    report: Report
    ignored: Ignored = attrs.Factory(Ignored)
    committing: CommittingGroups = attrs.field(factory=CommittingGroups, init=False)
    """The groups that have committed in this run."""
    _topics: dict[Topic, dict[tuple, _EqualRecords]] = attrs.field(factory=dict, init=False)
    _unsettled: dict[Expected, None] = attrs.field(factory=dict, init=False)
    """Records that were produced in transactions which have not been committed, in order."""
    _undecoded: list[Other] = attrs.field(init=False)
    """Recorded requests that cannot be decoded, and have not come again."""

    def __attrs_post_init__(self) -> None:
        self._undecoded = list(self.loaded.undecoded)

    def expected(self, topic: Topic) -> Iterator[Expected]:
        """Yield all expected records of a topic."""
        for same in self._of(topic).values():
            yield from same.expected

    @property
    def topics(self) -> list[Topic]:
        """The topics that clients produced to in the recording, all generations of each name."""
        cluster = self.loaded.cluster
        names = [name for name, _ in sorted(self.loaded.produced)]
        names += [cluster.names[topic_id] for topic_id, _, _ in self.loaded.unplaced]
        return [topic for name in dict.fromkeys(names) for topic in cluster.generations[name]]

    @property
    def lacks_records(self) -> bool:
        """Whether a recorded record is still to be produced, or to be committed, or the offsets of
        a group are to be in a transaction."""
        missing = any(each.missing for topic in self.topics for each in self.expected(topic))
        return missing or bool(self._undecoded or self._missing_groups())

    def match(
        self, topic: Topic, partition: int, record: Record, in_transaction: bool = False
    ) -> Expected | None:
        """Return the first unproduced record equal to this one, marked as produced; or None."""
        same = self._of(topic).get(self.ignored.content(record, topic.name))
        if same is None:
            return None
        outcome = Outcome.ONGOING if in_transaction else Outcome.PLAIN
        found = self._first(same, partition, record, outcome)
        if found is not None and in_transaction:
            found.outcome = outcome
            self._unsettled[found] = None
        elif found is not None:
            self._settle([found], outcome)
        return found

    def holds(self, topic: Topic, partition: int, record: Record) -> bool:
        """Return whether the recording holds a record, produced again or not."""
        same = self._of(topic).get(self.ignored.content(record, topic.name))
        if same is None or not self.ignored.compares_partition(record):
            return same is not None
        return any(each.partition == partition for each in same.expected)

    def _first(
        self, same: _EqualRecords, partition: int, record: Record, outcome: Outcome
    ) -> Expected | None:
        """Return the unproduced one of equal records that one with this outcome is taken for."""
        for alike in _CANDIDATES[outcome]:
            found = same.first_unproduced(partition, alike)
            if found is None and not self.ignored.compares_partition(record):
                found = same.first_unproduced(None, alike)
            if found is not None:
                return found
        return None

    def end(self, produced: Iterable[Expected], committed: bool) -> list[Expected]:
        """Take the end of the transaction in which records were produced; return the records that
        have this end. One with another end when it was recorded gives way to an equal one."""
        return self._settle(produced, Outcome.COMMITTED if committed else Outcome.ABORTED)

    def _settle(self, produced: Iterable[Expected], outcome: Outcome) -> list[Expected]:
        """See `end`; `outcome` is that of all the records."""
        committed = outcome is not Outcome.ABORTED
        found: list[Expected] = []
        differing: dict[Transaction | None, Expected] = {}
        for each in produced:
            self._unsettled.pop(each, None)
            each.outcome = outcome
            if each.committed == committed:
                found.append(each)
                continue
            same = self._of(each.topic)[self.ignored.content(each.record, each.topic.name)]
            other = self._first(same, each.partition, each.record, outcome)
            if other is not None:
                each.outcome, other.outcome = Outcome.NEVER, outcome
                same.free(each)
                found.append(other)
            elif committed:
                differing.setdefault(each.transaction, each)
                found.append(each)
            else:
                same.free(each)
                self._unsettled[each] = None
        for transaction, first in differing.items():
            if transaction is not None:
                then = "aborted" if transaction.aborted else "left open"
                where = f"{first.topic.name}[{first.partition}]: the transaction at offset"
                how = f"is committed now, and was {then} when recorded"
                self.report.add("differs", f"{where} {transaction.first_offset} {how}")
        return found

    def repeated(self, frame: bytes | bytearray) -> bytes | None:
        """Take a Produce that may be one that cannot be decoded: the same bytes, but for the
        correlation id. Return its recorded response."""
        for index, each in enumerate(self._undecoded):
            then = each.request_frame
            if then[:8] == frame[:8] and then[12:] == frame[12:]:
                del self._undecoded[index]
                return each.response_frame[:4] + bytes(frame[8:12]) + each.response_frame[8:]
        return None

    def report_unknown(self, topic: Topic, partition: int, record: Record) -> None:
        """Report a record without a match, and the closest unproduced one. Call this after all
        records of its batch were matched."""
        same = self._of(topic).get(self.ignored.content(record, topic.name))
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
                report.add("not produced", f"{topic.name}: none of its recorded records", ADVICE)

    def _report_unproduced_to(self, topics: Iterable[Topic], report: Report) -> None:
        for each in self._undecoded:
            what = f"a Produce v{each.api_version} of {count(len(each.request_frame), 'byte')}"
            report.add("not produced", f"{what} {_why_undecoded(each)} did not come again", ADVICE)
        for group in self._missing_groups():
            what = f"group {group}: its offsets were not committed in a transaction"
            report.add("not produced", f"{what}; recorded in one", ADVICE)
        for topic in topics:
            expected = list(self.expected(topic))
            missing = [
                each
                for each in expected
                if each.missing and each.outcome is Outcome.NEVER and not each.shown_as_closest
            ]
            if len(missing) == len(expected) > _NAMED_MAX:
                first = f"the first: {self._shown(topic, missing[0].record)}"
                what = f"{topic.name}: none of its {len(missing)} recorded records; {first}"
                report.add("not produced", what, ADVICE)
                continue
            for each in missing:
                what = f"{_named(each)} {each.outcome.value}: {self._shown(topic, each.record)}"
                report.add("not produced", what, ADVICE)

    def report_uncommitted(self) -> None:
        """Report all records that were produced, but not committed as they were when recorded."""
        for each in self._unsettled:
            if each.missing:
                what = f"{_named(each)} {each.outcome.value}; the recording has it committed"
                what = f"{what}: {self._shown(each.topic, each.record)}"
                self.report.add("differs", what, ADVICE)

    def report_outside(self) -> None:
        """Report how many records, and the offsets of which groups, were not in a transaction
        although they were when recorded."""
        outside: Counter[str] = Counter()
        for topic, by_content in self._topics.items():
            outside[topic.name] += sum(map(self._outside, by_content.values()))
        for name, number in sorted((+outside).items()):
            were = "was" if number == 1 else "were"
            what = f"{count(number, 'record')} {were} produced outside a transaction"
            self.report.add("differs", f"{name}: {what}; recorded in one", ADVICE)
        for group in self._groups_outside():
            what = f"group {group}: its offsets were committed outside a transaction"
            self.report.add("differs", f"{what}; recorded in one", ADVICE)

    def _outside(self, same: _EqualRecords) -> int:
        """Return how many of equal records should have been in a transaction, and were not. Which
        of them is which does not matter: only the number does, of each partition that counts."""
        lacking: Counter[int | None] = Counter()
        for each in same.expected:
            if each.settled:
                partition = each.partition if self.ignored.compares_partition(each.record) else None
                was_in_one = each.recorded_as is RecordedAs.COMMITTED
                lacking[partition] += was_in_one - (each.outcome is not Outcome.PLAIN)
        return (+lacking).total()

    def _missing_groups(self) -> list[str]:
        """Return the groups whose offsets have not been committed, in a transaction or outside."""
        missing = _in_each_run(self.loaded.committing.in_transactions)
        return sorted(
            missing - _in_each_run(self.committing.in_transactions) - set(self._groups_outside())
        )

    def _groups_outside(self) -> list[str]:
        """Return the groups that have committed in no transaction, and did in none but one when
        recorded."""
        then, now = self.loaded.committing, self.committing
        only_inside = _in_each_run(then.in_transactions) - _in_each_run(then.plainly)
        return sorted(only_inside & _in_each_run(now.plainly))

    def _of(self, topic: Topic) -> dict[tuple, _EqualRecords]:
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = {}
            for expected in self._read(topic):
                key = self.ignored.content(expected.record, topic.name)
                found.setdefault(key, _EqualRecords()).add(expected)
        return found

    def _read(self, topic: Topic) -> Iterator[Expected]:
        logs = {each.index: each.log for each in topic.all_partitions}
        reader = self.loaded.cluster.store.reader
        for index, log in sorted(logs.items()):
            for batch, transaction in log.produced():
                unseen = transaction is not None and transaction.unseen
                how = batch.transactional and not unseen
                for record in contents(batch):
                    offset = record.offset
                    yield Expected(topic, index, offset, record, log, transaction, how)
        for place, (topic_id, index, data) in enumerate(self.loaded.unplaced):
            for batch in pieces(data, reader.of_log(place)) if topic_id == topic.topic_id else ():
                for record in contents(batch):
                    how = batch.transactional
                    yield Expected(topic, index, -1, record, logs[index], None, how)

    def _text(self, topic: Topic, partition: int, record: Record, again: bool) -> str:
        what = f"{topic.name}[{partition}]: the recording does not hold this {_kind(record)}"
        shown = self._shown(topic, record)
        if again:
            return f"{what} once more than it was produced before: {shown}"
        expected = self.expected(topic)
        left = (
            each
            for each in expected
            if not each.produced
            and not each.shown_as_closest
            and _kind(each.record) == _kind(record)
        )
        closest = _closest(left, partition, record)
        if closest is None:
            return f"{what}, nor any other that is still to be produced there: {shown}"
        at = f" at offset {closest.offset}" if closest.offset >= 0 else ""
        where = f"{topic.name}[{closest.partition}]{at}"
        if isinstance(record, UnreadableBatch):
            closest.shown_as_closest = True
            now, then = self._shown(topic, record), self._shown(topic, closest.record)
            return f"{what}: {now}; the closest one, {where}, has other bytes: {then}"
        now, of_now = self._compared(topic, record)
        then, of_then = self._compared(topic, closest.record)
        closest.shown_as_closest = now.key == then.key or now.value == then.value
        found = list(differences(now, then, of_now, of_then))
        if closest.partition != partition:
            found.insert(0, ("partition", str(partition), str(closest.partition)))
        return f"{what}; the closest one, {where}, differs in {sentence(found)}"

    def _compared(self, topic: Topic, record: Record) -> tuple[Record, dict[str, Meaning]]:
        """Return a record without the ignored parts, and what its key and its value mean."""
        content = self.ignored.content(record, topic.name)
        meanings = self._meanings(topic, record)
        if content.decoded_as:
            meanings["value"] = Decoded(json.loads(content.value or b""), content.decoded_as)
        plain = attrs.evolve(record, key=content.key, value=content.value, headers=content.headers)
        return plain, meanings

    def _meanings(self, topic: Topic, record: Record) -> dict[str, Meaning]:
        given = topic.name, record.key, record.value, record.headers, self.loaded.schemas
        return {part: decode(part, *given) for part in ("key", "value")}

    def _shown(self, topic: Topic, record: Record) -> str:
        if isinstance(record, UnreadableBatch):
            return record.text
        texts = {"key": text_of(record.key), "value": text_of(record.value)}
        for part, meaning in self._meanings(topic, record).items():
            shown = json_text(meaning.value) if isinstance(meaning, Decoded) else texts[part]
            texts[part] = f"{short(shown)}{why(meaning)}"
        headers = f", headers {short(str(record.headers))}" if record.headers else ""
        return f"key {texts['key']}, value {texts['value']}{headers}"


def _in_each_run(groups: Iterable[str]) -> set[str]:
    """Return groups by the names that they have in each run."""
    return set(map(without_random_ids, groups))


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


def _named(expected: Expected) -> str:
    at = f" at offset {expected.offset}" if expected.offset >= 0 else ""
    return f"{expected.topic.name}[{expected.partition}]: the {_kind(expected.record)}{at}"


def _why_undecoded(request: Other) -> str:
    try:
        _ = request.request
    except ProtocolError as error:
        return f"that cannot be decoded ({error})"
    return "that cannot be decoded"


def _kind(record: Record) -> str:
    return "batch" if isinstance(record, UnreadableBatch) else "record"
