"""The exchanges of recordings.

    batches ─▶ notes ─▶ who the connections are ─┐
              rows ──────────────────────────────┴─▶ Exchange ─ asked for bytes ─▶ frame(position)

What is not complete where a file ends goes on in the next file of the recording; where the last one
ends, it is given as far as it came. The note that a connection has ended comes behind its
exchanges, in the order of time. Bytes are read when they are asked for (`StoredFrames`).

Some exchanges tell what others need: the names of topic ids, beginnings of groups and producers.
They are offered to whoever keeps these (`offer_names`, `follow_beginnings`), and opened if wanted.
Schemas stand behind the records that need them, so these look ahead (`schemas_ahead`).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from kproxy.exchange import derived, endings, facts, notes, response_codes
from kproxy.exchange.beginnings import FOLLOWED
from kproxy.exchange.entities import TopicNames
from kproxy.exchange.entries import CONNECTIONS, NO_API, ExchangeRow, Frame, Note, Position, Side
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.recording_context import RecordingContext
from kproxy.exchange.unpacking import Unpacking
from kproxy.recording.file import RecordingFile, frame_bytes_in, frame_in
from kproxy.recording.files import RecordingError
from kproxy.recording.info import Info
from kproxy.recording.keeping import KEPT_FROM
from kproxy.recording.paths import Parts, goes_by, last_files, last_part, parts_beside
from kproxy.recording.reader import open_if_there
from kproxy.recording.stored import StoredBatch
from kproxy.recording.uri import Uri

if TYPE_CHECKING:
    from kproxy.exchange.filter import Filter
    from kproxy.recording.skipping import Skipper

_OPEN_FILES_MAX = 3
_KILLED = "it was killed, or the machine went down"


class Reader:
    """Reads the exchanges of files, one after the other; `on_note` gets their notes."""

    def __init__(
        self,
        on_note: Callable[[Note], None],
        wanted: Filter | None = None,
        on_progress: Callable[[int], None] = lambda done: None,
        names: Mapping[str, str] | None = None,
        unpacking: Unpacking | None = None,
    ) -> None:
        """Read all exchanges, or those that match a filter. `on_progress` gets the number of bytes
        read of all files, after every batch. With `names`, by path, exchanges are named after their
        recordings. With `unpacking`, it bounds what records unpack to, and not the default for all
        that is read."""
        self.exchange_count = 0
        """The number of exchanges so far, wanted or not."""
        self.ended_in: StoredBatch | None = None
        """The batch in which the exchange ends that was yielded last; None if it is not
        complete."""
        self._on_note = on_note
        self._wanted_anywhere = self._wanted = wanted
        self._recording_names = names or {}
        self._on_progress = on_progress
        self._finished_bytes = 0
        self._recorded_to = 0, ""
        """Where the recordings so far end, and why kproxy recorded no more."""
        self._ids: set[str | None] = set()
        """Of the recordings so far."""
        self.unpacking = Unpacking() if unpacking is None else unpacking
        """What the records of all files may unpack to."""
        self._begin()

    def _begin(self) -> None:
        self._files: list[RecordingFile] = []
        """The files of the current recording: frames may lie in an earlier file than their row."""
        self._frames = StoredFrames(self._files)
        self._batches_read = 0
        """The number of batches read of the last file."""
        self._context = RecordingContext()
        self._names = self._context.names
        self._names.unpacking = self.unpacking
        self._skipper: Skipper | None = None
        self._ended_by = ""

    def files(self, paths: Iterable[Path]) -> Iterator[Exchange]:
        """Yield all exchanges of files, in their order.

        Raises: RecordingError.
        """
        paths = list(paths)
        for path in paths:
            yield from self.file(path, len(paths) > 1)
        yield from self.finish()
        if len(paths) > 1 and (removed := _all_removed(paths[-1], self._ids)) is not None:
            self._on_note(removed)

    def file(self, path: Path, several: bool = False) -> Iterator[Exchange]:
        """Yield the exchanges that end in a file; of copies only the first is read. One of several
        may have been removed since it was found.

        Raises: RecordingError.
        """
        file = self.opened(path, several)
        if file is None:
            return
        if self._files and file.info.repeats(self.last.info):
            original = str(self.last.path)
            self._on_note(notes.copied(file.info.start_ns, str(path), original))
            file.close()
            return
        yield from self.begin(file)
        yield from self.more()
        self._finished_bytes += file.scan.offset
        if file.torn is not None:
            self._on_note(file.torn)

    def opened(self, path: Path, several: bool) -> RecordingFile | None:
        """Open a file; None, with a note, if it is one of several and is not there any more.

        Raises: RecordingError.
        """
        file = open_if_there(path, several)
        if file is None:
            self._on_note(notes.gone(self.last.end_ns if self._files else 0, str(path)))
        return file

    def begin(self, file: RecordingFile) -> Iterator[Exchange]:
        """Go on with another file; yield the remaining exchanges of the recording before, if it is
        another.

        Raises: RecordingError.
        """
        if self._files and not file.info.continues(self._files[-1].info):
            before, pause = self._files, self._pause_before(file)
            yield from self.finish()
            for earlier in before:
                earlier.close()
            self._on_note(notes.recording(file.info.start_ns, str(file.path)))
            if pause is not None:
                self._on_note(pause)
        if not self._files:
            self._names.recording = self._recording_names.get(str(file.path), "")
            if self._wanted_anywhere is not None:
                self._wanted = self._wanted_anywhere.within(functools.partial(goes_by, file.info))
        last = self.last if self._files else None
        missing = missing_before(file.info, None if last is None else last.info)
        if last is not None:
            if missing is not None:
                self._on_note(missing)
                yield from self._given(self._ended_before(file))
            file.goes_on_with(last)
        self._files.append(file)
        self._ids.add(file.info.metadata.get("recording"))
        if last is None and missing is not None:
            self._on_note(missing)  # it is of this recording
        self._names.schemas.ahead = functools.partial(_schemas_ahead, file)
        if self._wanted is not None:
            file.use_index()
        self._batches_read = 0
        for earlier in self._files[:-_OPEN_FILES_MAX]:
            earlier.close()

    def _pause_before(self, here: RecordingFile) -> Note | None:
        """Return the note on the time in which kproxy recorded nothing, between the recordings so
        far and another one in their folder: if it is left on (--keep), or was killed."""
        last = self.last
        if KEPT_FROM in last.info.metadata or KEPT_FROM in here.info.metadata:
            return None  # what an excerpt leaves out was recorded
        was_killed = last.torn is not None and not last.being_written
        why = _KILLED if was_killed else self._ended_by or "it had ended"
        self._recorded_to = max(self._recorded_to, (last.end_ns, why))
        until_ns, (from_ns, why) = here.info.start_ns, self._recorded_to
        is_left_on = "keep" in last.info.metadata and "keep" in here.info.metadata
        here_in, last_in = (str(each.path).rpartition("/")[0] for each in (here, last))
        is_next = here.info.part == 1 and here_in == last_in
        if not (is_next and (is_left_on or why == _KILLED)) or until_ns <= from_ns:
            return None
        return notes.pause(from_ns, until_ns, why)

    def _ended_before(self, file: RecordingFile) -> list[ExchangeRow]:
        """Return what ended in the parts that are missing before a file: none where that is not
        there any more, either, and its beginning was not read yet."""
        try:
            return list(self.last.end_before(file))
        except RecordingError:
            if file.path.exists():
                raise
            return []

    @property
    def frames(self) -> StoredFrames:
        """The frames of the current recording."""
        return self._frames

    @property
    def names(self) -> TopicNames:
        """The names that the current recording has told so far."""
        return self._names

    @property
    def path(self) -> Path | Uri | None:
        """The current file, if there is one."""
        return self._files[-1].path if self._files else None

    @property
    def last(self) -> RecordingFile:
        """The file that was opened last."""
        return self._files[-1]

    def more(self) -> Iterator[Exchange]:
        """Yield the exchanges that end in what was written to the last file since it was read.

        Raises: RecordingError.
        """
        file = self.last
        for batch in file.batches(self._batches_read):
            self._batches_read += 1
            yield from self.batch(file, batch)
            self._on_progress(self._finished_bytes + file.scan.offset)

    def finish(self) -> Iterator[Exchange]:
        """Yield the exchanges that are not complete; then another recording begins.

        Raises: RecordingError.
        """
        yield from self.left()
        if self.unpacking.left_out:
            end_ns = max((file.end_ns for file in self._files), default=0)
            self._on_note(notes.unread(end_ns, str(self.path), self.unpacking.left_out))
            self.unpacking.left_out.clear()
        self._begin()

    def left(self) -> Iterator[Exchange]:
        """Yield the exchanges that are not complete where the recording ends.

        Raises: RecordingError.
        """
        if not self._files:
            return
        ended_ns = max(file.end_ns for file in self._files)
        yield from self._given(self.last.left(ended_ns))

    def _given(self, rows: Iterable[ExchangeRow]) -> Iterator[Exchange]:
        """Yield exchanges that have no end in a batch, if they match."""
        for row in sorted(rows):
            self.exchange_count += 1
            exchange = self._context.exchange(row, self._frames)
            if self._matches(exchange):
                yield exchange

    def batch(self, file: RecordingFile, batch: StoredBatch) -> Iterator[Exchange]:
        """Yield the exchanges that end in a batch.

        Raises: RecordingError.
        """
        if self._skips(batch):
            self.exchange_count += batch.facts.rows if batch.facts else 0
            return
        needs_error = self._wanted is not None and self._wanted.needs_error
        closing: list[Note] = []
        for note in batch.notes:
            self._context.note(note)
            if note.body.get("event") == "stopped":
                self._ended_by = f"it was stopped by {note.body.get('by')}"
            elif note.body.get("event") == "recovered":
                self._ended_by = _KILLED
            if _closes(note):
                closing.append(note)
            else:
                self._on_note(note)
        rows = file.exchanges(batch)
        if rows:
            ends = _Endings(closing, rows)
            offer_names(self._names, rows, self._frames)
            self.exchange_count += len(rows)
            self.ended_in = batch
            for index, row in enumerate(rows):
                for note in ends.before(index, row) if ends.left else ():
                    self._on_note(note)
                if needs_error and not self._context.stuck and self._frames.is_without_error(row):
                    continue
                exchange = self._context.exchange(row, self._frames)
                if self._matches(exchange):
                    yield exchange
            self.ended_in = None
            closing = ends.left
        for note in closing:
            self._on_note(note)
        self._context.take_closed()

    def _skips(self, batch: StoredBatch) -> bool:
        if batch.facts is None or self._wanted is None:
            return False
        if self._skipper is None:
            from kproxy.recording.skipping import Skipper  # who filters nothing starts without

            self._skipper = Skipper(self._wanted, self._context)
        return self._skipper.skips(batch.facts)

    def _matches(self, exchange: Exchange) -> bool:
        return self._wanted is None or self._wanted.node.matches(exchange)


def missing_before(here: Info, before: Info | None) -> Note | None:
    """Return the note on the parts that are missing between a file and the one that is read before
    it, or before it, if that is of another recording; None if none is."""
    first = 1 if before is None or not here.continues(before) else before.part + 1
    if here.part <= first:
        return None
    beside = len(set(range(first, here.part)).intersection(parts_beside(here)))
    missing = str(here.path), here.part, first, beside, _removal(here)
    return notes.missing(here.start_ns, *missing)


def pauses(found: Sequence[Parts]) -> list[Note]:
    """Return the notes on the times between recordings in which kproxy recorded nothing, for who
    reads each recording by itself.

    Raises: RecordingError.
    """
    from kproxy.exchange.filter import parse  # who filters nothing starts without

    told: list[Note] = []

    def on_note(note: Note) -> None:
        if note.body.get("event") == "pause":
            told.append(note)

    if len(found) > 1:
        ends = dict.fromkeys(path for each in found for path in (each.paths[0], each.paths[-1]))
        for _ in Reader(on_note, parse("number:0")).files(ends):
            pass
    return told


def schemas_ahead(path: Path | Uri | str, offset: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the bodies of the notes on schemas from the batch at an offset on, as far as they can
    be read; then those of the last file of its recording beside it, which repeats all before.

    A schema is asked for when a record names it, so its note stands behind that record. Who finds
    an id that is not known looks ahead once; the pass itself stays where it is.
    """
    with contextlib.suppress(RecordingError):  # whoever reads that part reports it
        with RecordingFile(path) as file:
            file.skip_to(offset)
            for note in file.events("schema"):
                yield note.body
            last = last_part(file.info)
        if last is not None:
            yield from schemas_ahead(last)


