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
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import attrs

from kproxy.replay.facts import without_random_ids
from kproxy.replay.ignored import Ignored, IgnoredPart, Varying
from kproxy.replay.live_order import PartitionTransaction
from kproxy.replay.loaded import CommittingGroups, Loaded, Other, RefusedBatch
from kproxy.replay.log import PartitionLog
from kproxy.replay.report import ClientDifference, Report
from kproxy.replay.stored_batch import pieces
from kproxy.replay.topics import Topic
from kproxy.replay.unreadable import contents
from kproxy.wire.protocol.record_batch import Record


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
"""A group: of its records, the first in the order of the recording counts."""
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
"""The recorded records that an equal produced one may stand for, by its outcome: the first group
with one still to be produced wins."""


@attrs.define(eq=False)
class Expected:
    """A record that a client produced in the recording."""

    topic: Topic
    partition: int
    offset: int
    """-1 if it is not recorded."""
    record: Record
    log: PartitionLog
    transaction: PartitionTransaction | None = None
    """The recorded transaction that wrote it."""
    transactional: bool = False
    """True if it was produced in a transaction whose begin or end the recording shows."""
    is_free: bool = False
    """True if any record may be there, or none."""
    outcome: Outcome = Outcome.NEVER
    shown_as_closest: bool = False
    """True after a finding has shown it as the one that an unknown record belongs to."""
    places: dict[tuple[str, str], Any] | None = None
    """Its contents (`places`), once one that is not recorded has been compared with it."""
    place: int = 0
    """Its place among the records that are equal."""
    groups: frozenset[str] = frozenset()
    """Groups whose offsets were committed with it in this run."""
    recorded_varying: Varying = ()
    """Its contents that are ignored, and of a kind."""
    varying: Varying = ()
    """The same of the record that was produced for it."""

    @property
    def varies(self) -> bool:
        """Whether what was produced for it has other content of a kind."""
        return self.varying != self.recorded_varying

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
    def recorded_groups(self) -> set[str]:
        """Groups whose offsets were committed with it when it was recorded."""
        if self.transaction is None or self.recorded_as is not RecordedAs.COMMITTED:
            return set()
        return _in_each_run(self.transaction.groups)

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
        is_known = self.transaction is None or not self.transaction.unknown
        return self.committed and is_known and not self.is_free

    @property
    def missing(self) -> bool:
        """Whether it is still to be produced, or to be committed."""
        return self.demanded and not self.settled


class Spot(NamedTuple):
    """Where an identity stands."""

    topic: str
    part: IgnoredPart
    content: tuple = ()
    """The record, but for what varies."""

    @property
    def anywhere(self) -> Spot:
        """The same part of all records of the topic."""
        return self._replace(content=())


_MOVED_MAX = 100
"""At most this many identities are looked at to say what has moved."""


def identities(varying: Varying) -> Iterator[tuple[IgnoredPart, str]]:
    """Yield the parts of a record that have identities, and these as text."""
    for part, content in varying:
        if part.kind.has_identity:
            yield part, str(content)


def _number(spots: Counter[Spot], part: Spot) -> int:
    """Return how many records have an identity in a part."""
    return sum(number for spot, number in spots.items() if spot.anywhere == part)


@attrs.frozen
class Untied:
    """A part of records whose identities are not as equal, or as different, as when recorded."""

    spot: Spot
    beside: Spot
    """A part that has the same identity in both runs, or in one; `spot` itself, where it differs
    between records."""
    now: Any
    """The identity in `beside`."""
    records: int
    """So many records have it in `spot` now."""
    recorded_records: int
    """So many had it."""


@attrs.define(eq=False)
class EqualRecords:
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


@attrs.frozen(eq=False)
class UnknownRecord:
    """A record that a client produced, and that is not recorded."""

    topic: Topic
    partition: int
    record: Record
    finding: ClientDifference
    """As it was told first."""


