"""Converts recordings of format 2, which held Arrow tables: frames, and rows of exchanges.

    file of format 2 ─▶ tables, by pyarrow ─▶ Frame, Note ─▶ Writer ─▶ a log, in the user's cache

Format 2 was never released. Whoever opens a file of it reads its conversion (`converted`). A row
came with the last frame of its exchange, sometimes in a later batch; so rows are read first, and
frames get their times from them. It needs the extra `tables`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import struct
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs

from kproxy import __version__
from kproxy.exchange import notes
from kproxy.exchange.entries import (
    CONNECTIONS,
    EVENTS,
    FRAGMENT,
    MORE,
    UNANSWERED,
    UNKNOWN_NS,
    ExchangeRow,
    Frame,
    Note,
    Side,
    Splice,
)
from kproxy.printable import printable
from kproxy.recording.encoding import Encoder, end_of, with_row
from kproxy.recording.files import (
    FormerFormatError,
    RecordingError,
    cache_folder,
    make_folder,
    open_recording,
    reason,
)
from kproxy.recording.info import Info
from kproxy.recording.layout import FORMER_VERSION
from kproxy.recording.mcap import MESSAGE_HEAD
from kproxy.recording.paths import parts_beside
from kproxy.recording.scan import Scan
from kproxy.recording.source import RecordingSource
from kproxy.recording.stored import read_messages
from kproxy.recording.writer import Writer

_FRAMES, _EXCHANGES, _CONNECTIONS, _EVENTS = 1, 2, 3, 4
TOPICS = {
    "/kafka/frames": _FRAMES, "/kafka/exchanges": _EXCHANGES,
    "/kafka/connections": _CONNECTIONS, "/kafka/events": _EVENTS,
}  # fmt: skip
_NOTES = {_CONNECTIONS: CONNECTIONS, _EVENTS: EVENTS}
_PLACES = frozenset(("request_position", "response_position"))
_SPLICE = struct.Struct("<III")
_CHUNKS_MAX = 1 << 17
"""The numbers of chunks of each file of a recording: every file is converted by itself."""
_Row = dict[str, Any]


@attrs.define(eq=False)
class _Format2Batch:
    """A batch: its frames, the rows of its exchanges, its notes."""

    frames: list[_Row] = attrs.field(factory=list)
    rows: list[ExchangeRow] = attrs.field(factory=list)
    notes: list[Note] = attrs.field(factory=list)
    end_ns: int = 0


def converted(path: Path) -> Path:
    """Return the conversion of a recording of format 2 in the user's cache; make it, if there is
    none of the file as it is now. The first time, say on stderr that it is read.

    Raises: RecordingError, also when it cannot be written.
    """
    about = path.stat()
    return _converted(path, path.resolve(), about.st_size, about.st_mtime_ns)


@functools.lru_cache(maxsize=1024)
def _converted(path: Path, whole: Path, size: int, mtime_ns: int) -> Path:
    former = f"has the former format {FORMER_VERSION}"
    folder = cache_folder("converted")
    try:
        if folder is None:
            raise OSError("there is no home folder")
        name = hashlib.sha256(str(whole).encode()).hexdigest()[:32]
        found = folder / f"{name}-{size}-{mtime_ns}.mcap"
        if not found.exists():
            make_folder(folder)
            with tempfile.TemporaryDirectory(dir=folder) as unfinished:
                new = Path(unfinished) / found.name
                convert(path, new, completes=False)
                for outdated in folder.glob(f"{name}-*"):
                    outdated.unlink(missing_ok=True)
                os.replace(new, found)
    except OSError as error:
        what = f"{former}, and cannot be converted in {folder} ({reason(error)})"
        advice = f"`kproxy recover {path} --out NEW` does that elsewhere"
        raise FormerFormatError(path, None, f"{what}: {advice}") from None
    keeping = f"`kproxy recover {path} --out NEW` keeps that"
    print(printable(f"{path} {former}: read as converted; {keeping}"), file=sys.stderr)
    return found


def convert(path: Path, to: Path, *, completes: bool = True) -> tuple[int, int | None]:
    """Write the entries of a recording of format 2 to a path that is free, as far as the file goes;
    return their number, and that of the bytes that are left out at the end of a torn file, None if
    it is whole. Without `completes` what is made of a torn one is torn, too.

    Raises: RecordingError; OSError, when the new file cannot be written.
    """
    info, batches, dropped_bytes = _read(path)
    if dropped_bytes is not None and completes:
        end_ns = batches[-1].end_ns if batches else info.start_ns
        batches.append(_Format2Batch(notes=[notes.recovered(end_ns, dropped_bytes)]))
    rows = {row.number: row for batch in batches for row in batch.rows}
    own = {"format_version", "kproxy_min", "schema_id", "start_ns", "head_crc32"}
    metadata = {name: text for name, text in info.metadata.items() if name not in own}
    writer = Writer(
        to, start_ns=info.start_ns, schema_id=info.schema_id, library_version=__version__,
        metadata=metadata, encoder=_encoder(info, batches),
    )  # fmt: skip
    count = 0
    try:
        for batch in batches:
            entries = list(_entries(batch, rows))
            writer.write(entries)
            count += len(entries)
        if completes or dropped_bytes is None:
            writer.close()
    finally:
        writer.abandon()
    return count, dropped_bytes


def _read(path: Path) -> tuple[Info, list[_Format2Batch], int | None]:
    """Return what a file holds, and how many bytes it has behind that, None if it is whole."""
    with open_recording(path) as file:
        scan = begin(RecordingSource(path, file))
        if scan.info.format_version not in (0, FORMER_VERSION):
            what = f"does not have the former format {FORMER_VERSION}: nothing to convert"
            raise RecordingError(path, None, what)
        batches = list(_batches(scan))
        dropped_bytes = os.fstat(file.fileno()).st_size - scan.offset
    return scan.info, batches, None if scan.torn is None else dropped_bytes


def _encoder(info: Info, batches: list[_Format2Batch]) -> Encoder:
    """Return the encoder of a file. If that begins inside a frame, it knows where the conversion of
    the file before it, if that is beside it, has the first pieces."""
    encoder = Encoder(max(0, info.part - 1) * _CHUNKS_MAX + 1)
    whole: set[tuple[int, int]] = set()
    for run in (run for batch in batches for run in batch.frames):
        side = run["connection"], run["side"]
        if run["flags"] & FRAGMENT and side not in whole:
            before = parts_beside(info).get(info.part - 1)
            if before is not None:
                earlier, its, _ = _read(before)
                rows = {row.number: row for batch in its for row in batch.rows}
                former = _encoder(earlier, its)
                for batch in its:
                    for _ in former.chunks(_entries(batch, rows)):
                        pass
                encoder.goes_on(former)
            break
        whole.add(side)
    return encoder


def begin(source: RecordingSource) -> Scan:
    """Return the pass over a file of format 2, behind its head.

    Raises: RecordingError.
    """
    scan = Scan(source, topics=TOPICS, version=FORMER_VERSION)
    scan.read_head()
    scan.index = None  # the summary is that of other channels
    return scan


def _batches(scan: Scan) -> Iterator[_Format2Batch]:
    """Yield the batches of a file.

    Raises: RecordingError.
    """
    try:
        import pyarrow as pa
    except ImportError:
        what = (
            f"has the former format {FORMER_VERSION}: to convert it,"
            " pip install 'kproxy-kafka[tables]'"
        )
        raise FormerFormatError(scan.source.path, None, what) from None
    batch, number = _Format2Batch(), -1
    for chunk in scan.chunks():
        for message in read_messages(scan, chunk):
            kind = message.channel
            data = bytes((chunk.records or b"")[message.start + MESSAGE_HEAD.size : message.end])
            begins = kind == _FRAMES and (batch.frames or batch.rows or batch.notes)
            if number >= 0 and (message.sequence != number or begins):
                yield batch
                batch = _Format2Batch()
            number = message.sequence
            batch.end_ns = chunk.end_ns
            try:
                if kind in _NOTES:
                    batch.notes.append(Note(_NOTES[kind], message.log_ns, json.loads(data)))
                else:
                    stream = pa.py_buffer(scan.head.schemas[kind] + data)
                    rows = pa.ipc.open_stream(stream).read_all().to_pylist()
                    if kind == _FRAMES:
                        batch.frames += rows
                    else:
                        batch.rows += map(_row, rows)
            except (ValueError, KeyError, OSError, pa.ArrowException) as error:
                raise scan.source.damage(chunk.offset, str(error)) from None
    yield batch


def _entries(batch: _Format2Batch, rows: dict[int, ExchangeRow]) -> Iterator[Frame | Note]:
    """Yield the entries of a batch in their order."""
    ended = [row for row in batch.rows if row.response_flags & UNANSWERED]
    given = 0
    for run in batch.frames:
        yield from _noted(batch.notes[given : run["notes"]], ended)
        given = max(given, run["notes"])
        for frame in _frames(run, rows):
            if frame.flags & UNANSWERED:
                ended = [row for row in ended if row.number != frame.number]
            yield frame
    yield from _noted(batch.notes[given:], ended)
    yield from map(end_of, ended)


def _noted(notes: Iterable[Note], ended: list[ExchangeRow]) -> Iterator[Frame | Note]:
    """Yield notes; before the end of a connection, those of its exchanges."""
    for note in notes:
        if note.body.get("event") == "closed":
            own = [row for row in ended if row.connection == note.body.get("connection")]
            for row in own:
                ended.remove(row)
                yield end_of(row)
        event = note.body.get("event")
        if note.channel == EVENTS and event == "pending":
            yield _without_places(note)
        elif note.channel != EVENTS or event != "batches":  # an index of this format
            yield note


def _without_places(note: Note) -> Note:
    """Return a note on pending exchanges without the places of their frames, which are others."""
    columns = note.body["columns"]
    rows = [
        [0 if name in _PLACES else value for name, value in zip(columns, each, strict=False)]
        for each in note.body["exchanges"]
    ]
    return attrs.evolve(note, body=note.body | {"exchanges": rows})


def _frames(run: _Row, rows: dict[int, ExchangeRow]) -> Iterator[Frame]:
    """Yield the frames of a run."""
    data, heads, side = run["data"], run["heads"], Side(run["side"])
    sizes = run["sizes"] or [len(data)]
    at = 0
    for nth, size in enumerate(sizes):
        part = data[at : at + size]
        at += size
        number, frame_bytes = run["number"] + nth, size
        if len(heads) == 6 and len(sizes) == 1:
            number, api_key, api_version, correlation_id, frame_bytes, _ = heads
        elif side is Side.CLIENT:
            _, api_key, api_version, correlation_id = struct.unpack_from(">ihhi", part)
        else:
            number, api = heads[2 * nth : 2 * nth + 2]
            api_key, api_version = api >> 16, (api & 0xFFFF ^ 0x8000) - 0x8000
            correlation_id = int.from_bytes(part[4:8], "big", signed=True)
        frame = Frame(
            side, run["connection"], number, api_key, api_version, correlation_id,
            run["received_ns"], [part] if part else [], frame_bytes, run["flags"], run["sent_ns"],
            splices=tuple(_splices(run["splices"])),
        )  # fmt: skip
        yield _timed(frame, rows.get(number))


def _timed(frame: Frame, row: ExchangeRow | None) -> Frame:
    """Return a frame with what the row of its exchange knows of it."""
    if frame.flags & UNANSWERED:
        return frame if row is None else end_of(row)
    if row is None:  # the file ends before it
        return attrs.evolve(frame, fault_ns=UNKNOWN_NS)
    more: dict[str, Any] = {}
    if frame.side is Side.BROKER or not row.response_bytes:
        more = {"fault_ids": row.fault_ids, "fault_ns": row.fault_ns, "behind": row.held_behind}
    if frame.side is Side.CLIENT:
        sent_ns = row.request_sent_ns or frame.sent_ns
        return attrs.evolve(frame, sent_ns=sent_ns, withheld=not sent_ns, **more)
    if frame.flags & FRAGMENT and frame.flags & MORE:
        return frame
    withheld = not row.response_sent_ns
    frame = with_row(frame, row)
    return attrs.evolve(frame, withheld=withheld, error_code=row.error_code, **more)


def _row(values: _Row) -> ExchangeRow:
    known: _Row = {name: value for name, value in values.items() if name in ExchangeRow._fields}
    known["fault_ids"] = tuple(values["fault_ids"])
    return ExchangeRow(**known)


def _splices(data: bytes) -> Iterator[Splice]:
    at = 0
    while at < len(data):
        offset, length, size = _SPLICE.unpack_from(data, at)
        at += _SPLICE.size + size
        yield offset, length, data[at - size : at]