def _schemas_ahead(file: RecordingFile) -> Iterator[dict[str, Any]]:
    # Other tools cut batches elsewhere: one may go on behind where the pass is.
    return schemas_ahead(file.path, file.scan.offset if file.info.native else 0)


def _all_removed(last: Path, there: Collection[str | None]) -> Note | None:
    """Return the note on the recordings of which nothing is left, as the last file tells; None if
    there are none. `there` are the ids of those that are."""
    removed: dict[str, tuple[int, str]] = {}
    with contextlib.suppress(RecordingError), RecordingFile(last) as file:
        for note in file.events("removed") if "keep" in file.info.metadata else ():
            match note.body:
                case {"recording": str(recording), "last_part": int(part), "by": str(by)}:
                    if recording not in there:
                        removed[recording] = part, by
        if removed:
            parts, options = zip(*removed.values(), strict=True)
            return notes.all_removed(file.end_ns, len(removed), sum(parts), options[-1])
    return None


def _removal(here: Info) -> tuple[int, str] | None:
    """Return the last part of a file's recording that is known to be removed, and by which option;
    None if it was recorded without one. The last file of a recording tells: at its beginning it
    repeats the notes of those before. A later recording removes the parts that an earlier one has
    left."""
    by = here.metadata.get("keep")
    if by is None or not isinstance(here.path, Path):
        return None
    removed_to, recording = 0, here.metadata.get("recording")
    for path in last_files(here.path.parent):
        with contextlib.suppress(RecordingError), RecordingFile(path) as file:
            for note in file.events("removed"):
                match note.body:
                    case {"recording": told, "first_part": int(first), "last_part": int(last)}:
                        if told == recording and first <= removed_to + 1 and last > removed_to:
                            removed_to, by = last, note.body.get("by", by)
                if removed_to >= here.part - 1:
                    return removed_to, by
    return removed_to, by


