"""The input of views: exchanges and ends of connections, in order of completion.

paths ─▶ read ─▶ Exchange · ConnectionEnd
           └ notes on the recordings themselves (torn, damaged, lost) ─▶ `notices`
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from kproxy.exchange.endings import ConnectionEnd, connection_end
from kproxy.exchange.entries import CONNECTIONS, Frame, Note
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.pairing import Pairing
from kproxy.recording import RecordingError
from kproxy.recording.exchanges import Reader
from kproxy.recording.following import FileFollower, Follow
from kproxy.recording.notices import Notices
from kproxy.recording.paths import Parts, by_recording, ids, names
from kproxy.recording.reader import starting

if TYPE_CHECKING:
    from kproxy.exchange.filter import Filter

_CLOSED = (CONNECTIONS, "closed")


@attrs.define(eq=False)
class Stream:
    """Reads recordings once: their exchanges, ends of connections and notes."""

    paths: Sequence[Path | str]
    wanted: Filter | None = None
    on_note: Callable[[Note], None] | None = None
    """Called with every note."""
    ends: bool | None = None
    """True: with all ends of connections, False: with none; None: with those that match."""
    on_progress: Callable[[int], None] = lambda done_bytes: None
    """Called with the bytes of the recordings that were read so far."""
    _notices: Notices = attrs.field(factory=Notices, init=False)
    recording: str | None = attrs.field(default=None, init=False)
    """The id of the recording of the item yielded last; None if there is only one recording."""
    file: str = attrs.field(default="", init=False)
    """The path of the file of the item yielded last, or of the latest note."""
    exchange_count: int = attrs.field(default=0, init=False)
    """Number of exchanges, whether they match or not; known when all are read."""

    @property
    def notices(self) -> list[str]:
        """Sentences on damage and loss in the recordings, as far as they have been read."""
        return self._notices.texts

    @functools.cached_property
    def recordings(self) -> list[Parts]:
        """The recordings that the paths stand for.

        Raises:
            RecordingError: a path is not there, or not a recording.
        """
        with self._errors():
            return by_recording(self.paths)

    @contextlib.contextmanager
    def _errors(self) -> Generator[None]:
        """Raise RecordingError for errors of the operating system."""
        try:
            yield
        except OSError as error:
            where = error.filename or ", ".join(map(str, self.paths))
            raise RecordingError(where, None, f"cannot be read: {error.strerror}") from None

    def exchanges(self) -> Iterator[Exchange]:
        """Yield the exchanges that match the filter.

        Raises:
            RecordingError: a path is not there, not a recording, or damaged.
        """
        return (each for each in self.shown() if isinstance(each, Exchange))

    def shown(self) -> Iterator[Exchange | ConnectionEnd]:
        """Yield exchanges and ends of connections.

        Raises:
            RecordingError: a path is not there, not a recording, or damaged.
        """
        return (each for each in self._read(Follow.NO) if each is not None)

    def growing(self, follow: Follow = Follow.ALWAYS) -> Iterator[Exchange | ConnectionEnd | None]:
        """Yield the same of a recording as it grows, and None wherever there is no more for now.

        Raises:
            RecordingError: a path is not there, not a recording, or damaged.
        """
        return self._read(follow)

    def _read(self, follow: Follow) -> Iterator[Exchange | ConnectionEnd | None]:
        ends: list[tuple[str | None, ConnectionEnd]] = []
        id_by_path: dict[str, str] = {}
        file: object = None
        recording: str | None = None

        def at_file() -> None:
            nonlocal file, recording
            # Between two recordings there is none: what comes is of the one before.
            if reader.path is not None and reader.path is not file:
                file, self.file = reader.path, str(reader.path)
                recording = id_by_path.get(self.file)
            self.recording = recording  # an end that came last may be of another one

        def on_note(note: Note) -> None:
            at_file()
            ends.extend((self.recording, end) for end in connection_ends(note) if wants_end(end))
            self.add_note(note)

        with self._errors():
            named = self.recordings
            wanted = None if self.wanted is None else starting(self.wanted, named)
            wants_end = self._wants_end(wanted)
            if len(named) > 1:
                id_by_path = ids(named)
            given = on_note, wanted, self.on_progress, names(named)
            files = [path for each in named for path in each.paths]
            follower = None if follow is Follow.NO else FileFollower(files, *given, follow)
            reader = Reader(*given) if follower is None else follower.reader
            try:
                for found in reader.files(files) if follower is None else follower.found():
                    if ends:
                        yield from self._ended(ends)
                    at_file()
                    yield found
            except (RecordingError, OSError):
                yield from self._ended(ends)  # they were told before the damage
                raise
            self.exchange_count += reader.exchange_count
        yield from self._ended(ends)

    def count_unopened(self) -> int:
        """Count the exchanges, whether they match or not.

        Raises: RecordingError.
        """
        with self._errors():
            reader = Reader(self.add_note)
            files = itertools.chain.from_iterable(each.paths for each in self.recordings)
            for _ in reader.files(files):
                pass
            return reader.exchange_count

    def _ended(self, ends: list[tuple[str | None, ConnectionEnd]]) -> Iterator[ConnectionEnd]:
        """Yield ends of connections, each with `recording` set to its own, and clear the list."""
        for self.recording, end in ends:
            yield end
        ends.clear()

    def _wants_end(self, wanted: Filter | None) -> Callable[[ConnectionEnd], bool]:
        """Return the function that says whether the end of a connection is among the items."""
        if self.ends is not None or wanted is None:
            return lambda end: self.ends is not False
        return wanted.matches_end

    def add_note(self, note: Note) -> None:
        """Take a note; if it reports damage or loss in the recordings, add a notice."""
        if self.on_note is not None:
            self.on_note(note)
        self._notices.note(note)


def connection_ends(note: Note) -> list[ConnectionEnd]:
    """Return the end of a connection that a note reports, if it does: none or one."""
    closed = (note.channel, str(note.body.get("event"))) == _CLOSED
    return [connection_end(note)] if closed else []


def paired(
    entries: Iterable[Frame | Note], pairing: Pairing | None = None
) -> Iterator[Exchange | ConnectionEnd]:
    """Yield the exchanges in a stream of entries, and the ends of connections, in order.

    With a `pairing`, exchanges that are not complete stay in it; without, the stream ends here.
    """
    one = pairing or Pairing()
    for entry in entries:
        yield from one.feed(entry)
        if type(entry) is Note:
            yield from connection_ends(entry)
    if pairing is None:
        yield from one.finish()
