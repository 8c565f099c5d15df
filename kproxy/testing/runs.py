"""One run of a test with its recording, in each cassette mode, from its start to its end.

The test is one of pytest's, with the fixture `kproxy`, or a command: `kproxy replay … -- COMMAND`.

::

    mode      replay   once, without     rewrite   verify             live
                       a recording       renew
    broker    the      ─────────────── a real one, behind kproxy ──────────────
              recording
    finish    findings   –                 –       what differs from   –
                                                   the recording
    close     .failed    kept if it passed, else as .failed.mcap       nothing is written

A test that failed as expected (`xfail`) keeps its recording like one that passed. One that was
skipped keeps it where there is none, so that it is skipped in a replay, too. With `renew` it is
kept as .renewed.mcap where there is one: `renewing` compares them, and replaces that.

Invariant: a recording in its place is never touched by a test that failed or was skipped, nor in
the other modes. What a failed run did is beside it, as .failed.mcap.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from kproxy import recording
from kproxy.levels import Logger, silent
from kproxy.net.listeners import ListenError
from kproxy.net.tls.settings import TlsError
from kproxy.net.unusable import Unusable
from kproxy.recording import RecordingError
from kproxy.recording.mcap import MAGIC
from kproxy.replay.report import ClientDifference
from kproxy.testing import files
from kproxy.testing.broker import Broker
from kproxy.testing.sessions import (
    Front,
    RecordingSession,
    Replay,
    ReplaySession,
    as_argument,
    mismatch_text,
    refuse_torn,
)

_EXCHANGES_SHOWN = 15
_LOG_SHOWN = 5
_REFUSALS = (RecordingError, ListenError, Unusable, TlsError, ValueError, OSError)
"""Errors that prevent a broker from starting; their texts say why."""


class Unable(Exception):
    """A test cannot be run in this mode; the text says why, and what to type."""


class Unrecorded(Unable):
    """There is no recording: a test that is skipped needs none."""


@attrs.define(eq=False)
class CassetteRun:
    """The broker of one test, its checks at the end, and its recording."""

    mode: str
    path: Path
    shown: str
    """The path as users name it."""
    again: str
    """The command that records it again."""
    how: Replay
    ignore: Sequence[str] = ()
    config: Path | None = None
    """The properties of a client, for TLS to real brokers."""
    front: Front = attrs.Factory(Front)
    ignoring: Callable[[Sequence[str]], str] = as_argument
    """Returns what is to be typed so that parts with these words (`replay.ignored`) may differ."""
    rehearsals: list[Path] | None = None
    """Recordings of runs before this one, to learn what varies; the next one's list."""
    is_rehearsal: bool = False
    """True if the recording of this run is only added to them."""
    log: Logger = silent
    """Called with lines on what was learned."""
    made_by: Mapping[str, Any] | None = None
    """What records it (`renewing.made_by`), noted in the recording."""
    broker: Broker = attrs.field(init=False)
    _session: ReplaySession | RecordingSession = attrs.field(init=False)
    _folder: Path | None = attrs.field(default=None, init=False)
    """Temporary folder of the recording of this run."""
    _finished: str | None = attrs.field(default=None, init=False)

    def begin(self, real_broker: Callable[[], str]) -> Broker:
        """Start the broker of this mode; `real_broker` is called only if one is needed.

        Raises:
            Unrecorded: there is no recording.
            Unable: the recording cannot be read; the broker's address is invalid or not found.
        """
        recorded_before = self.path.exists()
        if recorded_before and self.mode in ("rewrite", "verify", "renew"):
            self._check_place()
        if self.mode in ("replay", "verify") and not recorded_before:
            raise Unrecorded(f"there is no recording {self.shown}; make it: {self.again}")
        try:
            if self.mode == "replay" or (self.mode == "once" and recorded_before):
                path = self._new_path() if self.front.template.control else None  # the page's
                self._session = ReplaySession(self.how, self.front, path)
            else:
                self._session = self._recording_session(real_broker())
            self.broker = self._session.begin()
        except BaseException as error:
            self._remove_folder()
            if isinstance(error, _REFUSALS):
                raise Unable(_text(error)) from error
            raise
        return self.broker

    def _check_place(self) -> None:
        """Raise Unable if what is at the path is not to be overwritten, or cannot be compared."""
        if self.mode == "rewrite":
            if not (self.path.is_file() and _begins_as_recording(self.path)):
                raise Unable(f"{self.shown} is no recording, and is not overwritten")
            return
        try:
            deque(recording.read(self.path, told=refuse_torn), 0)
        except (RecordingError, OSError) as error:
            raise Unable(_text(error)) from error

    def _recording_session(self, bootstrap: str) -> RecordingSession:
        kind = self.mode if self.mode in ("verify", "live") else "record"
        if kind == "live":
            return RecordingSession(bootstrap, None, kind, (), self.config, self.front)
        path, about = self._new_path(), self.made_by
        return RecordingSession(bootstrap, path, kind, self.ignore, self.config, self.front, about)

    def _new_path(self) -> Path:
        self._folder = Path(tempfile.mkdtemp(prefix="kproxy-"))
        return self._folder / f"run{files.SUFFIX}"

    @property
    def will_record(self) -> bool:
        """True if this mode makes a recording to keep."""
        is_new = self.mode == "once" and not self.path.exists()
        return is_new or self.mode in ("rewrite", "renew")

    @property
    def replays(self) -> bool:
        """True if the recording is the broker."""
        return isinstance(self._session, ReplaySession)

    @property
    def answered(self) -> bool:
        """True if a broker has answered a client."""
        return any(each.response_bytes for each in self.broker.exchanges())

    @property
    def alive(self) -> bool:
        """True while the broker runs; with `fail_fast`, and as long as the client does not
        differ."""
        return self._session.alive and not (self.fails_fast and self.findings)

    @property
    def fails_fast(self) -> bool:
        """True if the first difference is to end a test."""
        return isinstance(self._session, ReplaySession) and self.how.settings.fails_fast

    def when_red(self, call: Callable[[], object]) -> None:
        """With `fail_fast` have this called once the client differs, in another thread."""
        if isinstance(self._session, ReplaySession) and self.fails_fast:
            self._session.on_red = call
            if self.findings:
                call()

    @property
    def unplayed(self) -> list[ClientDifference]:
        """Missing parts of the recording that do not fail; known after `finish`."""
        return self._session.unplayed if isinstance(self._session, ReplaySession) else []

    @property
    def findings(self) -> list[ClientDifference]:
        """The findings of a replay so far."""
        return self._session.findings if isinstance(self._session, ReplaySession) else []

    @property
    def missing(self) -> list[ClientDifference]:
        """Records that are missing so far."""
        return self._session.missing if isinstance(self._session, ReplaySession) else []

    def finish(self, succeeded: bool = True) -> str:
        """End the session; return why the test fails, or "". If the test has not succeeded by
        itself, nothing is waited for, and no real broker is compared. A second call returns the
        same."""
        if self._finished is None:
            self._finished = self._finish(succeeded)
        return self._finished

    def _finish(self, succeeded: bool) -> str:
        session = self._session
        if isinstance(session, ReplaySession):
            found = session.finish(settle=succeeded)
            return self.text(found) if found else ""
        session.end(True)
        if self.mode == "verify" and succeeded and session.path is not None:
            return self._drift(session.path)
        return ""

    def text(self, found: Sequence[ClientDifference]) -> str:
        """Return findings as text, with the command that records again."""
        advice = [*self._seen()]
        misses = all(each.kind == "not produced" for each in found)
        if misses and not self.broker.exchanges("api:Produce"):
            advice.append('if it is only to read: --expect none (of a marker: expect="none")')
        again = f"if that is meant, record again: {self.again}"
        return mismatch_text(found, self.shown, advice, again, self.ignoring)

    def _seen(self) -> Iterator[str]:
        """Yield where this run is recorded, with the command that shows it."""
        if not isinstance(self._session, ReplaySession):
            return
        number = self._session.mismatch_number()
        up_to = "" if number is None else f" number:..{number}"
        yield f"what it did before: kproxy show {shlex.quote(self.failed_shown)}{up_to}"

    @property
    def failed_shown(self) -> str:
        """The path of the recording of a failed run, as users name it."""
        return str(files.failed_file(Path(self.shown)))

    def _drift(self, made: Path) -> str:
        """Return the differences of the recording from this run with real brokers."""
        from kproxy.testing.renewing import differing

        shown = differing(self.path, made, self.how.settings.ignored)
        if not shown:
            return ""
        what = f"this run (+) differs from {self.shown} (-):"
        return "\n".join([what, *shown, f"if that is meant, record again: {self.again}"])

    def close(self, outcome: str) -> str | None:
        """Keep or remove the recording of this run; `outcome` is "passed", "xfailed", "failed",
        "skipped", or "unused" by a test that did not begin. Return the path of what is kept, as
        users name it.

        Raises:
            Unable: a new recording cannot be written to its path.
        """
        try:
            self.finish(succeeded=False)
            return self._kept(outcome)
        finally:
            self._remove_folder()

    def _kept(self, outcome: str) -> str | None:
        session, failed = self._session, files.failed_file(self.path)
        if isinstance(session, ReplaySession):
            return self._kept_of_replay(session, outcome, failed)
        made = session.path
        if made is None or self.mode == "verify" or outcome == "unused":
            return None
        if outcome == "skipped" and self.path.exists():
            return None
        if self.is_rehearsal and outcome in ("passed", "xfailed") and self.rehearsals is not None:
            self._folder = None  # whose list it is removes it
            self.rehearsals.append(made)
            return None
        try:
            if outcome == "failed":
                files.keep(made, failed)
                return self.failed_shown
            failed.unlink(missing_ok=True)
            if self.mode == "once" and self.path.exists():
                raise self._unkept(f"{self.shown} was recorded by another run meanwhile", made)
            if self.rehearsals:
                from kproxy.testing.learning import learn_from, learned_lines

                learned = learn_from(made, self.rehearsals)
                for line in learned_lines(learned, self.shown):
                    self.log(line)
            path = self.path.resolve()
            if self.mode == "renew" and path.exists():
                from kproxy.testing.renewing import keep_learned

                if not self.rehearsals:
                    keep_learned(path, made)
                path = files.renewed_file(path)
            files.keep(made, path)
        except OSError as error:
            raise self._unkept(f"{self.shown}: {error.strerror}", made) from error
        return self.shown

    def _kept_of_replay(self, session: ReplaySession, outcome: str, failed: Path) -> str | None:
        """See `_kept`: what a replay did is only kept beside its recording."""
        with contextlib.suppress(OSError):  # no reason to write where recordings are read only
            if outcome == "failed":
                files.keep(session.path or session.save(self._new_path()), failed)
                return self.failed_shown
            if outcome not in ("unused", "skipped"):
                failed.unlink(missing_ok=True)
        return None

    def _unkept(self, why: str, made: Path) -> Unable:
        """Leave the recording where it is; return the error that says so."""
        self._folder = None
        return Unable(f"{why}; the recording of this run is {made}")

    def _remove_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def story(self) -> str:
        """Return the last exchanges and log lines, for the report of a failure."""
        exchanges = []
        with contextlib.suppress(Exception):  # it explains a failure, and must not hide it
            exchanges = self.broker.exchanges()
        left_out = len(exchanges) - _EXCHANGES_SHOWN
        lines = [f"… {left_out} exchanges before"] if left_out > 0 else []
        lines += [each.text for each in exchanges[-_EXCHANGES_SHOWN:]]
        lines += [f"kproxy: {text}" for text in self._session.log[-_LOG_SHOWN:]]
        lines = lines or ["no exchange passed through kproxy"]
        if self.mode != "verify":  # which keeps nothing
            lines.append(f"its recording: kproxy show {shlex.quote(self.failed_shown)}")
        return "\n".join(lines)


def _begins_as_recording(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)
