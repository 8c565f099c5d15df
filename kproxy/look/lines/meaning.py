"""The meaning of a recording: text that is the same for the same behaviour, for `git diff`.

::

    Exchange … ─▶ RecordingMeaning ─┬─ topics: who produces which records, who consumes
                           ├─ groups: what they subscribe to, how far they commit
                           ├─ transactions, and how they end
                           ├─ requests of admins, and their responses
                           └─ errors, faults                              ─▶ lines

Left out is what changes from run to run: times, ports, ids, epochs, offsets as numbers, versions,
batches, polls, retries that succeed, the order between partitions, the partition of a record
without a key; and what the recording's own settings ignore.

Invariant: two runs in which clients do the same on equal topics give the same lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import attrs

from kproxy import recording
from kproxy.exchange.entries import EVENTS, Note
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.routine import depends_on_timing
from kproxy.exchange.topic_records import TopicRecord
from kproxy.exchange.varying import Purpose, purpose
from kproxy.exchange.words.wording import count
from kproxy.history.behaviour import Behaviour, GroupUse, TopicUse
from kproxy.history.items import Item, with_gaps
from kproxy.history.transactions import OPEN
from kproxy.look.lines import meaning_text
from kproxy.printable import printable
from kproxy.recording.file import RecordingFile
from kproxy.recording.paths import by_recording
from kproxy.replay.facts import (
    Fact,
    client_text,
    clients_text,
    end_text,
    is_any_partition,
    positions,
    without_random_ids,
    without_repeats,
)
from kproxy.replay.ignore_words import with_words
from kproxy.replay.ignored import Ignored
from kproxy.replay.learned import EVENT as LEARNED
from kproxy.replay.learned import Learned, learned_of, own_words

_ByClient = dict[str, set[tuple[str, str]]]
"""Client → APIs, and texts on their requests."""


@attrs.define(eq=False)
class RecordingMeaning:
    """Collects the behaviour that exchanges show; `lines` returns it as text."""

    ignored: Ignored = attrs.Factory(Ignored)
    behaviour: Behaviour = attrs.Factory(Behaviour)
    _requests: _ByClient = attrs.field(factory=dict, init=False)
    _errors: _ByClient = attrs.field(factory=dict, init=False)
    _faults: set[str] = attrs.field(factory=set[str], init=False)

    def add(self, item: Item) -> None:
        """Take the next item of a recording."""
        self.behaviour.add(item)
        if isinstance(item, Exchange):
            self._add(item)

    def _add(self, exchange: Exchange) -> None:
        client = client_text(exchange.client_id)
        self._faults.update(exchange.faults)
        for error in exchange.errors if not exchange.routine else ():
            if not depends_on_timing(exchange.api, error):
                self._errors.setdefault(client, set()).add((exchange.api or "?", error))
        if purpose(exchange.api) is Purpose.ADMIN:
            asked = exchange.api or "unknown API", meaning_text.request(exchange)
            self._requests.setdefault(client, set()).add(asked)

    def facts(self, aspect: str) -> Iterator[Fact]:
        """Yield the facts of an aspect that are not of single records, groups or transactions."""
        match aspect:
            case "topics":
                for name, topic in self.behaviour.topics.items():
                    if topic.sample is not None and topic.partition_count:
                        yield Fact(f"topic {name}", "", _partitions(topic))
                    if topic.consumers:
                        yield Fact(f"topic {name}, consumers", "", clients_text(topic.consumers))
            case "requests":
                yield from _facts(self._requests)
            case "errors":
                yield from _facts(self._errors)
            case "faults":
                yield from (Fact("fault rules", one, one) for one in sorted(self._faults))
            case _:
                raise ValueError(aspect)

    # ---- text

    def lines(self) -> Iterator[str]:
        """Yield the text, line by line."""
        for name, topic in sorted(self.behaviour.topics.items()):
            yield from self._topic_lines(name, topic)
        for name, group in sorted(self.behaviour.groups.items()):
            yield from self._group_lines(name, group)
        for name, begun in sorted(self.behaviour.transactions.items()):
            ended = without_repeats(end for each in begun if (end := end_text(each)) != OPEN)
            if ended:
                yield f"transactions of {without_random_ids(name)}: {', '.join(ended)}"
        for client, requests in sorted(self._requests.items()):
            yield f"{client} requests"
            yield from (f"  {api} {text}" for api, text in sorted(requests))
        for client, errors in sorted(self._errors.items()):
            yield f"{client} gets errors"
            yield from (f"  {api}: {text}" for api, text in sorted(errors))
        yield from (f"fault {name}" for name in sorted(self._faults))

    def _topic_lines(self, name: str, topic: TopicUse) -> Iterator[str]:
        subscribed = any(name in group.topics for group in self.behaviour.groups.values())
        if not (topic.produced or topic.fetched or subscribed):
            return  # only Metadata names it, and that names all topics of the cluster
        yield ", ".join([f"topic {name}", *filter(None, [_partitions(topic)])])
        by_client: dict[str, list[TopicRecord]] = {}
        for each in topic.produced:
            by_client.setdefault(client_text(each.client), []).append(each.record)
        for client, records in sorted(by_client.items()):
            yield f"  {client} produces"
            yield from self._record_lines(topic, records)
        if there := topic.found_before():
            yield "  there before"
            yield from self._record_lines(topic, there)
        for client in sorted(set(map(client_text, topic.consumers))):
            yield f"  {client} consumes"

    def _record_lines(self, topic: TopicUse, records: Iterable[TopicRecord]) -> Iterator[str]:
        """Yield the records of each partition in order; those of any partition sorted by text."""
        placed: list[tuple[int, int, str]] = []
        anywhere: list[str] = []
        for number, record in enumerate(records):
            if self.ignored.frees(record.topic):
                continue
            text = meaning_text.record(record, self.ignored)
            if is_any_partition(topic, record, self.ignored):
                anywhere.append(text)
            else:
                order = number if record.offset is None else record.offset
                placed.append((record.partition, order, text))
        yield from (f"    [{partition}] {text}" for partition, _, text in sorted(placed))
        yield from (f"    [any] {text}" for text in sorted(anywhere))

    def _group_lines(self, name: str, group: GroupUse) -> Iterator[str]:
        found = list(positions(self.behaviour, group, self.ignored))
        if not (found or group.clients):
            return  # it has committed where nothing was read, as consumers do by chance
        members = f" of {clients_text(group.clients)}" if group.clients else ""
        yield f"group {without_random_ids(name)}, {group.kind}{members}"
        if group.topics:
            yield f"  subscribes to {', '.join(sorted(group.topics))}"
        for where, before, _ in found:
            yield f"  commits {where} after {count(before, 'record')}"


def learned_in(path: Path) -> Learned:
    """Return what a recording says that varies (`replay.learned`), which stands at its end.

    Raises: RecordingError; OSError.
    """
    with RecordingFile(path) as file:
        found = [*map(learned_of, file.events(LEARNED))]
    return found[-1] or Learned() if found else Learned()


def _partitions(topic: TopicUse) -> str:
    return count(topic.partition_count, "partition") if topic.partition_count else ""


def _facts(by_client: _ByClient) -> Iterator[Fact]:
    for client, texts in by_client.items():
        for api, text in sorted(texts):
            yield Fact(f"client {client}, {api}", (api, text), text)


def lines(paths: Sequence[Path], ignored: Ignored | None = None) -> Iterator[str]:
    """Yield the meaning of recordings, one after the other. Without `ignored`, each recording's own
    settings say what to leave out.

    Raises:
        RecordingError: a path is not there, no recording, or damaged.
    """
    for number, each in enumerate(by_recording(paths)):
        if number:
            yield ""
        yield from _lines(each.paths, ignored)


def _lines(files: Sequence[Path], ignored: Ignored | None) -> Iterator[str]:
    meaning = RecordingMeaning(Ignored() if ignored is None else ignored)
    incomplete: list[str] = []
    own: list[str] = []
    words: list[str] = []

    def on_note(note: Note) -> None:
        own.extend(own_words(note))
        if (found := learned_of(note)) is not None:
            words[:] = found.words
        if note.channel == EVENTS and note.body.get("event") in ("torn", "lost", "unread"):
            incomplete.append(f"incomplete: {note.body.get('what') or note.body.get('reason')}")

    for item in with_gaps(lambda told: recording.read(files, told=told), on_note):
        meaning.add(item)
    if ignored is None:
        meaning.ignored = with_words(Ignored(), [*own, *words], incomplete.append)
    for line in (*(f"varies {word}" for word in words), *meaning.lines(), *incomplete):
        yield printable(line)
