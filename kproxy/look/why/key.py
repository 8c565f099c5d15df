"""The story of a record key in a topic: where it was written, who fetched it and committed past it.

::

    Produce ─▶ KeyPlace (partition, offset) ◀─ Fetch
                  └◀─ commits past its offset ◀─ History ─▶ partitions ─▶ partitioners that agree

Invariants: memory is bounded by `_PLACES_MAX`; a partitioner is compared only where the number of
partitions is recorded.
"""

from __future__ import annotations

import binascii
import contextlib
import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from kproxy.exchange import delivered
from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import Filter, matching
from kproxy.exchange.filter.terms import grouped
from kproxy.exchange.partitioners import PARTITIONERS, agreeing, placements
from kproxy.exchange.topic_records import TopicRecord
from kproxy.exchange.words import faults
from kproxy.exchange.words.wording import count, listed
from kproxy.history.events import RELATED_APIS
from kproxy.history.history import History
from kproxy.history.logs import COUNTED, DELETED, TopicState
from kproxy.history.ref import Ref
from kproxy.history.rows import Commit, Deleted, Row
from kproxy.look.lines.stream import Stream
from kproxy.look.why.sentences import NOT_RECORDED, Abridged, at, clock, in_order, named, who
from kproxy.look.why.source import StorySource
from kproxy.units import format_bytes
from kproxy.wire.payloads.meaning import Decoded, Undecoded
from kproxy.wire.payloads.plain import json_text, shown_json

_PLACES_MAX = 10_000
"""Records of the key that are followed."""
_TOLD_MAX = 10
"""Records that have a sentence, at each end."""
_FETCHES_MAX = 4
_KEY_SHOWN = 200
"""Characters of a decoded key."""
_PLACED_MAX = 20
"""Clients with a partition whose writes are counted apart."""
_PLACED_TOLD = 12
"""Clients and partitions that have a sentence."""

Position = tuple[int, int, int]
"""How often the topic was deleted before, partition, and offset."""


@attrs.define(eq=False)
class KeyPlace:
    """A record with the key."""

    time_ns: int
    written: str = ""
    """Who wrote it; empty where that is not recorded."""
    fetches: list[str] = attrs.Factory(list)
    fetch_count: int = 0
    commits: dict[str, str] = attrs.Factory(dict)
    """Group → a commit past the record, the first since the record is known."""
    aborted_by: str = ""
    """The first Fetch that tells that its transaction was aborted."""


