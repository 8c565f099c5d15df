"""Entries and files for the tests of recordings."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import attrs
import mcap.reader
import mcap.records
import mcap.writer
from hypothesis import strategies as st
from mcap.stream_reader import StreamReader

from kproxy.exchange.entries import (
    CONNECTIONS,
    EVENTS,
    FAULTED,
    FRAGMENT,
    INJECTED,
    MORE,
    NO_RESPONSE,
    OPAQUE,
    RAW_SASL,
    REDACTED,
    REWRITTEN,
    TRUNCATED,
    UNANSWERED,
    Frame,
    Note,
    Side,
)
from kproxy.recording import RecordingError, Writer, entries
from kproxy.recording.mcap import CHUNK, MESSAGE, record, string
from tests.versions import some

START_NS = 1_790_000_000_000_000_000
SETTINGS = {"start_ns": START_NS, "schema_id": "5eed5eed", "library_version": "0.1.0"}


_IN_PART = FRAGMENT | TRUNCATED | RAW_SASL | UNANSWERED


def request(number: int, body: bytes, **more: Any) -> Frame:
    """A request, received `number` ms after the start and sent on 30 µs later; its header ends with
    the correlation id. One that is not whole, or whose pieces are given, has no header."""
    received_ns = START_NS + number * 1_000_000
    frame = Frame(
        Side.CLIENT, 3, number, 0, 11, number - 5, received_ns, [body], len(body), 0,
        received_ns + 30_000,
    )  # fmt: skip
    return whole(attrs.evolve(frame, **more), more)


def response(number: int, body: bytes, **more: Any) -> Frame:
    """The response to `request(number, …)`, 400 µs after it."""
    asked_ns = START_NS + number * 1_000_000
    frame = Frame(
        Side.BROKER, 3, number, 0, 11, number - 5, asked_ns + 400_000, [body], len(body), 0,
        asked_ns + 450_000, asked_ns, asked_ns + 30_000, 200,
    )  # fmt: skip
    return whole(attrs.evolve(frame, **more), more)


def whole(frame: Frame, given: Container[str] = ()) -> Frame:
    """Put the header before the body of a frame."""
    if frame.flags & _IN_PART or "pieces" in given:
        return frame
    body = frame.data
    head = struct.pack(">i", frame.correlation_id)
    if frame.side is Side.CLIENT:
        head = struct.pack(">hh", frame.api_key, frame.api_version) + head
    data = struct.pack(">i", len(head) + len(body)) + head + body
    return attrs.evolve(frame, pieces=[data], frame_bytes=len(data))


def body(frame: Frame | bytes) -> bytes:
    """The body of a frame that `request` or `response` made, or of its bytes as a request."""
    if isinstance(frame, bytes):
        return frame[12:]
    return frame.data[12 if frame.side is Side.CLIENT else 8 :]


def opened(connection: int = 3, time_ns: int = START_NS, **more: Any) -> Note:
    """The note that a connection was opened."""
    return Note(CONNECTIONS, time_ns, {"event": "opened", "connection": connection, **more})


def event(name: str, time_ns: int = START_NS, **more: Any) -> Note:
    """A note on EVENTS."""
    return Note(EVENTS, time_ns, {"event": name, **more})


def conversation() -> list[list[Frame | Note]]:
    """Three batches with everything that a small file can hold."""
    return [
        [
            opened(client_address="127.0.0.1:5000"),
            request(1, b"abcd"),
            request(2, b"x" * 90),
        ],
        [
            event("topic_id", START_NS + 1_400_000, topic_id="x", topic="orders"),
            response(1, b"ok", flags=REWRITTEN, splices=((8, 1, b"w"),)),
            event("custom", START_NS + 1, number=1),
        ],
        [
            response(2, b"", pieces=[], frame_bytes=0, flags=32, sent_ns=0),
            request(3, b"first", flags=FRAGMENT | MORE, frame_bytes=9),
            request(3, b"last", flags=FRAGMENT, frame_bytes=9),
            Note(CONNECTIONS, START_NS + 9_000_000, {"event": "closed", "connection": 3}),
        ],
    ]  # fmt: skip


def refusing(number: int) -> Callable[..., NoReturn]:
    """What stands for a call that the system refuses with this error."""

    def refuse(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return refuse


def write(path: Path, batches: Iterable[Sequence[Frame | Note]], **settings: Any) -> Path:
    """Write a complete recording; return its path."""
    writer = Writer(path, **(SETTINGS | settings))
    for batch in batches:
        writer.write(batch)
    writer.close()
    return path


def cuts(path: Path) -> list[int]:
    """The sizes to which a file is cut: near the ends of records, and some between."""
    size = path.stat().st_size
    near = {size * position // 40 for position in range(1, 40)} | {size - 1, size - 8}
    for index in oracle(path):
        if isinstance(index, mcap.records.ChunkIndex):
            start, end = index.chunk_start_offset, index.chunk_start_offset + index.chunk_length
            near |= {edge + by for edge in (start, end) for by in (-1, 0, 1, 9)}
    return sorted((end for end in near if 0 < end < size), reverse=True)


OF_ROWS = (
    "request_received_ns", "request_sent_ns", "request_bytes", "error_code", "fault_ids",
    "fault_ns", "chunk", "queued_ns", "request_fault_ns", "request_behind",
)  # fmt: skip
"""What a frame has of its exchange's row when it is read, or only while it passes."""