@attrs.define(eq=False)
class ProduceCheck:
    """The recorded records by topic, and whether they have been produced again."""

    loaded: Loaded
    report: Report
    ignored: Ignored = attrs.Factory(Ignored)
    committing: CommittingGroups = attrs.field(factory=CommittingGroups, init=False)
    """The groups that have committed in this run."""
    damaged: dict[str, Record] = attrs.field(factory=dict, init=False)
    """The last batch that was refused for its head in this run, by the name of its topic."""
    _topics: dict[Topic, dict[tuple, EqualRecords]] = attrs.field(factory=dict, init=False)
    _unsettled: dict[Expected, None] = attrs.field(factory=dict, init=False)
    """Records that were produced in transactions which have not been committed, in order."""
    _refused: dict[str, dict[tuple, RefusedBatch]] = attrs.field(factory=dict, init=False)
    """By the name of a topic, and by content."""
    unknown: list[UnknownRecord] = attrs.field(factory=list, init=False)
    """Records of which findings are kept."""
    recorded_identities: dict[str, str] = attrs.field(factory=dict[str, str], init=False)
    """By those of the records that were produced again: what each identity was in the recording."""
    undecoded: list[Other] = attrs.field(init=False)
    """Recorded requests that cannot be decoded, and have not come again."""

    def __attrs_post_init__(self) -> None:
        self.undecoded = list(self.loaded.undecoded)

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
        return missing or bool(self.undecoded or self.missing_groups())

    def match(
        self, topic: Topic, partition: int, record: Record, in_transaction: bool = False
    ) -> Expected | None:
        """Return the first unproduced record equal to this one, marked as produced; or None."""
        content, varying = self.ignored.read(record, topic.name)
        same = self._of(topic).get(content)
        if same is None:
            return None
        outcome = Outcome.ONGOING if in_transaction else Outcome.PLAIN
        found = self._first(same, partition, record, outcome)
        if found is not None:
            found.varying = varying
            of_both = map(identities, (found.varying, found.recorded_varying))
            for (_, identity), (_, recorded) in zip(*of_both, strict=False):
                self.recorded_identities[identity] = recorded
        if found is not None and in_transaction:
            found.outcome = outcome
            self._unsettled[found] = None
        elif found is not None:
            self._settle([found], outcome)
        return found

    def equal_to(self, topic: Topic, record: Record) -> EqualRecords | None:
        """Return the recorded records that are equal to one; None if there is none."""
        return self._of(topic).get(self.ignored.content(record, topic.name))

    def refused(self, topic: Topic, record: Record) -> RefusedBatch | None:
        """Return the recorded batch in which an equal record was refused; None if none was."""
        if not self.loaded.refused_batches:
            return None
        if topic.name not in self._refused:
            self._refused[topic.name] = dict(self._read_refused(topic.name))
        return self._refused[topic.name].get(self.ignored.content(record, topic.name))

    def _read_refused(self, topic: str) -> Iterator[tuple[tuple, RefusedBatch]]:
        reader = self.loaded.cluster.store.reader
        for each in self.loaded.refused_batches:
            if each.topic == topic:
                for batch in pieces(each.data, reader.of_frame(len(each.data))):
                    for record in contents(batch):
                        yield self.ignored.content(record, topic), each

    def is_read(self, topic: Topic) -> bool:
        """Return whether a record was looked up in a topic, so that its records have been read."""
        return topic in self._topics

    def uncommitted(self) -> list[Expected]:
        """Return the records that were produced, but not committed as when recorded, in order."""
        return [each for each in self._unsettled if each.missing]

    def holds(self, topic: Topic, partition: int, record: Record) -> bool:
        """Return whether the recording holds a record, produced again or not."""
        same = self.equal_to(topic, record)
        if same is None or not self.ignored.compares_partition(record, topic.name):
            return same is not None
        return any(each.partition == partition for each in same.expected)

    def _first(
        self, same: EqualRecords, partition: int, record: Record, outcome: Outcome
    ) -> Expected | None:
        """Return the unproduced one of equal records that one with this outcome is taken for."""
        for alike in _CANDIDATES[outcome]:
            found = same.first_unproduced(partition, alike)
            topic = same.expected[0].topic.name
            if found is None and not self.ignored.compares_partition(record, topic):
                found = same.first_unproduced(None, alike)
            if found is not None:
                return found
        return None

    def end(
        self, produced: Iterable[Expected], committed: bool, groups: Iterable[str] = ()
    ) -> list[Expected]:
        """Take the end of the transaction in which records were produced, and in which the offsets
        of these groups were; return the records that have this end. One with another end when it
        was recorded gives way to an equal one."""
        ended = self._settle(produced, Outcome.COMMITTED if committed else Outcome.ABORTED)
        if committed:
            self.committing.in_transactions.update(groups)
            names = frozenset(_in_each_run(groups))
            for each in ended:
                each.groups = names
        return ended

    def _settle(self, produced: Iterable[Expected], outcome: Outcome) -> list[Expected]:
        """See `end`; `outcome` is that of all the records."""
        committed = outcome is not Outcome.ABORTED
        found: list[Expected] = []
        differing: dict[PartitionTransaction | None, Expected] = {}
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
                other.varying = each.varying
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
                if outcome is Outcome.PLAIN:
                    how = f"was {then} when recorded; what it held is committed outside of one now"
                self.report.add("differs", f"{where} {transaction.first_offset} {how}")
        return found

    def repeated(self, frame: bytes | bytearray) -> bytes | None:
        """Take a Produce that may be one that cannot be decoded: the same bytes, but for the
        correlation id. Return its recorded response."""
        for index, each in enumerate(self.undecoded):
            then = each.request_frame
            if then[:8] == frame[:8] and then[12:] == frame[12:]:
                del self.undecoded[index]
                return each.response_frame[:4] + bytes(frame[8:12]) + each.response_frame[8:]
        return None

    def outside(self) -> dict[str, int]:
        """Return how many records were produced in no transaction, although they were in one when
        recorded: the number by the name of the topic."""
        outside: Counter[str] = Counter()
        for topic, by_content in self._judged():
            outside[topic.name] += sum(map(self._outside, by_content.values()))
        return +outside

    def _judged(self) -> Iterator[tuple[Topic, dict[tuple, EqualRecords]]]:
        """Yield the topics in which a record was looked up, and in which not any may be."""
        return (
            (each, by) for each, by in self._topics.items() if not self.ignored.frees(each.name)
        )

    def _outside(self, same: EqualRecords) -> int:
        """Return how many of equal records should have been in a transaction, and were not. Which
        of them is which does not matter: only the number does, of each partition that counts."""
        lacking: Counter[int | None] = Counter()
        for each in same.expected:
            if each.settled:
                partition = each.partition if self._compares_partition(each) else None
                was_in_one = each.recorded_as is RecordedAs.COMMITTED
                lacking[partition] += was_in_one - (each.outcome is not Outcome.PLAIN)
        return (+lacking).total()

    def _compares_partition(self, expected: Expected) -> bool:
        return self.ignored.compares_partition(expected.record, expected.topic.name)

    def without_offsets(self) -> dict[tuple[str, str], int]:
        """Return how many records were committed in a transaction without offsets of the groups
        whose offsets went with them when recorded: the number by topic and groups. Where none of
        these groups has committed in a transaction, that is said already."""
        missing = {*self.missing_groups(), *self.groups_outside()}
        lacking: Counter[tuple[str, str]] = Counter()
        for topic, by_content in self._judged():
            for same in by_content.values():
                groups = {group for each in same.expected for group in each.recorded_groups}
                if not groups <= missing:
                    named = " or ".join(sorted(groups))
                    lacking[topic.name, named] += self._without_offsets(same, groups)
        return +lacking

    def _without_offsets(self, same: EqualRecords, groups: set[str]) -> int:
        """See `without_offsets`. Of a transaction with several groups nobody knows to which of them
        a record belongs, so one of them suffices; of equal records only the number matters."""
        lacking: Counter[int | None] = Counter()
        for each in same.expected:
            if each.settled:
                partition = each.partition if self._compares_partition(each) else None
                lacking[partition] += bool(each.recorded_groups) - bool(each.groups & groups)
        return max(0, (+lacking).total() - self._outside(same))  # these are told, too

    def missing_groups(self) -> list[str]:
        """Return the groups whose offsets have not been committed, in a transaction or outside."""
        missing = _in_each_run(self.loaded.committing.in_transactions)
        return sorted(
            missing - _in_each_run(self.committing.in_transactions) - set(self.groups_outside())
        )

    def groups_outside(self) -> list[str]:
        """Return the groups that have committed in no transaction, and did in none but one when
        recorded."""
        then, now = self.loaded.committing, self.committing
        only_inside = _in_each_run(then.in_transactions) - _in_each_run(then.plainly)
        return sorted(only_inside & _in_each_run(now.plainly))

    def ties(self) -> Iterator[Untied]:
        """Yield the parts whose identities (`kinds`) are not as equal, or as different, as those of
        the recording. Of each identity it only counts where it stands, for equal records may change
        places; one that has moved is compared with the recorded one that shares the most."""
        then, now = self._standing()
        left = Counter(frozenset(each.items()) for each in then.values())
        moved: list[tuple[str, Counter[Spot]]] = []
        for identity, spots in now.items():
            if left[stands := frozenset(spots.items())] > 0:
                left[stands] -= 1
            else:
                moved.append((identity, spots))
        by_spot: dict[Spot, list[Counter[Spot]]] = {}
        for each in then.values():
            if left[stands := frozenset(each.items())] > 0:
                left[stands] = 0
                for spot in each:
                    by_spot.setdefault(spot, []).append(each)
        told: set[Spot] = set()
        for identity, spots in moved[:_MOVED_MAX]:
            near = (each for spot in spots for each in by_spot[spot])
            stood = max(near, key=lambda each: (each & spots).total())
            kept = list(dict.fromkeys(each.anywhere for each in spots if each in stood))
            beside = next((each for each in kept if each not in told), None)
            differing = (each.anywhere for each in (*(stood - spots), *(spots - stood)))
            for each in dict.fromkeys(differing):
                if beside is not None and each not in told:
                    told.add(each)
                    numbers = _number(spots, each), _number(stood, each)
                    yield Untied(each, each if each in kept else beside, identity, *numbers)

    def _standing(self) -> tuple[dict[str, Counter[Spot]], dict[str, Counter[Spot]]]:
        """Return where each identity stood in the recording, and where each one stands now."""
        then: dict[str, Counter[Spot]] = {}
        now: dict[str, Counter[Spot]] = {}
        for topic in filter(self.is_read, self.topics):
            for content, same in self._of(topic).items():
                for each in same.expected:
                    if each.settled and each.demanded:
                        for side, varying in ((then, each.recorded_varying), (now, each.varying)):
                            for part, identity in identities(varying):
                                spot = Spot(topic.name, part, content)
                                side.setdefault(identity, Counter())[spot] += 1
        return then, now

    def _of(self, topic: Topic) -> dict[tuple, EqualRecords]:
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = {}
            for expected in self._read(topic):
                key, expected.recorded_varying = self.ignored.read(expected.record, topic.name)
                found.setdefault(key, EqualRecords()).add(expected)
        return found

    def _read(self, topic: Topic) -> Iterator[Expected]:
        logs = {each.index: each.log for each in topic.all_partitions}
        reader, is_free = self.loaded.cluster.store.reader, self.ignored.frees(topic.name)
        for index, log in sorted(logs.items()):
            for batch, transaction in log.produced():
                unseen = transaction is not None and transaction.unseen
                how = batch.transactional and not unseen
                for record in contents(batch):
                    offset = record.offset
                    yield Expected(topic, index, offset, record, log, transaction, how, is_free)
        for place, (topic_id, index, data) in enumerate(self.loaded.unplaced):
            for batch in pieces(data, reader.of_log(place)) if topic_id == topic.topic_id else ():
                for record in contents(batch):
                    how = batch.transactional
                    yield Expected(topic, index, -1, record, logs[index], None, how, is_free)


def _in_each_run(groups: Iterable[str]) -> set[str]:
    """Return groups by the names that they have in each run."""
    return set(map(without_random_ids, groups))
