"""Start and stop the broker of a test: a recording as the broker, or a proxy before real ones.

::

    client ─▶ kproxy = replaying broker ─▶ findings: the client's differences      ReplaySession
    client ─▶ kproxy ─▶ real brokers                                               RecordingSession
                 └─▶ a recording

`Session` makes either a context manager, for `with` and for `async with` (trio and asyncio): both
do the same, but the latter does not block the event loop.

Resource handling: on leaving, every connection and listener is closed, whatever happened in
the block.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import attrs
import trio

from kproxy import recording
from kproxy.addresses import parse_brokers
from kproxy.exchange import notes
from kproxy.exchange.entries import Note
from kproxy.history.behaviour import Behaviour
from kproxy.history.items import with_gaps
from kproxy.levels import Level, Logger, silent
from kproxy.net import serve
from kproxy.net.host import Host
from kproxy.net.recorder import write_to
from kproxy.net.tls.settings import BrokerTls, TlsError
from kproxy.proxy.settings import Settings
from kproxy.recording import RecordingError
from kproxy.recording.file import RecordingFile
from kproxy.recording.paths import recordings, size_of
from kproxy.recording.reader import warn
from kproxy.replay import index_file
from kproxy.replay.broker import ReplayBroker
from kproxy.replay.compared import RECORDS, STRICT_SUMMARY, Compared, differences
from kproxy.replay.opening import INDEXED_BYTES_MIN, Wanted, open_broker
from kproxy.replay.produced_report import ADVICE, report_unproduced
from kproxy.replay.report import ClientDifference, Report, varying_text
from kproxy.replay.ruled import RuledBroker
from kproxy.replay.settings import Mode, ReplaySettings
from kproxy.testing.broker import Broker, Watcher, fault_rules
from kproxy.wire.payloads import own
from kproxy.wire.payloads.schemas import Schemas

HOST = "127.0.0.1"
_SETTLE_SECONDS = 1.0
"""Time to wait at the end for records that a client has not sent yet."""
_DRAIN_SECONDS = 0.5
_POLL_SECONDS = 0.01
_FINDINGS_SHOWN = 20

Result = TypeVar("Result")


class Mismatch(AssertionError):
    """The client differs from the recording; the text says how, and what to do."""


@attrs.define(eq=False)
class Session:
    """Context manager of a broker: from `begin` to `end`, which is called with True if the block
    raised nothing."""

    begin: Callable[[], Broker]
    end: Callable[[bool], None]
    how: Replay | None = None
    """The options of a replay."""

    def __enter__(self) -> Broker:
        return self.begin()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.end(error is None)

    async def __aenter__(self) -> Broker:
        return await _in_thread(self.begin, partial(self.end, False))

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await _in_thread(partial(self.end, error is None))


async def _in_thread(
    function: Callable[[], Result], undo: Callable[[], object] | None = None
) -> Result:
    """Call a blocking function from trio or asyncio; if the task is cancelled, all is closed."""
    if not trio.lowlevel.in_trio_run():
        return await _in_asyncio_thread(function, undo)
    found: list[Result] = []
    with trio.CancelScope(shield=True):
        found.append(await trio.to_thread.run_sync(function))
    return found[0]


async def _in_asyncio_thread(
    function: Callable[[], Result], undo: Callable[[], object] | None
) -> Result:
    """Call a blocking function; a task that is cancelled meanwhile waits for it, and undoes it."""
    import asyncio  # here, with a twentieth of all that a process without it imports

    # A future, for a task would be cancelled with all others when the loop ends.
    work = asyncio.get_running_loop().run_in_executor(None, function)
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return work.result()
    if work.exception() is None and undo is not None:
        await _in_asyncio_thread(undo, None)
    raise cancelled


# ---- kproxy in front of a broker


def _template() -> serve.Options:
    """Return the options of a proxy for one test."""
    return serve.Options(
        Settings(()),
        HOST,
        rotate_bytes=None,
        rotate_seconds=None,
        lossless=True,
        discover=False,
        rules=fault_rules(),
        compression="none",
        drain_seconds=_DRAIN_SECONDS,
    )


@attrs.frozen
class Front:
    """kproxy in front of the broker of a test."""

    template: serve.Options = attrs.Factory(_template)
    """All options but those that depend on the broker."""
    log: Logger = silent
    """Called with each log line, from other threads."""
    decoder: str = ""
    """`module:function` of a user's decoder; "" for those of installed packages."""

    @property
    def decoders(self) -> list[own.OwnDecoder] | None:
        """The user's decoder; None for those of installed packages."""
        return [own.named(self.decoder)] if self.decoder else None

    def watcher(self) -> Watcher:
        """Return an observer whose records are decoded."""
        return Watcher(Schemas(own=self.decoders))

    def log_to(self, lines: list[str]) -> Logger:
        """Return a function that logs a line, and keeps it in `lines`."""

        def log(text: str, level: Level = "info", /) -> None:
            lines.append(text)
            self.log(text, level)

        return log