@attrs.define(eq=False)
class _KeyStory:
    topic: str
    typed: str
    key: bytes
    """The bytes of the key; once a record has the typed text as its decoded key, those of it."""
    meaning: Decoded | Undecoded | None = None
    """What the key means by its schema."""
    found: bool = False
    history: History = attrs.Factory(History)
    places: dict[Position, KeyPlace] = attrs.Factory(dict)
    more_places: bool = False
    outcomes: Abridged = attrs.Factory(lambda: Abridged("write without an offset"))
    """Writes that got no offset."""
    placed: Counter[tuple[str, int, int]] = attrs.Factory(Counter)
    """Client, partition and number of partitions at that time → writes."""
    unreadable: str = ""
    """The first records of the topic that cannot be read, with their exchange."""
    unreadable_count: int = 0
    _ahead: dict[tuple[str, int], list[int]] = attrs.field(factory=dict, init=False)
    """Group and partition → heap of the offsets of records that it has not committed past."""
    _latest: dict[tuple[str, int], Commit] = attrs.field(factory=dict, init=False)

    @property
    def of(self) -> TopicState:
        """The topic, as far as it is known by now."""
        return self.history.logs.topics.get(self.topic, TopicState(self.topic))

    def has(self, record: TopicRecord) -> bool:
        """Return whether a record has the key: its bytes, or, as long as none has, the typed text
        as what they mean."""
        if record.topic != self.topic or record.key is None:
            return False
        if not self.found:
            meaning = record.meaning("key")
            if record.key == self.key or self.typed == _decoded_text(meaning):
                self.key, self.meaning, self.found = record.key, meaning, True
        return record.key == self.key

    def place(self, record: TopicRecord, time_ns: int) -> KeyPlace | None:
        """Return the place of a record, added if new; None if there are too many."""
        offset = record.offset or 0
        position = self.of.deletions, record.partition, offset
        found = self.places.get(position)
        if found is None:
            if len(self.places) >= _PLACES_MAX:
                self.more_places = True
                return None
            found = self.places[position] = KeyPlace(time_ns)
            for (group, partition), latest in self._latest.items():
                if partition != record.partition:
                    continue
                if latest.offset > offset:
                    found.commits[group] = _commit_text(latest)
                else:
                    heapq.heappush(self._ahead[group, partition], offset)
        return found

    def note_unreadable(self, exchange: Exchange) -> None:
        """Count what cannot be read of the topic's records in an exchange."""
        for each in exchange.records.unreadable:
            if each.topic == self.topic:
                self.unreadable = self.unreadable or f"{each.text} in {named(exchange)}"
                self.unreadable_count += 1

    def put(self, client: str, partition: int) -> None:
        """Count a write of a client to a partition."""
        key = client, partition, self.of.partitions
        is_kept = key in self.placed or len(self.placed) < _PLACED_MAX
        self.placed[key if is_kept else ("others", *key[1:])] += 1

    def commit(self, commit: Commit) -> None:
        """Take a commit of the topic."""
        partition, deletions = commit.where.partition, self.of.deletions
        if not commit.certain:
            for (*at, offset), found in self.places.items():
                if at == [deletions, partition] and offset < commit.offset:
                    found.commits.setdefault(commit.group, _commit_text(commit))
            return
        key = commit.group, partition
        if key not in self._ahead:
            self._ahead[key] = sorted(
                offset for *at, offset in self.places if at == [deletions, partition]
            )
        self._latest[key] = commit
        ahead = self._ahead[key]
        while ahead and ahead[0] < commit.offset:
            found = self.places[deletions, partition, heapq.heappop(ahead)]
            found.commits[commit.group] = _commit_text(commit)

    def delete(self) -> None:
        """Take the deletion of the topic: its offsets begin again."""
        self._ahead.clear()
        self._latest.clear()


def key_story(source: StorySource, topic: str, value: str) -> Iterator[str]:
    """Yield the story of a key in a topic."""
    story = _KeyStory(topic, value, key_bytes(value))
    apis = matching("api", *RELATED_APIS).node
    wanted = Filter(grouped([matching("topic", topic).node, apis], one=True))
    for item in source.read(wanted):
        taken = story.history.add(item)
        if isinstance(item, Exchange) and taken is not None:
            _add(story, item, taken.rows)
    if story.places or story.outcomes.timed():
        yield from _lines(story, value)
    elif story.unreadable_count:
        yield f"No record of {topic} that can be read has key {value}."
    if story.unreadable_count:
        more = story.unreadable_count - 1
        others = f", and {count(more, 'more time')}" if more else ""
        yield f"It may be in what cannot be read: {story.unreadable}{others}."


def keys_of(paths: Sequence[Path | str], topic: str) -> Iterator[str]:
    """Yield the keys of records in a topic that recordings have, as text."""
    for exchange in Stream(paths, matching("topic", topic)).exchanges():
        for record in exchange.records:
            if record.topic == topic and record.key is not None:
                yield _decoded_text(record.meaning("key")) or key_text(record.key)