def plain(entry: Frame | Note) -> tuple[Any, ...]:
    """An entry as a value that compares: the data joined, without what the exchange's row says."""
    if isinstance(entry, Note):
        return (entry.channel, entry.time_ns, entry.body)
    frame = attrs.evolve(entry, pieces=[], splices=tuple(entry.splices))
    compared = attrs.asdict(frame, filter=lambda field, _: field.name not in OF_ROWS, recurse=False)
    return (*compared.values(), entry.data)


def plains(values: Iterable[Frame | Note]) -> list[tuple[Any, ...]]:
    """`plain` of each, neighbouring pieces of one frame joined."""
    joined: list[tuple[Any, ...]] = []
    flags_at = [field.name for field in attrs.fields(Frame)].index("flags")
    more = False
    for entry in values:
        value = plain(entry)
        if isinstance(entry, Frame) and more:
            before = joined.pop()
            value = (
                *before[:flags_at],
                value[flags_at],
                *before[flags_at + 1 : -1],
                before[-1] + value[-1],
            )
        more = isinstance(entry, Frame) and bool(entry.flags & MORE)
        joined.append(value)
    return joined


# ---------------------------------------------------------------- arbitrary entries


_PLAIN = OPAQUE | REDACTED | INJECTED | FAULTED | REWRITTEN


def _frames() -> st.SearchStrategy[Frame]:
    def make(
        numbers: tuple[int, ...], times: tuple[int, ...], pieces: list[bytes], side: Side,
        flags: int, kind: int, splices: list[tuple[int, int, bytes]],
    ) -> Frame:  # fmt: skip
        size, number, connection, correlation, key, version = numbers
        received, sent = times
        sent_ns = received + sent if sent else 0
        if kind == UNANSWERED:
            side, pieces, size = Side.BROKER, [], 0
        elif kind == NO_RESPONSE:
            side = Side.CLIENT
        return whole(Frame(
            side, connection, number, key, version, correlation, received, list(pieces),
            size, flags | kind, sent_ns, splices=splices,
        ))  # fmt: skip

    i16 = st.integers(-(2**15), 2**15 - 1)
    i32 = st.integers(-(2**31), 2**31 - 1)
    time = st.integers(1, 2**62)
    delay = st.one_of(st.just(0), st.integers(1, 4_000_000_000_000))
    size = st.integers(0, 2**31 + 3)
    number = st.integers(0, 2**62)
    numbers = st.tuples(size, number, st.integers(0, 2**31 - 1), i32, i16, i16)
    pieces = st.lists(st.one_of(st.binary(max_size=300), st.just(b"j" * 20_000)), max_size=3)
    flags = st.integers(0, 2047).map(lambda flags: flags & _PLAIN)
    kinds = st.sampled_from([0, 0, 0, NO_RESPONSE, UNANSWERED, TRUNCATED, RAW_SASL])
    splices = st.lists(st.tuples(st.integers(4, 40), st.integers(0, 9), st.binary(max_size=9)))
    return st.builds(
        make, numbers, st.tuples(time, delay), pieces, st.sampled_from(Side), flags, kinds,
        st.one_of(st.just(()), splices.map(tuple)),
    )  # fmt: skip


def _notes() -> st.SearchStrategy[Note]:
    text = st.text(max_size=10)
    values = st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(-1 << 63, (1 << 63) - 1), text),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(text, inner, max_size=3)
        ),
        max_leaves=6,
    )
    # What kproxy itself says in a note has a type; here is what others may say.
    bodies = st.dictionaries(text.map("x-{}".format), values, max_size=4)
    return st.builds(Note, st.sampled_from([CONNECTIONS, EVENTS]), st.integers(0, 2**62), bodies)


batches_of_entries = st.lists(st.lists(st.one_of(_frames(), _notes()), max_size=6), max_size=4)
"""Batches of arbitrary entries."""


# ---------------------------------------------------------------- the oracle


def oracle(path: Path) -> list[mcap.records.McapRecord]:
    """Every record of a file, chunks taken apart, read by the mcap package with CRC validation."""
    with path.open("rb") as file:
        return list(StreamReader(file, validate_crcs=True).records)


def oracle_messages(path: Path, topic: str) -> list[bytes]:
    """The data of a topic's messages, found through the summary and the chunk index."""
    with path.open("rb") as file:
        reader = mcap.reader.SeekingReader(file, validate_crcs=True)
        messages = reader.iter_messages(topics=[topic], log_time_order=False)
        return [message.data for _, _, message in messages]


