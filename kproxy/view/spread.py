"""Work on large recordings with all idle cores: batches in turn to processes, results in order.

::

    batch 0, 2, 4 … ─▶ process ─▶ exchanges ─▶ work ─▶ pipe ─┐
    batch 1, 3, 5 … ─▶ process ─▶ exchanges ─▶ work ─▶ pipe ─┴─▶ in the order of the batches

On two cores `show` of 100,000 small exchanges ends 1.6 to 1.7 times, and `stats` 1.8 times, as soon
as with one process, for a tenth more CPU.

Every process reads all notes and tables, which is little, and so knows connections and topics; it
makes exchanges, and opens frames, of its own batches only.

Invariants: what comes is the same, in the same order, as without processes. A process is never more
than a pipe holds ahead of its reader, 1 MiB. When the reader goes, however that happens, they end.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import attrs

from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.entries import Note
from kproxy.exchange.exchange import Exchange
from kproxy.recording import RecordingError, RecordingFile, recordings
from kproxy.recording.columns import Count, Made
from kproxy.view.stream import Stream, connection_ends

LARGE_BYTES = 4 << 20
"""Below that a second process is not worth its start."""
_ITEMS_MAX = 256
_TEXT_MAX = 64 << 10
_PIPE_BYTES = 1 << 20
"""A batch as text fits in: else a process would wait with its batch while another's is read."""
_PROCESSES_MAX = 16

Work = Callable[[Exchange | ConnectionEnd], Iterable[Made]]


def spread(
    stream: Stream,
    work: Work[Made],
    processes: int | None = None,
    count: Count[Made] | None = None,
) -> Iterator[Made]:
    """Yield what `work` makes of all that a stream shows, and `count` of its rows, in its order; in
    this process, if the recordings are small or cannot be shared out. What is made must be such
    that it can be pickled.

    Raises: RecordingError, as `Stream.shown`.
    """
    shares = processes_for(stream) if processes is None else processes
    if shares < 2:
        yield from _made(stream, work, count)
        return
    workers: list[_Worker] = []
    try:
        for index in range(shares):
            workers.append(_start(stream, work, count, (index, shares), workers))
        turn = 0
        while not workers[turn % shares].done:
            yield from workers[turn % shares].batch(stream)
            turn += 1
        for worker in workers:  # what is told behind the last batch
            while not worker.done:
                yield from worker.batch(stream)
    finally:
        for worker in workers:
            worker.end()


def _made(stream: Stream, work: Work[Made], count: Count[Made] | None) -> Iterator[Made]:
    for shown in stream.shown(count):
        if isinstance(shown, (Exchange, ConnectionEnd)):
            yield from work(shown)
        else:
            yield shown


def processes_for(stream: Stream) -> int:
    """How many processes are worth it; recordings that are still written, or were cut off, are read
    by one, which pairs at the end what has no row."""
    if not hasattr(os, "fork") or not hasattr(os, "sched_getaffinity"):
        return 1
    # Where others work, processes only wait for each other's turn.
    cores = len(os.sched_getaffinity(0)) - int(os.getloadavg()[0])
    if cores < 2:
        return 1
    try:
        files = recordings(stream.paths)
        large = sum(path.stat().st_size for path in files) >= LARGE_BYTES
        return min(_PROCESSES_MAX, cores) if large and all(map(_is_complete, files)) else 1
    except (OSError, RecordingError):
        return 1  # who reads them says what is wrong


def _is_complete(path: Path) -> bool:
    with RecordingFile(path) as file:
        return file.complete


# ---------------------------------------------------------------- here

_MADE, _NOTE, _BATCH, _ERROR, _DONE = "made", "note", "batch", "error", "done"
"""What a process sends, each with a value: what it made, a note, that a batch of its own ends (with
the bytes read so far), an error, that there is no more (with how many exchanges there were)."""


@attrs.define(eq=False)
class _Worker:
    """A process, seen from here."""

    pid: int
    pipe: BinaryIO
    done: bool = False

    def batch(self, stream: Stream) -> Iterator[Any]:
        """Yield what it made of its next batch.

        Raises: RecordingError.
        """
        while True:
            kind, value = self._message(stream)
            if kind == _MADE:
                yield from value
            elif kind == _NOTE:
                stream.note(value)
            elif kind == _ERROR:
                raise value
            elif kind == _BATCH:
                stream.passed(value)
                return
            else:
                stream.have_read(value)
                self.done = True
                return

    def _message(self, stream: Stream) -> tuple[str, Any]:
        try:
            return pickle.load(self.pipe)
        except (EOFError, pickle.UnpicklingError):  # it died, maybe in the middle of a message
            paths = ", ".join(map(str, stream.paths))
            what = "was not read to its end: a process that helped was stopped"
            raise RecordingError(paths, None, what) from None

    def end(self) -> None:
        """End it, whether it is done or not."""
        self.pipe.close()
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _start(
    stream: Stream,
    work: Work[Any],
    count: Count[Any] | None,
    share: tuple[int, int],
    others: list[_Worker],
) -> _Worker:
    reading, writing = os.pipe()
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):  # there is a limit for each user
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    pid = os.fork()
    if not pid:
        os.close(reading)
        for other in others:
            other.pipe.close()
        _work(stream, work, count, share, writing)
    os.close(writing)
    return _Worker(pid, os.fdopen(reading, "rb"))


# ---------------------------------------------------------------- in the other process


def _work(
    stream: Stream,
    work: Work[Any],
    count: Count[Any] | None,
    share: tuple[int, int],
    writing: int,
) -> NoReturn:
    """Do the work of one process, and end it: nothing of what called this goes on there."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # who reads from here ends it
        with os.fdopen(writing, "wb") as pipe:
            sender, shows_ends = _Sender(pipe), stream.shows_ends

            def heard(note: Note) -> None:
                sender.send(_NOTE, note)
                if shows_ends:
                    for end in connection_ends(note):
                        sender.made(work(end))

            def passed(done_bytes: int) -> None:
                sender.send(_BATCH, done_bytes)
                pipe.flush()

            stream.become_share(heard, passed, share)
            try:
                sender.made(_made(stream, work, count))
                sender.send(_DONE, stream.exchange_count)
            except RecordingError as error:
                sender.send(_ERROR, error)
    except BrokenPipeError:
        pass  # nobody reads any more
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


@attrs.define(eq=False)
class _Sender:
    """Sends what was made in messages that are not too small."""

    pipe: BinaryIO
    _items: list[Any] = attrs.field(factory=list[Any], init=False)
    _items_max: int = attrs.field(default=1, init=False)
    """Grows: the first line comes at once."""
    _size: int = attrs.field(default=0, init=False)

    def made(self, items: Iterable[Any]) -> None:
        """Send what was made."""
        for item in items:
            self._items.append(item)
            self._size += len(item) if isinstance(item, str) else 0
            if len(self._items) >= self._items_max or self._size >= _TEXT_MAX:
                self._flush()

    def send(self, kind: str, value: Any) -> None:
        """Send something else behind that."""
        self._flush()
        pickle.dump((kind, value), self.pipe)

    def _flush(self) -> None:
        if self._items:
            items, self._items, self._size = self._items, [], 0
            pickle.dump((_MADE, items), self.pipe)
            if self._items_max < _ITEMS_MAX:
                self._items_max *= 2
                self.pipe.flush()