def _started(options: serve.Options, log: Logger) -> tuple[str, Host[str]]:
    """Run it beside the test; return the bootstrap address, and what runs it."""
    host = Host[str](lambda ready, stop: serve.serve(options, ready, log, stop=stop))
    return host.start(), host


# ---- a recording as the broker


@attrs.frozen
class Replay:
    """The options of a replay in a test."""

    paths: Sequence[Path]
    settings: ReplaySettings
    factor: float = 0.0
    """Factor of the recorded response times; 0 responds at once."""
    recorded_faults: bool = False
    compared: Compared = attrs.Factory(Compared)

    def summary(self) -> str:
        """Return in a line what is checked, and what is not."""
        if self.settings.mode is Mode.STRICT:
            return STRICT_SUMMARY
        return self.compared.summary()


@attrs.define(eq=False)
class ReplaySession:
    """A recording as the broker, behind rules, beside the test."""

    how: Replay
    front: Front = attrs.Factory(Front)
    path: Path | None = None
    """The recording of this run, where somebody looks at it meanwhile; else there is `save`."""
    broker: Broker = attrs.field(init=False)
    log: list[str] = attrs.Factory(list)
    on_red: Callable[[], object] = attrs.field(default=lambda: None, init=False)
    """Called with the first finding, in its thread: from then on it fails, whatever comes."""
    _watcher: Watcher = attrs.field(init=False)
    _options: serve.Options = attrs.field(init=False)
    _report: Report = attrs.field(init=False)
    _unplayed: Report = attrs.field(factory=Report, init=False)
    """Missing parts of the recording that do not fail."""
    _machine: ReplayBroker = attrs.field(init=False)
    _host: Host[str] | None = attrs.field(default=None, init=False)
    """What runs it, until it has stopped."""
    _first_ns: int | None = attrs.field(default=None, init=False)
    """The time of the first finding."""

    def begin(self) -> Broker:
        """Load the recording and listen.

        Raises:
            RecordingError: the file is missing, no recording, damaged, or torn.
        """
        self._report = Report(self._note_finding)
        self._machine = self._opened()
        self._watcher = watcher = self.front.watcher()
        watcher.schemas.ahead = partial(_notes, self.how.paths)
        rules = self.front.template.rules
        self._options = options = attrs.evolve(
            self.front.template,
            replaying=RuledBroker(self._machine, rules),
            observer=watcher,
            record_path=self.path,
            drain_seconds=0,  # only a recording that is kept may wait for clients at the end
            # What a replay did is for people to look at: it is no reason to fail.
            lossless=False,
        )
        address, host = _started(options, self.front.log_to(self.log))
        try:
            self.broker = Broker(address, "replay", self.how.paths[0], host, watcher, rules)
        except BaseException:
            host.stop()
            raise
        self._host = host
        return self.broker

    def _opened(self) -> ReplayBroker:
        how, rules, place = self.how, self.front.template.rules, self.front.template.settings
        settings = attrs.evolve(
            how.settings,
            listen_port=place.listen_port,
            advertised_host=place.advertised_host,
            node_ports=place.node_ports,
            compares_records=RECORDS in how.compared.aspects,
            decoders=self.front.decoders,
        )
        return open_broker(
            how.paths,
            settings,
            Wanted(how.settings.mode, how.factor, how.recorded_faults),
            self._report,
            self.front.log_to(self.log),
            lambda words: rules.add(words, time.time_ns()),
            # A torn recording would be a broker without its last records: a test needs all of it.
            on_note=refuse_torn,
        )

    @property
    def alive(self) -> bool:
        """True while it runs."""
        return self._host is not None and self._host.alive

    @property
    def findings(self) -> list[ClientDifference]:
        """The findings so far; what is missing is only reported at the end."""
        return self._report.findings

    @property
    def missing(self) -> list[ClientDifference]:
        """Records that would be reported as missing if it ended now."""
        report = Report()
        if self._host and self.how.compared.must_be_repeated(RECORDS) and not self._machine.strict:
            check = self._machine.state.check
            self._host.call(lambda: report_unproduced(check, report))
        return report.findings

    @property
    def unplayed(self) -> list[ClientDifference]:
        """Missing parts of the recording that do not fail; known after `finish`."""
        return self._unplayed.findings

    def finish(self, settle: bool = True) -> list[ClientDifference]:
        """Stop, and compare; with `settle`, wait a moment for records that a client is about
        to send. A second call returns the same."""
        host, self._host = self._host, None
        if host is None:
            return self.findings
        settle = settle and self.how.compared.must_be_repeated(RECORDS)
        until = time.monotonic() + (_SETTLE_SECONDS if settle else 0)
        try:
            while time.monotonic() < until and host.call(self._records_are_missing):
                time.sleep(_POLL_SECONDS)
        finally:
            host.stop()
        self._compare()
        return self.findings

    def _compare(self) -> None:
        """Report what is missing, and the differences in other aspects than records."""
        compared = self.how.compared
        if self.how.settings.fails_fast and self._report.count:
            return
        if self._machine.strict is not None:
            self._machine.strict.report_unplayed(self._report)
            return
        fails = compared.must_be_repeated(RECORDS)
        report = self._report if fails else self._unplayed
        report_unproduced(self._machine.state.check, report)
        if not compared.needs_behaviour:
            return
        then, now = _recorded(self.how.paths), Behaviour()
        for exchange in self.broker.exchanges():
            now.add(exchange)
        # Both by the schemas of the recording, so that neither knows more than the other.
        for each in differences(now, then, self._machine.state.check.ignored):
            if compared.fails(each):
                self._report.add(each.aspect, each.text, ADVICE)
            elif each.missing:
                self._unplayed.add(each.aspect, each.text)

    def end(self, fine: bool) -> None:
        """Stop.

        Raises:
            Mismatch: the block raised nothing, but the client differs from the recording.
        """
        found = self.finish(settle=fine)
        if fine and found:
            raise Mismatch(mismatch_text(found, self.how.paths[0], [], _AGAIN))

    def save(self, path: Path) -> Path:
        """Write what has passed as a recording, after `finish`.

        Raises:
            OSError: it cannot be written.
        """
        options = attrs.evolve(self._options, record_path=path)
        watcher = self._watcher
        made, _ = serve.open_recording(options, watcher.start_ns, self.front.log_to(self.log))
        assert made is not None, "there is a path"
        try:
            made.prepare_close()
            write_to(made, watcher.entries, watcher.clock)
        finally:
            made.close()
        return path

    def mismatch_number(self) -> int | None:
        """Return the number of the exchange of this run in which the first finding was made."""
        if self._first_ns is None:
            return None
        started = [
            each.number for each in self.broker.exchanges() if each.time_ns <= self._first_ns
        ]
        return max(started, default=None)

    def _note_finding(self, finding: ClientDifference) -> None:
        if self._first_ns is None:
            self._first_ns = time.time_ns()
            self.on_red()

    def _records_are_missing(self) -> bool:
        return not self._report.count and self._machine.state.check.lacks_records