def oracle_accepts(data: bytes) -> bool:
    """Whether the mcap package reads these bytes as a file, reading front to back."""
    try:
        for _ in StreamReader(io.BytesIO(data), validate_crcs=True).records:
            pass
    except Exception:  # whatever it makes of nonsense
        return False
    return True


def rewrite(
    source: Path,
    target: Path,
    *,
    metadata: bool = True,
    keep_schemas: bool = True,
    change: Callable[[bytes], bytes] = bytes,
    keeps: Callable[[int, str], bool] = lambda sequence, topic: True,
    **options: Any,
) -> Path:
    """Copy a recording as other MCAP tools do: other chunks, ids and indexes, same messages, or
    what `change` makes of them; those that `keeps`, by their sequence and topic."""
    with source.open("rb") as file, target.open("wb") as out:
        writer = mcap.writer.Writer(out, **options)
        writer.start(profile="kproxy", library="some tool 1.0; kproxy 0.1.0")
        channels: dict[int, int] = {}
        topics: dict[int, str] = {}
        schemas: dict[int, int] = {}
        writer.register_schema("padding", "", b"")
        for record in StreamReader(file).records:
            if isinstance(record, mcap.records.DataEnd):
                break
            if isinstance(record, mcap.records.Schema):
                about = record.name, record.encoding, record.data
                schemas[record.id] = writer.register_schema(*about)
            if isinstance(record, mcap.records.Metadata) and metadata:
                writer.add_metadata(record.name, record.metadata)
            if isinstance(record, mcap.records.Channel):
                writer.register_channel("/other", "json", 0)
                topics[record.id] = record.topic
                channels[record.id] = writer.register_channel(
                    record.topic,
                    record.message_encoding,
                    schemas[record.schema_id] if keep_schemas else 0,
                    record.metadata,
                )
            if isinstance(record, mcap.records.Message) and keeps(
                record.sequence, topics[record.channel_id]
            ):
                writer.add_message(
                    channels[record.channel_id],
                    record.log_time,
                    change(record.data),
                    record.publish_time,
                    record.sequence,
                )
        writer.finish()
    return target


def flips(path: Path) -> Iterator[int]:
    """Flip one bit of a file, in place, yield its offset, and set it right; again and again.

    A bit of every eleventh byte; all bits of all of them where everything is tested.
    """
    data = path.read_bytes()
    fd = os.open(path, os.O_RDWR)
    try:
        for offset in some(range(len(data)), range(0, len(data), 11)):
            byte = data[offset]
            for bit in some(range(8), [(offset * 5 + byte) % 8]):
                os.pwrite(fd, bytes([byte ^ 1 << bit]), offset)
                yield offset
            os.pwrite(fd, bytes([byte]), offset)
    finally:
        os.close(fd)


def read_until_refused(path: Path) -> tuple[list[Frame | Note], RecordingError | None]:
    """The entries of a file, and the error that ended it."""
    read: list[Frame | Note] = []
    try:
        for entry in entries(path):
            read.append(entry)
    except RecordingError as error:
        return read, error
    return read, None


_NOT_IN_FRAMES = (
    "pieces", "withheld", "fault_ns", "behind", "request_fault_ns", "request_behind",
    "client_ended", "chunk",
)  # fmt: skip


def portable(entry: Frame | Note) -> dict[str, Any]:
    """An entry as JSON, field by field."""
    if isinstance(entry, Note):
        return {"channel": entry.channel, "time_ns": entry.time_ns, "body": entry.body}
    fields = attrs.asdict(entry, filter=lambda field, _: field.name not in _NOT_IN_FRAMES)
    splices = [[offset, length, data.hex()] for offset, length, data in entry.splices]
    fault_ids = list(entry.fault_ids)
    return {
        **fields,
        "side": int(entry.side),
        "data": entry.data.hex(),
        "splices": splices,
        "fault_ids": fault_ids,
    }


def message(channel: int, data: bytes, log_ns: int = START_NS, sequence: int = 1) -> bytes:
    """A message record."""
    content = struct.pack("<HIQQ", channel, sequence, log_ns, log_ns) + data
    return record(MESSAGE, content)


def forged(
    path: Path,
    *chunks: bytes,
    native: bool = True,
    compression: str = "",
    size: int | None = None,
) -> Path:
    """A torn file with these chunks' records, whatever they are, and the right checksums."""
    good = write(path.with_suffix(".good"), [])
    data = good.read_bytes()
    good.unlink()
    data = data[: data.rindex(b"\x0f\x04\0\0\0\0\0\0\0")]
    if not native:
        data = data.replace(b"kproxy 0.1.0", b"not-kproxy 1")
    for records in chunks:
        uncompressed = len(records) if size is None else size
        fields = struct.pack("<QQQI", START_NS, START_NS, uncompressed, zlib.crc32(records))
        content = fields + string(compression) + len(records).to_bytes(8, "little") + records
        data += record(CHUNK, content)
    path.write_bytes(data)
    return path
