"""What views read of recordings: exchanges and ends of connections, in order of completion.

paths ─▶ read ─▶ Exchange · ConnectionEnd
           └ notes on the recordings themselves (torn, damaged, lost) ─▶ `notices`
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import attrs

from kproxy.exchange.endings import ConnectionEnd, connection_end
from kproxy.exchange.entries import CONNECTIONS, EVENTS, Frame, Note
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import Filter
from kproxy.exchange.pairing import Pairing
from kproxy.recording import RecordingError
from kproxy.recording.columns import Count, Made
from kproxy.recording.exchanges import Reader
from kproxy.recording.notices import notice
from kproxy.recording.reader import by_recording, names, starting

_CLOSED = (CONNECTIONS, "closed")


@attrs.define(eq=False)
class Stream:
    """Some recordings, read once."""

    paths: Sequence[Path | str]
    wanted: Filter | None = None
    heard: Callable[[Note], None] | None = None
    """Is told of every note."""
    ends: bool | None = None
    """Whether ends of connections are shown; by default where there is no filter."""
    passed: Callable[[int], None] = lambda done: None
    """Is told how many bytes of the recordings were read."""
    share: tuple[int, int] = (0, 1)
    """Of which batches: see `Reader`."""
    notices: list[str] = attrs.field(factory=list[str], init=False)
    """What a reader must know of the state of the recordings, as far as they have been read."""
    recording: str | None = attrs.field(default=None, init=False)
    """What the recording is called that what was shown last is of, where there are several."""
    exchange_count: int = attrs.field(default=0, init=False)
    """How many exchanges there were, wanted or not; known at the end of the reading."""

    @property
    def shows_ends(self) -> bool:
        """Whether ends of connections are shown."""
        return self.wanted is None if self.ends is None else self.ends

    def exchanges(self) -> Iterator[Exchange]:
        """Yield the exchanges that are wanted.

        Raises:
            RecordingError: a path is not there, not a recording, or damaged.
        """
        return (each for each in self.shown() if isinstance(each, Exchange))

    def shown(self, count: Count[Made] | None = None) -> Iterator[Exchange | ConnectionEnd | Made]:
        """Yield what becomes a line; with a `count`, what it makes of rows that are no exchanges
        then.

        Raises:
            RecordingError: a path is not there, not a recording, or damaged.
        """
        ends: list[tuple[str | None, ConnectionEnd]] = []
        called: dict[str, str] = {}

        def told(note: Note) -> None:
            self.recording = called.get(str(reader.path), self.recording)
            if self.shows_ends:
                ends.extend((self.recording, end) for end in connection_ends(note))
            self.note(note)

        try:
            wanted = None if self.wanted is None else starting(self.wanted, self.paths)
            found_files = by_recording(self.paths)
            if len(found_files) > 1:
                called = names(found_files)
            reader = Reader(told, wanted, self.passed, self.share)
            for found in reader.files(itertools.chain(*found_files), count):
                yield from self._ended(ends)
                self.recording = called.get(str(reader.path), self.recording)
                yield found
            self.have_read(reader.exchange_count)
        except OSError as error:
            where = error.filename or ", ".join(map(str, self.paths))
            raise RecordingError(where, None, f"cannot be read: {error.strerror}") from None
        yield from self._ended(ends)

    def _ended(self, ends: list[tuple[str | None, ConnectionEnd]]) -> Iterator[ConnectionEnd]:
        """Yield ends of connections, of the recordings that they were told in, and forget them."""
        for self.recording, end in ends:
            yield end
        ends.clear()

    def become_share(
        self, heard: Callable[[Note], None], passed: Callable[[int], None], share: tuple[int, int]
    ) -> None:
        """Become what one of several processes reads; ends of connections are in its notes."""
        self.heard, self.ends, self.passed, self.share = heard, False, passed, share

    def have_read(self, exchange_count: int) -> None:
        """So many exchanges have been read, to the end."""
        self.exchange_count += exchange_count

    def note(self, note: Note) -> None:
        """Take a note: of what it reports of the recordings there will be a notice."""
        if self.heard is not None:
            self.heard(note)
        found = notice(note)
        if found is not None:
            self.notices.append(found)


def exchange_count(paths: Sequence[Path | str]) -> int:
    """How many exchanges there are in recordings, counted without opening them.

    Raises: RecordingError.
    """
    stream = Stream(paths, ends=False)
    deque(stream.shown(lambda rows: (bytes(len(rows)), None)), 0)
    return stream.exchange_count


def refuse_another_recording(note: Note) -> None:
    """Stop where another recording begins: its connections and exchanges have the same numbers.

    Raises:
        RecordingError: this note says that one begins.
    """
    if note.channel == EVENTS and note.body.get("event") == "recording":
        raise another_recording(str(note.body.get("path")))


def another_recording(path: Path | str) -> RecordingError:
    """Why a file cannot be told of together with those before it."""
    what = "begins another recording, with the same numbers: give the files of one"
    return RecordingError(path, None, what)


def connection_ends(note: Note) -> list[ConnectionEnd]:
    """The end of a connection that a note tells of, if it does."""
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
