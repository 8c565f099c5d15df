"""Start and stop the broker of a test: a recording as the broker, or a proxy before real ones.

::

    client ─▶ kproxy ─▶ replaying broker ─▶ findings: the client's differences     ReplaySession
    client ─▶ kproxy ─▶ real brokers                                               RecordingSession
                 └─▶ a recording

`Session` makes either a context manager, for `with` and for `async with` (trio and asyncio): both
do the same, but the latter does not block the event loop.

Resource handling: on leaving, every connection and listener is closed and the thread has ended,
whatever happened in the block.
"""

from __future__ import annotations

import asyncio
import time
from argparse import ArgumentTypeError
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import attrs
import trio

from kproxy.commands.options import broker_addresses
from kproxy.exchange import notes
from kproxy.exchange.entries import Note
from kproxy.net import replaying, serve
from kproxy.proxy.faults import Rules
from kproxy.proxy.settings import Settings
from kproxy.recording import RecordingError
from kproxy.replay.broker import ReplayBroker
from kproxy.replay.ignored import Ignored
from kproxy.replay.opening import Wanted, open_recorded
from kproxy.replay.report import Finding, Report
from kproxy.replay.settings import Mode, ReplaySettings, Visible
from kproxy.testing.broker import Broker, Watcher, fault_rules
from kproxy.testing.host import Host

HOST = "127.0.0.1"
_SETTLE_SECONDS = 1.0
"""Time to wait at the end for records that a client has not sent yet."""
_DRAIN_SECONDS = 0.5
_POLL_SECONDS = 0.01
_FINDINGS_SHOWN = 20

Result = TypeVar("Result")
Serve = Callable[..., Awaitable[object]]
"""Runs a server; called with a function that takes its address, one that logs, and a stop event."""


class Mismatch(AssertionError):
    """The client differs from the recording; the text says how, and what to do."""


@attrs.define(eq=False)
class Session:
    """Context manager of a broker: from `begin` to `end`, which is called with True if the block
    raised nothing."""

    begin: Callable[[], Broker]
    end: Callable[[bool], None]

    def __enter__(self) -> Broker:
        return self.begin()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end(error is None)

    async def __aenter__(self) -> Broker:
        return await _in_thread(self.begin, partial(self.end, False))

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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


# ---- a recording as the broker


@attrs.frozen
class Replay:
    """The options of a replay in a test."""

    paths: Sequence[Path]
    mode: Mode = Mode.STATE
    visible: Visible = Visible.CAUSAL
    factor: float = 0.0
    """Factor of the recorded response times; 0 responds at once."""
    ignored: Ignored = attrs.Factory(Ignored)
    unplayed_fails: bool = True
    """True to report recorded records that are never produced."""
    users: Mapping[str, str] = attrs.field(factory=dict)


@attrs.define(eq=False)
class ReplaySession:
    """A recording as the broker, and kproxy in front of it: each in a thread of its own, because a
    pump blocks its thread while it waits for its sockets."""

    how: Replay
    broker: Broker = attrs.field(init=False)
    log: list[str] = attrs.Factory(list)
    _report: Report = attrs.field(init=False)
    _machine: ReplayBroker = attrs.field(init=False)
    _hosts: list[Host[str]] = attrs.field(factory=list, init=False)
    """Threads of the replaying broker and of the proxy."""

    def begin(self) -> Broker:
        """Load the recording and listen.

        Raises:
            RecordingError: the file is missing, no recording, damaged, or torn.
        """
        self._report = Report()
        self._machine = self._loaded()
        listen = partial(replaying.replay, self._machine, HOST, 0, None)
        watcher, rules = Watcher(), fault_rules()
        try:
            address = self._started(listen, "kproxy-replay")
            settings = Settings(broker_addresses(address))
            # No need to wait for clients at the end: nothing is recorded.
            options = attrs.evolve(_options(settings, watcher, rules, None), drain_seconds=0)
            bootstrap = self._started(partial(serve.serve, options), "kproxy-proxy")
            host, path = self._hosts[-1], self.how.paths[0]
            self.broker = Broker(bootstrap, "replay", path, host, watcher, rules)
        except BaseException:
            self._stop()
            raise
        return self.broker

    def _loaded(self) -> ReplayBroker:
        how = self.how
        # A torn recording would be a broker without its last records: a test needs all of it.
        recorded = open_recorded(how.paths, Wanted(how.mode, how.factor), on_note=_refuse_torn)
        settings = ReplaySettings(
            mode=how.mode,
            visible=how.visible,
            report_unproduced=how.unplayed_fails,
            ignored=how.ignored,
            users=how.users,
        )
        return ReplayBroker(recorded.loaded, settings, self._report, None, recorded.pace)

    def _started(self, serve_it: Serve, name: str) -> str:
        host = Host(partial(_serving, serve_it, self.log), name)
        address = host.start()
        self._hosts.append(host)
        return address

    def _stop(self) -> None:
        """Stop the proxy, and then the broker, so that it gets all that the proxy has passed on."""
        hosts, self._hosts = self._hosts, []
        with ExitStack() as stack:  # the last first, and all of them even if one raises
            for host in hosts:
                stack.callback(host.stop)

    @property
    def findings(self) -> list[Finding]:
        """The findings so far; missing records are only reported at the end."""
        return self._report.findings

    def finish(self, settle: bool = True) -> list[Finding]:
        """Stop both; with `settle`, wait a moment for records that a client is about to send."""
        until = time.monotonic() + (_SETTLE_SECONDS if settle and self.how.unplayed_fails else 0)
        try:
            while time.monotonic() < until and self._hosts[0].call(self._records_are_missing):
                time.sleep(_POLL_SECONDS)
        finally:
            self._stop()
        return self._report.findings

    def end(self, fine: bool) -> None:
        """Stop both.

        Raises:
            Mismatch: the block raised nothing, but the client differs from the recording.
        """
        found = self.finish(settle=fine)
        if fine and found:
            raise Mismatch(mismatch_text(found, self.how.paths[0], _ADVICE))

    def _records_are_missing(self) -> bool:
        return not self._report.count and self._machine.state.check.lacks_records