def _closes(note: Note) -> bool:
    return note.channel == CONNECTIONS and note.body.get("event") == "closed"


class _Endings:
    """The ends of connections in a batch: each comes before exchanges that completed after it, and
    behind all exchanges of its own connection."""

    def __init__(self, closing: list[Note], rows: list[ExchangeRow]) -> None:
        self.left = sorted(closing, key=lambda note: note.time_ns)
        """The ends that have not been given yet, in the order of their times."""
        self._last: dict[int, int] = {}
        """The index of a connection's last row."""
        if closing:
            self._last = {row.connection: index for index, row in enumerate(rows)}

    def before(self, index: int, row: ExchangeRow) -> Iterator[Note]:
        """Yield the ends that come before a row."""
        completed_ns = derived.completed_ns(row)
        while self.left and self.left[0].time_ns < completed_ns:
            if self._last.get(endings.connection(self.left[0].body), -1) >= index:
                return
            yield self.left.pop(0)


# ---------------------------------------------------------------- frames

# A look into the enum, for each frame, would cost more than finding its position.
_CLIENT, _BROKER = Side.CLIENT, Side.BROKER


@attrs.define(eq=False)
class StoredFrames:
    """The frames of the exchanges of one recording; see `exchange.Frames`."""

    files: list[RecordingFile]
    _native: tuple[int, bool] = attrs.field(default=(0, True), init=False)
    """How many files were looked at, and whether kproxy wrote all of them."""

    def frame(self, row: ExchangeRow, side: Side) -> Frame | None:
        """Open a frame of an exchange. Tools that leave pieces out move the others: then another
        exchange's lies at its place, and is not given."""
        place = row.request_position if side is _CLIENT else row.response_position
        position = Position.of(place)
        found = None if position is None else frame_in(self.files, position)
        return found if found is not None and found.number == row.number else None

    def data(self, row: ExchangeRow, side: Side) -> bytes | None:
        """Open a frame of an exchange and return its bytes alone, which is faster."""
        if self._native[0] != len(self.files):
            self._native = len(self.files), all(each.info.native for each in self.files)
        if not self._native[1]:
            found = self.frame(row, side)
            return None if found is None else found.data
        place = row.request_position if side is _CLIENT else row.response_position
        return frame_bytes_in(self.files, place)

    def is_without_error(self, row: ExchangeRow) -> bool:
        """Return whether an exchange that went its ordinary way has no error; it is not decoded."""
        if row.request_flags or row.response_flags or row.api_key == NO_API:
            return False
        data = self.data(row, _BROKER)
        read = response_codes.reader(row.api_key, row.api_version)
        return data is None or read(data, 0, len(data)) is None

    def decodable(self, row: ExchangeRow) -> Frame | None:
        """Open the response of an exchange; None if its body is not complete."""
        response = self.frame(row, _BROKER)
        return response if facts.decodable(response) else None


def offer_names(names: TopicNames, rows: Sequence[ExchangeRow], frames: StoredFrames) -> None:
    """Offer the responses of exchanges that may tell the names of topic ids; follow those that tell
    of a beginning."""
    follow_beginnings(names, rows, frames)
    if names.wants_any and any(
        names.wants(*kind) for kind in {(row.api_key, row.api_version) for row in rows}
    ):
        for row in rows:
            if names.wants(row.api_key, row.api_version) and row.response_position:
                names.offer_unopened(functools.partial(frames.decodable, row))


def follow_beginnings(names: TopicNames, rows: Sequence[ExchangeRow], frames: StoredFrames) -> None:
    """Offer to follow exchanges that tell of a beginning."""
    for row in rows:
        if row.api_key in FOLLOWED:
            names.beginnings.offer(functools.partial(_follow, names, row, frames))


def _follow(names: TopicNames, row: ExchangeRow, frames: StoredFrames) -> None:
    asked, answered = frames.data(row, _CLIENT), frames.data(row, _BROKER)
    key, version = row.api_key, row.api_version
    request = facts.request_body(asked, row.request_flags)
    response, _ = facts.response_body(answered, row.response_flags, key, version)
    names.beginnings.follow(key, request, response, row.request_received_ns)