def _recorded(paths: Sequence[Path]) -> Behaviour:
    """Return what clients did in a recording; a small one is read once by each process."""
    files = tuple(recordings(paths))
    key = json.dumps(index_file.key_of(files, ()))
    is_small = size_of(files) < INDEXED_BYTES_MIN
    return (_read_once if is_small else _read_once.__wrapped__)(key, files)


@functools.lru_cache(maxsize=index_file.REMEMBERED_MAX)
def _read_once(key: str, files: tuple[Path, ...]) -> Behaviour:
    found = Behaviour()
    for item in with_gaps(lambda told: recording.read(files, told=told), warn):
        found.add(item)
    return found


_AGAIN = "if that is meant, record again: with kproxy.testing.record(BROKERS, PATH)"


def as_argument(words: Sequence[str]) -> str:
    """Return words of what is ignored as an argument of `replay`, and of the marker."""
    return f"ignore={json.dumps(words)}"


def mismatch_text(
    found: Sequence[ClientDifference],
    path: Path | str,
    advice: Sequence[str],
    again: str,
    ignoring: Callable[[Sequence[str]], str] = as_argument,
) -> str:
    """Return findings as the text of a failed test: what is different, in its first line; what is
    like it, and what follows from it; where; and what to do. Ids and times that vary need
    `ignoring`, all else can be recorded `again`."""
    alike: dict[tuple[str, str], list[ClientDifference]] = {}
    for number, each in enumerate(sorted(found, key=_rank)):
        alike.setdefault((each.kind, each.like or f"{number}"), []).append(each)
    lines: list[str] = []
    groups = list(alike.values())
    for first, *others in groups[:_FINDINGS_SHOWN]:
        follows = lines and _rank(first) == 3 and _rank(groups[0][0]) < 2
        lines.append(f"{'  it follows: ' if follows else '  ' if lines else ''}{_named(first)}")
        lines += [f"    … and {len(others)} more like it"] if others else []
    if len(groups) > _FINDINGS_SHOWN:
        lines.append(f"  … and {len(groups) - _FINDINGS_SHOWN} more")
    lines += [f"the client does not do what it did in {path}", *advice]
    words = (word for each in found for word in each.ignore)
    lines += filter(None, [varying_text(words, ignoring)])
    if not all(each.only_varies for each in found):
        lines.append(again)
    return "\n".join(lines)