_ADVICE = "if that is meant, record again: with kproxy.testing.record(BROKERS, PATH)"


def mismatch_text(found: Sequence[Finding], path: Path | str, advice: str) -> str:
    """Return findings as the text of a failed test."""
    lines = [f"the client does not do what {path} holds:"]
    lines += [f"  {each.kind}: {each.text}" for each in found[:_FINDINGS_SHOWN]]
    if len(found) > _FINDINGS_SHOWN:
        lines.append(f"  … and {len(found) - _FINDINGS_SHOWN} more")
    return "\n".join([*lines, advice])


def _refuse_torn(note: Note) -> None:
    """Raise RecordingError if a note says that a file is torn."""
    data = note.body
    if data.get("event") == "torn":
        raise RecordingError(data["path"], data["offset"], data["what"])


async def _serving(
    serve_it: Serve, log: list[str], started: Callable[[str], None], stop: trio.Event
) -> None:
    await serve_it(started, log.append, stop=stop)


# ---- real brokers, recorded


@attrs.define(eq=False)
class RecordingSession:
    """kproxy in front of real brokers; with a path it records."""

    bootstrap: str
    path: Path | None
    mode: str = "record"
    ignore: Sequence[str] = ()
    """Differences to ignore in later replays (`replay.ignored`), noted in the recording."""
    broker: Broker = attrs.field(init=False)
    log: list[str] = attrs.Factory(list)
    _host: Host[str] = attrs.field(init=False)

    def begin(self) -> Broker:
        """Listen, and start the recording.

        Raises:
            ValueError: `bootstrap` is no address.
            Unusable: none of the addresses resolves.
            OSError: the recording cannot be created; FileExistsError where the path is taken.
        """
        try:
            settings = Settings(broker_addresses(self.bootstrap))
        except ArgumentTypeError as error:
            raise ValueError(f"the address of a broker: {error}") from None
        watcher, rules = Watcher(), fault_rules()
        if self.ignore:
            watcher.first_notes.append(notes.ignored(time.time_ns(), self.ignore))
        options = _options(settings, watcher, rules, self.path)
        self._host = Host(partial(_serving, partial(serve.serve, options), self.log), "kproxy")
        address = self._host.start()
        self.broker = Broker(address, self.mode, self.path, self._host, watcher, rules)
        return self.broker

    def end(self, fine: bool) -> None:
        """Stop, and complete the recording.

        Raises:
            RecordingFailed: the recording could not be written.
        """
        self._host.stop()


def _options(
    settings: Settings, watcher: Watcher, rules: Rules, path: Path | None
) -> serve.Options:
    return serve.Options(
        settings,
        HOST,
        path,
        rotate_bytes=None,
        rotate_seconds=None,
        lossless=True,
        discover=False,
        rules=rules,
        observer=watcher,
        compression="none",
        drain_seconds=_DRAIN_SECONDS,
    )
