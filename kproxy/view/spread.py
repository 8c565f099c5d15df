"""Work on large recordings with all idle cores: batches go to processes in turn, results in order.

::

    batch 0, 2, 4 … ─▶ process ─▶ groups of exchanges ─▶ work ─▶ pipe ─┐
    batch 1, 3, 5 … ─▶ process ─▶ groups of exchanges ─▶ work ─▶ pipe ─┴─▶ in the order of batches

On two cores `show` of 100,000 small exchanges is 1.6 to 1.7 times as fast as with one process, and
`stats` 1.8 times, for a tenth more CPU.

Every process reads all notes and tables, which are small, and so knows connections and topics; it
makes exchanges, and opens frames, only of its own batches.

Invariants: results and their order are the same as with one process. A process is ahead of its
reader by at most the size of a pipe, 1 MiB. When the reader ends, the processes end, too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Generic, NoReturn, cast

import attrs

from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.entries import Note
from kproxy.recording import RecordingError, RecordingFile, recordings
from kproxy.recording.columns import Count, Made
from kproxy.recording.exchanges import Make
from kproxy.view.stream import Stream

LARGE_BYTES = 4 << 20
"""Recordings below this size are read by one process: others are not worth their start."""
LOAD = Path("/proc/loadavg")
_ITEMS_MAX = 256
_TEXT_MAX = 64 << 10
_PIPE_BYTES = 1 << 20
"""Large enough for the text of a batch: a process can go on while another one's is read."""
_PROCESSES_MAX = 16


@attrs.frozen
class Work(Generic[Made]):
    """What is made of a stream. Results must be picklable."""

    of_exchanges: Make[Made]
    """Results for the exchanges of a group."""
    of_end: Callable[[ConnectionEnd], Iterable[Made]]
    """Results for the end of a connection."""
    of_rows: Count[Made] | None = None
    """A result for the rows of a batch, of which it leaves those that must be exchanges."""


def spread(stream: Stream, work: Work[Made], processes: int | None = None) -> Iterator[Made]:
    """Yield what is made of a stream, in order. Small recordings, and those that cannot be split,
    are read in this process.

    Raises: RecordingError, as `Stream.shown`.
    """
    process_count = processes_for(stream) if processes is None else processes
    if process_count < 2:
        yield from _results(stream, work)
        return
    workers: list[_Worker] = []
    try:
        for index in range(process_count):
            workers.append(_start(stream, work, (index, process_count), workers))
        turn = 0
        while not workers[turn % process_count].done:
            yield from workers[turn % process_count].batch(stream)
            turn += 1
        for worker in workers:  # results after the last batch
            while not worker.done:
                yield from worker.batch(stream)
    finally:
        for worker in workers:
            worker.end()


def _results(stream: Stream, work: Work[Made]) -> Iterator[Made]:
    for each in stream.shown(work.of_rows, work.of_exchanges):
        if isinstance(each, ConnectionEnd):
            yield from work.of_end(each)
        else:
            yield cast(Made, each)  # an Exchange is not among them: `of_exchanges` has taken it


def processes_for(stream: Stream) -> int:
    """Return the number of processes to use. Recordings that are still written, or were cut off,
    are read by one: it pairs the frames that have no row yet. So is an exchange by its number: it
    is found before others have begun."""
    if stream.wanted is not None and "number" in stream.wanted.names:
        return 1
    if not hasattr(os, "fork") or not hasattr(os, "sched_getaffinity"):
        return 1
    cores = len(os.sched_getaffinity(0)) - _others_running()
    if cores < 2:  # on busy cores, processes would only wait for each other
        return 1
    try:
        files = recordings(stream.paths)
        large = sum(path.stat().st_size for path in files) >= LARGE_BYTES
        return min(_PROCESSES_MAX, cores) if large and all(map(_is_complete, files)) else 1
    except (OSError, RecordingError):
        return 1  # the reader reports the error