_OF_RECORDS = frozenset({"not recorded", "not produced", "not served", "differs"})
_FOLLOWING = frozenset({"order", "commits", "transactions", "consumed"})
"""Aspects that differ where a record does."""


def _rank(finding: ClientDifference) -> int:
    """Return the place of a finding: what others follow from comes first."""
    if finding.kind in _OF_RECORDS:
        return int(finding.only_varies)
    return 3 if finding.kind in _FOLLOWING else 2


def _named(finding: ClientDifference) -> str:
    """Return the text of a finding, with the name of its aspect."""
    return finding.text if finding.kind in _OF_RECORDS else f"{finding.kind}: {finding.text}"


def _notes(paths: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """Yield the bodies of all notes of recordings, which name the schemas of their records."""
    with suppress(RecordingError, OSError):  # it was read before, when the replay began
        for path in recordings(paths):
            with RecordingFile(path) as file:
                for batch in file.batches():
                    yield from [note.body for note in batch.notes]


def refuse_torn(note: Note) -> None:
    """Raise RecordingError if a note says that a file is torn."""
    data = note.body
    if data.get("event") == "torn":
        raise RecordingError(data["path"], data["offset"], data["what"])


# ---- real brokers, recorded


@attrs.define(eq=False)
class RecordingSession:
    """kproxy in front of real brokers; with a path it records."""

    bootstrap: str
    path: Path | None
    mode: str = "record"
    ignore: Sequence[str] = ()
    """Differences that `kproxy textconv` leaves out (`replay.ignored`), noted in the recording."""
    config: Path | None = None
    """The properties of a client: TLS to the brokers, and where they are if `bootstrap` is ""."""
    front: Front = attrs.Factory(Front)
    made_by: Mapping[str, Any] | None = None
    """What records it (`renewing.made_by`), noted in the recording."""
    broker: Broker = attrs.field(init=False)
    log: list[str] = attrs.Factory(list)
    _host: Host[str] = attrs.field(init=False)

    def begin(self) -> Broker:
        """Listen, and start the recording.

        Raises:
            ValueError: `bootstrap` is no address.
            TlsError: the properties, or a file that they name, cannot be used.
            Unusable: none of the addresses resolves.
            OSError: the recording cannot be created; FileExistsError where the path is taken.
        """
        bootstrap, broker_tls = self._cluster()
        try:
            addresses = parse_brokers(bootstrap)
        except ValueError as error:
            raise ValueError(f"the address of a broker: {error}") from None
        watcher = self.front.watcher()
        if self.ignore:
            watcher.first_notes.append(notes.ignored(time.time_ns(), self.ignore))
        if self.made_by:
            watcher.first_notes.append(notes.made_by(time.time_ns(), self.made_by))
        template = self.front.template
        options = attrs.evolve(
            template,
            settings=attrs.evolve(template.settings, bootstrap=addresses),
            observer=watcher,
            record_path=self.path,
            broker_tls=broker_tls,
        )
        address, self._host = _started(options, self.front.log_to(self.log))
        self.broker = Broker(address, self.mode, self.path, self._host, watcher, options.rules)
        return self.broker

    def _cluster(self) -> tuple[str, BrokerTls | None]:
        """Return the bootstrap address and the settings of TLS."""
        if self.config is None:
            return self.bootstrap, None
        from kproxy.net.tls.properties import read_properties

        found = read_properties(self.config)
        for line in found.lines():
            self.front.log_to(self.log)(line)
        missing = found.missing_file(found.tls) if found.tls else ""
        if missing:
            raise TlsError(missing)
        if not (self.bootstrap or found.bootstrap):
            raise ValueError(f"{self.config} has no bootstrap.servers")
        return self.bootstrap or found.bootstrap or "", found.tls

    def end(self, fine: bool) -> None:
        """Stop, and complete the recording.

        Raises:
            RecordingFailed: the recording could not be written.
        """
        self._host.stop()

    @property
    def alive(self) -> bool:
        """True while it runs."""
        return self._host.alive
