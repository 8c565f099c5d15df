"""The broker of a test: the address, the traffic so far, and faults.

::

    Broker ─┬─ bootstrap                      for the client under test
            ├─ produced · consumed · exchanges   the traffic so far
            └─ fault                             a rule for the time of a block

It is the same in front of a recording and in front of real brokers: kproxy stands between the
client and either of them, in another thread (`host`). Every call is safe from any thread,
blocks only briefly, and sees all that the client has seen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from kproxy.control import Fault
from kproxy.exchange import delivered, entries
from kproxy.exchange.body_facts import Records
from kproxy.exchange.entries import Entry, Note
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import Need, parse
from kproxy.exchange.leaving import Leaving
from kproxy.exchange.pairing import Pairing
from kproxy.exchange.topic_records import TopicRecord
from kproxy.exchange.words.wording import count
from kproxy.history import producers
from kproxy.net.clock import Clock
from kproxy.net.host import Host
from kproxy.proxy.faults import Rules, plain, rules_note
from kproxy.recording.delays import broker_delays
from kproxy.replay.stored_batch import NO_BATCH, pieces
from kproxy.replay.unreadable import damage_of
from kproxy.wire.payloads.schemas import Schemas


@attrs.define(eq=False)
class Watcher:
    """A `serve.Observer` that pairs the entries of the run when `exchanges` is asked.

    Traffic that a test does not look at only takes memory.
    """

    schemas: Schemas = attrs.field(factory=Schemas)
    """Those of its records."""
    note: Callable[[Note], None] = lambda note: None
    """Writes a note into the recording."""
    clock: Clock = attrs.Factory(Clock)
    """The clock of what is seen, and of rules."""
    first_notes: list[Note] = attrs.Factory(list)
    start_ns: int = 0
    """Start of the recording; in a replay, start of the proxy in front of it."""
    entries: list[Entry] = attrs.field(factory=list, init=False)
    """All that has passed."""
    _paired: int = attrs.field(default=0, init=False)
    """How many of them are paired."""
    _leaving: Leaving = attrs.field(factory=Leaving, init=False)
    _cut_off: set[int] = attrs.field(factory=set, init=False)
    """Numbers of the exchanges whose response a fault rule cut off: only a note says so."""
    _pairing: Pairing = attrs.field(
        default=attrs.Factory(lambda self: Pairing(schemas=self.schemas), True), init=False
    )
    _exchanges: list[Exchange] = attrs.field(factory=list, init=False)

    def began(self, start_ns: int, note: Callable[[Note], None], clock: Clock) -> None:
        """Take the start of the recording, and write the first notes."""
        self.start_ns, self.note, self.clock = start_ns, note, clock
        for each in self.first_notes:
            note(each)

    def take(self, entries: Sequence[Entry]) -> None:
        """Take entries that have passed."""
        self.entries += entries

    def exchanges(self) -> list[Exchange]:
        """Return all exchanges so far, in the order in which they were completed."""
        taken, self._paired = self.entries[self._paired :], len(self.entries)
        for entry in entries.each_frame(self._leaving.take(taken)):
            if isinstance(entry, Note) and entry.body.get("action") == "truncate":
                self._cut_off.add(entry.body["number"])
            for exchange in self._pairing.feed(entry):
                row = self.clock.wall_row(exchange.row)
                same = row is exchange.row
                self._exchanges.append(exchange if same else attrs.evolve(exchange, row=row))
        return list(self._exchanges)

    def whole_exchanges(self) -> list[Exchange]:
        """Return all exchanges so far but those whose response was cut off."""
        return [each for each in self.exchanges() if each.number not in self._cut_off]


def fault_rules() -> Rules:
    """Return an empty set of rules, with a fixed seed for repeatable tests."""
    return Rules(seed=1, read_delays=broker_delays)


@attrs.define(eq=False, repr=False)
class Broker:
    """A broker for a test: a recording, or real ones behind kproxy."""

    bootstrap: str
    """HOST:PORT for the client under test."""
    mode: str
    """"replay", "record", "verify" or "live"."""
    path: Path | None
    """The recording that is replayed or written; None if there is none."""
    _host: Host[str] = attrs.field(alias="host")
    _watcher: Watcher = attrs.field(alias="watcher")
    _rules: Rules = attrs.field(alias="rules")

    def __repr__(self) -> str:
        return f"<Broker {self.mode} {self.path or ''} at {self.bootstrap}>"

    def exchanges(self, wanted: str | None = None) -> list[Exchange]:
        """Return the exchanges so far, in the order in which they were completed; with a filter of
        `kproxy show`, those that match it. Its times like `+30s` count from the start of the
        recording, also if none is written.

        Raises:
            FilterError: `wanted` is no filter.
        """
        found = self._host.call(self._watcher.exchanges)
        if wanted is None:
            return found
        chosen = parse(wanted).starting(self._watcher.start_ns)
        chosen.refuse_beyond(list(Need), "a running broker")
        return [each for each in found if chosen.matches(each)]

    def produced(self, topic: str | None = None) -> list[TopicRecord]:
        """Return the records that clients have produced, of one topic or of all.

        Raises:
            ValueError: a broker took what kproxy cannot read.
        """
        exchanges = self.exchanges()
        _refuse_unreadable(filter(delivered.may_have_written, exchanges), topic)
        return list(producers.produced(exchanges, topic))

    def consumed(self, topic: str | None = None) -> list[TopicRecord]:
        """Return the records that consumers got, of one topic or of all.

        Raises:
            ValueError: a consumer got what kproxy cannot read.
        """
        exchanges = self._host.call(self._watcher.whole_exchanges)
        _refuse_unreadable((each for each in exchanges if each.api == "Fetch"), topic)
        return list(delivered.consumed(exchanges, topic))

    @contextlib.contextmanager
    def fault(self, rule: Mapping[str, Any] | None = None, **words: Any) -> Iterator[Fault]:
        """Add a fault rule, written like a [[fault]] table, for the time of a block; `matched` and
        `fired` of the fault count what the rule has done so far, and afterwards in all.

        Raises:
            RuleError: the rule is invalid.
        """
        added = {**(rule or {}), **words}
        fault = self._host.call(lambda: self._add(added))
        which = fault.fault_id
        with fault.in_force(
            lambda: self._host.call(lambda: self._fault(which)),
            lambda: self._host.call(lambda: self._remove(which)),
        ):
            yield fault

    def _add(self, words: dict[str, Any]) -> Fault:
        now = self._watcher.clock()
        active = self._rules.add(words, now)
        self._watcher.note(rules_note(self._rules, now))
        return Fault(**plain(active))

    def _fault(self, fault_id: int) -> Fault:
        return Fault(**plain(self._rules.find(fault_id)))

    def _remove(self, fault_id: int) -> Fault:
        last = self._fault(fault_id)
        self._rules.remove(fault_id)
        self._watcher.note(rules_note(self._rules, self._watcher.clock()))
        return last


def _refuse_unreadable(exchanges: Iterable[Exchange], topic: str | None) -> None:
    for exchange in exchanges:
        what = "a body that cannot be decoded" if exchange.opaque else ""
        refused = delivered.refused(exchange)
        for each in exchange.facts.records:
            if topic in (None, each.topic) and each.where not in refused:
                what = what or _unreadable(each)
        if what:
            where = f"{exchange.api} {exchange.name} has {what}"
            raise ValueError(f"{where}: exchanges() has its bytes")


def _unreadable(found: Records) -> str:
    """Return the first batch of a partition that cannot be read, in words; "" if there is none."""
    for batch in pieces(found.data):
        is_cut_off = batch.magic == NO_BATCH and not found.produced  # by the broker
        if not is_cut_off and (damage := damage_of(batch)):
            where = f"{found.topic}[{found.partition}]"
            return f"{count(len(batch.raw), 'byte')} for {where} that cannot be read ({damage})"
    return ""
