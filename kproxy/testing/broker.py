"""What a test has of kproxy: where to connect, what passed, what to break.

::

    Broker ─┬─ bootstrap                      for the client under test
            ├─ produced · consumed · exchanges   what passed so far
            └─ fault                             a rule for the time of a block

The same in front of a recording and in front of real brokers: kproxy stands between the client and
either of them, in a thread of its own (`host`). Every call is safe from any thread, blocks for
moments only, and sees all that the client has seen.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from kproxy.control import Fault
from kproxy.exchange import delivered
from kproxy.exchange.entries import Entry, Note
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import parse
from kproxy.exchange.topic_records import TopicRecord
from kproxy.proxy.faults import Rules, plain, rules_note
from kproxy.recording.delays import broker_delays
from kproxy.testing.host import Host
from kproxy.testing.observed import Observed


@attrs.define(eq=False)
class Watcher:
    """Looks on in the thread of the proxy: `serve.Observer`."""

    seen: Observed = attrs.Factory(Observed)
    note: Callable[[Note], None] = lambda note: None
    """Puts a note into the recording."""
    first_notes: list[Note] = attrs.Factory(list)
    start_ns: int = 0
    """When the recording began; of a replay, when the proxy in front of it did."""

    def began(self, start_ns: int, note: Callable[[Note], None]) -> None:
        """Recording begins."""
        self.start_ns, self.note = start_ns, note
        for each in self.first_notes:
            note(each)

    def take(self, entries: list[Entry]) -> None:
        """These have passed."""
        self.seen.take(entries)


def fault_rules() -> Rules:
    """No rules yet; a seed that is always the same, for tests that are."""
    return Rules(seed=1, read_delays=broker_delays)


@attrs.define(eq=False, repr=False)
class Broker:
    """A broker for a test: a recording, or real ones behind kproxy."""

    bootstrap: str
    """HOST:PORT to give to the client under test."""
    mode: str
    """"replay", "record", "verify" or "live"."""
    path: Path | None
    """The recording that is replayed or written; None where there is none."""
    _host: Host[str] = attrs.field(alias="host")
    _watcher: Watcher = attrs.field(alias="watcher")
    _rules: Rules = attrs.field(alias="rules")

    def __repr__(self) -> str:
        return f"<Broker {self.mode} {self.path or ''} at {self.bootstrap}>"

    def exchanges(self, wanted: str | None = None) -> list[Exchange]:
        """The exchanges so far, in the order in which they were completed; with a filter, as
        `kproxy show` has it, those that it means. Its times like `+30s` count from the start of the
        recording, also where none is written.

        Raises:
            FilterError: `wanted` is no filter.
        """
        found = self._host.call(self._watcher.seen.exchanges)
        if wanted is None:
            return found
        chosen = parse(wanted).starting(self._watcher.start_ns)
        return [each for each in found if chosen.matches(each)]

    def produced(self, topic: str | None = None) -> list[TopicRecord]:
        """The records that clients have produced, of one topic or of all."""
        return list(delivered.produced(self.exchanges(), topic))

    def consumed(self, topic: str | None = None) -> list[TopicRecord]:
        """The records that clients were sent to be consumed, of one topic or of all."""
        return list(delivered.consumed(self.exchanges(), topic))

    @contextlib.contextmanager
    def fault(self, rule: Mapping[str, Any] | None = None, **words: Any) -> Iterator[Fault]:
        """Break something for the time of a block, in the words of a [[fault]] table; afterwards
        `matched` and `fired` say what it has done.

        Raises:
            RuleError: there can be no such rule.
        """
        added = {**(rule or {}), **words}
        fault = self._host.call(lambda: self._add(added))
        try:
            yield fault
        finally:
            last = self._host.call(lambda: self._remove(fault.fault_id))
            fault.matched, fault.fired = last.matched, last.fired

    def _add(self, words: dict[str, Any]) -> Fault:
        now = time.time_ns()
        active = self._rules.add(words, now)
        self._watcher.note(rules_note(self._rules, now))
        return Fault(**plain(active))

    def _remove(self, fault_id: int) -> Fault:
        last = Fault(**plain(self._rules.find(fault_id)))
        self._rules.remove(fault_id)
        self._watcher.note(rules_note(self._rules, time.time_ns()))
        return last