def _others_running() -> int:
    """Return about how many others want a core now: no more than in the last minute, which counts
    what has ended since, such as the last `show`, nor than at this moment, which may be a bad one.
    """
    in_last_minute = int(os.getloadavg()[0])
    try:
        at_this_moment = LOAD.read_text().split()[3].partition("/")[0]
        return min(in_last_minute, int(at_this_moment) - 1)  # that counts this process, too
    except (OSError, ValueError, IndexError):
        return in_last_minute


def _is_complete(path: Path) -> bool:
    with RecordingFile(path) as file:
        return file.complete


# ---------------------------------------------------------------- here

_RESULTS, _NOTE, _BATCH, _ERROR, _DONE = "results", "note", "batch", "error", "done"
"""Kinds of messages from a process, each with a value: results, a note, the end of one of its
batches (bytes read so far), an error, the end (number of exchanges)."""


@attrs.define(eq=False)
class _Worker:
    """A process that helps, and the pipe from it."""

    pid: int
    pipe: BinaryIO
    done: bool = False

    def batch(self, stream: Stream) -> Iterator[Any]:
        """Yield the results of its next batch.

        Raises: RecordingError.
        """
        while True:
            kind, value = self._message(stream)
            if kind == _RESULTS:
                yield from value
            elif kind == _NOTE:
                stream.add_note(value)
            elif kind == _ERROR:
                raise value
            elif kind == _BATCH:
                stream.on_progress(value)
                return
            else:
                stream.add_exchange_count(value)
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
        """Kill the process, whether it is done or not."""
        self.pipe.close()
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _start(
    stream: Stream,
    work: Work[Any],
    shard: tuple[int, int],
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
        _work(stream, work, shard, writing)
    os.close(writing)
    return _Worker(pid, os.fdopen(reading, "rb"))


# ---------------------------------------------------------------- in the other process


def _work(
    stream: Stream,
    work: Work[Any],
    shard: tuple[int, int],
    writing: int,
) -> NoReturn:
    """Do the work of one process and exit: the code that called this must not continue there."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the reader of the pipe ends it
        with os.fdopen(writing, "wb") as pipe:
            sender, ends_in = _Sender(pipe), stream.ends_finder()

            def on_note(note: Note) -> None:
                sender.send(_NOTE, note)
                for end in ends_in(note):
                    sender.send_results(work.of_end(end))

            def on_progress(done_bytes: int) -> None:
                sender.send(_BATCH, done_bytes)
                pipe.flush()

            stream.become_shard(on_note, on_progress, shard)
            try:
                sender.send_results(_results(stream, work))
                sender.send(_DONE, stream.exchange_count)
            except RecordingError as error:
                sender.send(_ERROR, error)
    except BrokenPipeError:
        pass  # nobody reads any more
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        os._exit(0)


@attrs.define(eq=False)
class _Sender:
    """Sends results, several in a message."""

    pipe: BinaryIO
    _items: list[Any] = attrs.field(factory=list[Any], init=False)
    _items_max: int = attrs.field(default=1, init=False)
    """Items per message; grows, so that the first line comes at once."""
    _size: int = attrs.field(default=0, init=False)

    def send_results(self, items: Iterable[Any]) -> None:
        """Send results; some may wait for a full message."""
        for item in items:
            self._items.append(item)
            self._size += len(item) if isinstance(item, str) else 0
            if len(self._items) >= self._items_max or self._size >= _TEXT_MAX:
                self._flush()

    def send(self, kind: str, value: Any) -> None:
        """Send another kind of message, after all results so far."""
        self._flush()
        pickle.dump((kind, value), self.pipe)

    def _flush(self) -> None:
        if self._items:
            items, self._items, self._size = self._items, [], 0
            pickle.dump((_RESULTS, items), self.pipe)
            if self._items_max < _ITEMS_MAX:
                self._items_max *= 2
                self.pipe.flush()