def key_text(key: bytes) -> str:
    """Return a key as text: that of UTF-8, or `0x…`, also where a text would be read as bytes.
    `key_bytes` gives the key back."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return f"0x{key.hex()}"
    reads_back = text.isprintable() and key_bytes(text) == key
    return text if reads_back else f"0x{key.hex()}"


def _decoded_text(meaning: Decoded | Undecoded | None) -> str | None:
    """Return a decoded key as people type it: a text as it is, all else as JSON."""
    if not isinstance(meaning, Decoded):
        return None
    return meaning.value if isinstance(meaning.value, str) else json_text(meaning.value)


def key_bytes(typed: str) -> bytes:
    """Return the key that a typed text stands for: the bytes of `0x…`, or its UTF-8."""
    if typed.startswith("0x"):
        with contextlib.suppress(ValueError):
            return binascii.unhexlify(typed[2:])
    return typed.encode("utf-8", "surrogateescape")


def _add(story: _KeyStory, exchange: Exchange, rows: Sequence[Row]) -> None:
    match exchange.api:
        case "Produce":
            _written(story, exchange)
        case "Fetch":
            _fetched(story, exchange)
        case _:
            pass
    for row in rows:
        match row:
            case Commit(where=where) if where.topic == story.topic:
                story.commit(row)
            case Deleted(group=None, topic=story.topic):
                story.delete()
            case _:
                pass


def _written(story: _KeyStory, exchange: Exchange) -> None:
    refused = delivered.refused(exchange)
    may_be_there = delivered.may_have_written(exchange)
    story.note_unreadable(exchange)
    for record in exchange.records:
        if not record.produced or not story.has(record):
            continue
        where = f"{story.topic}[{record.partition}]"
        told = f"{named(exchange)} of {who(exchange)}"
        if may_be_there and (record.topic, record.partition) not in refused:
            story.put(who(exchange), record.partition)
        if record.offset is not None:
            place = story.place(record, exchange.time_ns)
            if place is not None and not place.written:
                transaction = getattr(exchange.request, "transactional_id", None)
                inside = f", in transaction {transaction}" if transaction else ""
                place.written = f"{told} writes it ({_size(record)}{inside})"
                place.time_ns = exchange.time_ns
            continue
        if (record.topic, record.partition) in refused:
            by = " by kproxy" if exchange.injected else ""
            outcome = f"was refused{by} ({listed(exchange.errors)})"
        elif by_rule := faults.silence(exchange):
            outcome = f"was {by_rule}" if delivered.kept(exchange) else f"got no answer: {by_rule}"
        elif exchange.one_way:
            outcome = "wanted no answer (acks=0), so its offset is not known"
        else:
            outcome = "got no answer, so whether it was written is not in the recording"
        story.outcomes.say(exchange.time_ns, f"{told} to {where} {outcome}.")


def _size(record: TopicRecord) -> str:
    return "a tombstone" if record.value is None else format_bytes(len(record.value))


def _fetched(story: _KeyStory, exchange: Exchange) -> None:
    story.note_unreadable(exchange)
    for record in delivered.fetched_by(exchange):
        if not story.has(record):
            continue
        place = story.place(record, exchange.time_ns)
        if place is None:
            continue
        place.fetch_count += 1
        if record.aborted and not place.aborted_by:
            place.aborted_by = named(exchange)
        if len(place.fetches) < _FETCHES_MAX:
            where = TopicPartition(record.topic, record.partition)
            owner = story.history.groups.reader(Ref.of(exchange).client, where)
            inside = f" of group {owner.group}" if owner is not None else ""
            place.fetches.append(
                f"{who(exchange)}{inside} at {clock(exchange.completed_ns)} ({named(exchange)})"
            )


def _commit_text(commit: Commit) -> str:
    verb = "committed" if commit.certain else "may have committed"
    unknown = "" if commit.certain else f", whose answer {NOT_RECORDED}"
    return f"{verb} {commit.offset} at {at(commit.by)} ({named(commit.by)}{unknown})"


def _lines(story: _KeyStory, value: str) -> Iterator[str]:
    topic = story.topic
    partitions = Counter(partition for _, partition, _ in story.places)
    where = [f"{topic}[{each}] {count(n, 'record')}" for each, n in sorted(partitions.items())]
    least = " at least" if story.more_places else ""
    found = listed(where, 6) or "no record of it has a known offset"
    yield f"Key {value}{_meaning(story)}:{least} {found}."
    latest = story.of.counts.latest
    if latest is not None and latest.value:
        yield f"{topic} has {count(latest.value, 'partition')} ({named(latest.first)})."
    else:
        yield f"The number of partitions of {topic} {NOT_RECORDED}."
    if changes := [*_changes(story.of)]:
        yield f"{topic} was changed: {listed(changes, 6)}."
    elif len(partitions) > 1:
        yield (
            f"It is on {len(partitions)} partitions: Kafka keeps the order of records only within"
            " one."
        )
    yield from _partitioners(story)
    if len(story.placed) > _PLACED_TOLD:
        more = count(len(story.placed) - _PLACED_TOLD, "more pair")
        yield f"{more} of a client and a partition are left out."
    told = Abridged("record", _TOLD_MAX)
    for (_, partition, offset), place in story.places.items():
        told.say(place.time_ns, _place(f"{topic}[{partition}]@{offset}", place))
    yield from in_order(told, story.outcomes)


def _changes(topic: TopicState) -> Iterator[str]:
    """Yield what changed in the places of keys."""
    for each in topic.changes:
        if each.what == DELETED:
            yield f"deleted by {named(each.ref)} of {at(each.ref)}"
        elif each.what == COUNTED:
            was = f"{each.was} to {each.now} partitions"
            yield f"{was} by {named(each.ref)} of {at(each.ref)}"


def _meaning(story: _KeyStory) -> str:
    match story.meaning:
        case Decoded(key, by):
            return f" ({shown_json(key, chars_max=_KEY_SHOWN)}, {by})"
        case Undecoded(why):
            return f" ({why})"
        case None:
            return ""


def _place(name: str, place: KeyPlace) -> str:
    text = place.written or f"who wrote it {NOT_RECORDED}"
    if place.fetches:
        more = place.fetch_count - len(place.fetches)
        again = f" and {more} more" if more else ""
        text += f"; fetched by {', '.join(place.fetches)}{again}"
    else:
        text += f"; a Fetch of it {NOT_RECORDED}"
    if place.aborted_by:
        text += (
            f"; its transaction was aborted ({place.aborted_by}), so consumers with"
            " isolation.level=read_committed skip it"
        )
    if place.commits:
        found = [f"group {group} {by}" for group, by in place.commits.items()]
        text += f"; {listed(found)}"
    else:
        text += f"; a commit past it {NOT_RECORDED}"
    return f"{name}: {text}."


def _partitioners(story: _KeyStory) -> Iterator[str]:
    """Yield which partitioners give the key to the partitions that clients sent it to."""
    for (client, partition, partition_count), times in list(story.placed.items())[:_PLACED_TOLD]:
        sent = f"{client} sent it to {story.topic}[{partition}]"
        sent += f" {times} times" if times > 1 else ""
        if not partition_count:
            yield f"{sent}; how many partitions there were then {NOT_RECORDED}."
            continue
        if partition_count == 1 or not story.key:
            yield f"{sent}."
            continue
        agree = agreeing(story.key, partition, partition_count)
        found = placements(story.key, partition_count)
        others = [f"{name} gives {n}" for name, n in found.items() if name not in agree]
        if agree:
            do = "does" if len(agree) == 1 else "do"
            said = " and ".join(f"{name} ({PARTITIONERS[name][1]})" for name in agree)
            yield (
                "; ".join(
                    [f"{sent}, as {said} {do} with {partition_count} partitions", *others[:1]]
                )
                + "".join(f", {each}" for each in others[1:])
                + "."
            )
        else:
            known = f"does that with {partition_count} partitions ({', '.join(others)})"
            yield f"{sent}: no partitioner that kproxy knows {known}."
