"""One test's use of the fixture `kproxy`, in each mode, from before the test to after it.

::

    mode      replay   once, without     rewrite   verify             live
                       a recording
    broker    the      ─────────────── a real one, behind kproxy ──────────────
              recording
    finish    findings   –                 –       what differs from   –
                                                   the recording
    close     –          kept if it passed, else as .failed.mcap   nothing is written

Invariant: a recording in its place is never touched by a test that failed, nor in the other modes.
"""

from __future__ import annotations

import contextlib
import difflib
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from kproxy.net.listeners import ListenError
from kproxy.net.running import Unusable
from kproxy.recording import RecordingError
from kproxy.replay.report import Finding
from kproxy.testing import files
from kproxy.testing.broker import Broker
from kproxy.testing.sessions import Recording, Replay, Replaying, mismatch_text
from kproxy.view import meaning

_EXCHANGES_SHOWN = 15
_LOG_SHOWN = 5
_DIFFERENCES_SHOWN = 60
_REFUSALS = (RecordingError, ListenError, Unusable, ValueError, OSError)
"""What a broker does not begin for; their texts say why."""


class Unable(Exception):
    """A test cannot be run in this mode; the text says why, and what to type."""


class Unrecorded(Unable):
    """There is no recording: a test that is skipped needs none."""


@attrs.define(eq=False)
class Run:
    """What a test has: its broker, and what is to be done with it afterwards."""

    mode: str
    path: Path
    shown: str
    """The path as it is told: relative to where the tests were started."""
    again: str
    """What to type to record it again."""
    how: Replay
    ignore: Sequence[str]
    broker: Broker = attrs.field(init=False)
    _session: Replaying | Recording = attrs.field(init=False)
    _folder: Path | None = attrs.field(default=None, init=False)
    """Where a recording is made until it is known to be good."""
    _finished: str | None = attrs.field(default=None, init=False)

    def begin(self, real_broker: Callable[[], str]) -> Broker:
        """Start what the mode wants; `real_broker` is called only where one is needed.

        Raises:
            Unrecorded: there is no recording.
            Unable: it cannot be read; the broker's address is none, or does not resolve.
        """
        there = self.path.exists()
        if self.mode in ("replay", "verify") and not there:
            raise Unrecorded(f"there is no recording {self.shown}; make it: {self.again}")
        try:
            if self.mode == "replay" or (self.mode == "once" and there):
                self._session = Replaying(self.how)
            else:
                self._session = self._before(real_broker())
            self.broker = self._session.begin()
        except BaseException as error:
            self._forget()
            if isinstance(error, _REFUSALS):
                raise Unable(str(error)) from error
            raise
        return self.broker

    def _before(self, bootstrap: str) -> Recording:
        kind = self.mode if self.mode in ("verify", "live") else "record"
        if kind == "live":
            return Recording(bootstrap, None, kind)
        self._folder = Path(tempfile.mkdtemp(prefix="kproxy-"))
        return Recording(bootstrap, self._folder / self.path.name, kind, self.ignore)

    @property
    def findings(self) -> list[Finding]:
        """What a replay has found so far."""
        return self._session.findings if isinstance(self._session, Replaying) else []

    def finish(self, settle: bool = True) -> str:
        """End it; return why the test fails, or "". A second time returns the same."""
        if self._finished is None:
            self._finished = self._finish(settle)
        return self._finished

    def _finish(self, settle: bool) -> str:
        session = self._session
        if isinstance(session, Replaying):
            found = session.finish(settle)
            return self.text(found) if found else ""
        session.end(True)
        if self.mode == "verify" and settle and session.path is not None:
            return self._drift(session.path)
        return ""

    def text(self, found: Sequence[Finding]) -> str:
        """What a client did otherwise than its recording has it."""
        return mismatch_text(found, self.shown, f"if that is meant, record again: {self.again}")

    def _drift(self, made: Path) -> str:
        """In what the recording differs from what real brokers did now."""
        then, now = (list(meaning.lines([path], self.how.ignored)) for path in (self.path, made))
        if then == now:
            return ""
        names = self.shown, "the broker now"
        lines = list(difflib.unified_diff(then, now, *names, n=2, lineterm=""))
        more = [f"… and {len(lines) - _DIFFERENCES_SHOWN} more lines"]
        shown = lines[:_DIFFERENCES_SHOWN] + (more if len(lines) > _DIFFERENCES_SHOWN else [])
        what = f"this run differs from {self.shown}:"
        return "\n".join([what, *shown, f"if that is meant, record again: {self.again}"])

    def close(self, outcome: str) -> None:
        """Keep what is to be kept: `outcome` is "passed", "failed" or "skipped".

        Raises:
            OSError: a recording cannot be put in its place.
        """
        try:
            self.finish(settle=False)
            session = self._session
            recorded = session.path if isinstance(session, Recording) else None
            if recorded is not None and self.mode != "verify":
                if outcome == "passed":
                    files.keep(recorded, self.path)
                    files.failed_file(self.path).unlink(missing_ok=True)
                elif outcome == "failed":
                    files.keep(recorded, files.failed_file(self.path))
        finally:
            self._forget()

    def _forget(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def story(self) -> str:
        """The last that passed, and what kproxy logged: for whoever reads of a failure."""
        exchanges = []
        with contextlib.suppress(Exception):  # it explains a failure, and must not hide it
            exchanges = self.broker.exchanges()
        left_out = len(exchanges) - _EXCHANGES_SHOWN
        lines = [f"… {left_out} exchanges before"] if left_out > 0 else []
        lines += [each.text for each in exchanges[-_EXCHANGES_SHOWN:]]
        lines += [f"kproxy: {text}" for text in self._session.log[-_LOG_SHOWN:]]
        return "\n".join(lines) or "no exchange passed through kproxy"
