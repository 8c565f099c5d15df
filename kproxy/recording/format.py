"""The file format of a recording, version 1: an MCAP file of profile "kproxy".

MCAP (https://mcap.dev/spec) is a container of timestamped messages on named channels. Everything
is little-endian; a record is `opcode u8, length u64, content`. Ours look like this::

    magic
    Header        profile "kproxy", library "kproxy <version>"
    Schema × 4    the layout of a row, of a table of rows; a JSON schema each for the two others
    Channel × 4   1 /kafka/frames  2 /kafka/headers  3 /kafka/connections  4 /kafka/events
    Metadata      "kproxy": format_version, schema_id, start_ns, what the caller adds, head_crc32
    ┌ Chunk       frames, connections, events in the order in which they were given to the writer
    │ Chunk       one message on /kafka/headers: the rows of the frames that the chunk before holds
    └ …           the two always come in pairs, once per flush or 256 KiB
    DataEnd       data_section_crc: of every byte before this record
    Schema × 4, Channel × 4, Statistics, ChunkIndex …, MetadataIndex, SummaryOffset …
    Footer        summary_crc: of every byte from DataEnd up to the field itself
    magic

**/kafka/frames** (message encoding "kproxy"): a row of 64 bytes (`ROW_FIELDS`; numpy reads it as
`numpy.dtype(list(ROW_FIELDS))`), then the frame's bytes as its sender sent them, size prefix
included. A frame of more than 1 MiB is stored in pieces: a message each, flags FRAGMENT and, on all
but the last, MORE; every piece's row has the whole frame's `frame_bytes`.

**/kafka/headers** (message encoding "kproxy"): rows one after the other, the very same bytes as at
the head of the frames' messages; of a frame in pieces only the last piece's. It may be empty.
`position` is where the frame's message record starts in the uncompressed chunk before.

**/kafka/connections, /kafka/events** (message encoding "json"): one JSON object each.

Where a frame was sent on differently (REWRITTEN), the event before it says how: `{"event":
"rewritten", "number", "side": "client"|"broker", "splices": [[offset, length, base64], …]}`. The
writer makes it from the frame's `splices`, and the reader sets these again.

Message times: `log_time` and `publish_time` are `received_ns` of a frame, `time_ns` of a note, and
the latest of its table for rows. `sequence` counts frames and notes (rows: tables) in the file.

What is checked by what. A chunk's CRC covers its uncompressed records, `head_crc32` (hexadecimal,
the last value of the Metadata record, covering every byte of the file before it) the head, so both
are verified in a file that ends anywhere. Chunk headers repeat what their messages say and are
compared with it; opcodes and lengths have one legal value. DataEnd and Footer cover the rest once
the file is complete. A CRC of 0 means "not computed" to MCAP readers; in files that kproxy wrote
itself (see the library) it means 0. In a file without an end, a flip in the word "kproxy" of the
library makes it look like another tool's; its chunks are checked all the same.

The `mcap` Python package (1.6) with `validate_crcs=True` notices every flipped bit up to DataEnd
when it reads without seeking, and inside chunks when it seeks. It never looks at `summary_crc`, so
flips in DataEnd's own opcode and length, in the summary's values, and in the footer pass it
unless they happen to break the structure. `kproxy.recording.reader` notices all of them.

Bits that a zstd decoder ignores (unused bits of its frame header, padding of its bit streams) do
not change what comes out; they are noticed through `data_section_crc`, so in complete files only.

Compatibility: fields are only ever added behind a row or as further channels, which old readers
ignore; a change that an old reader would misread gets a new `format_version`, which it refuses.
`format_version` and `schema_id` are also in the metadata of the channels, because tools that
rewrite MCAP files may drop Metadata records.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

FORMAT_VERSION = 1
PROFILE = "kproxy"
LIBRARY_PREFIX = "kproxy "
"""How the library of a file begins that kproxy itself wrote: only there the layout above is
guaranteed. Tools that rewrite MCAP files put their own name in front."""

MAGIC = b"\x89MCAP0\r\n"

# MCAP opcodes
HEADER = 0x01
FOOTER = 0x02
SCHEMA = 0x03
CHANNEL = 0x04
MESSAGE = 0x05
CHUNK = 0x06
MESSAGE_INDEX = 0x07
CHUNK_INDEX = 0x08
ATTACHMENT = 0x09
ATTACHMENT_INDEX = 0x0A
STATISTICS = 0x0B
METADATA = 0x0C
METADATA_INDEX = 0x0D
SUMMARY_OFFSET = 0x0E
DATA_END = 0x0F

# channel ids of the files that kproxy writes; schema ids are the same
FRAMES = 1
HEADERS = 2
CONNECTIONS = 3
EVENTS = 4

TOPICS = {
    FRAMES: "/kafka/frames",
    HEADERS: "/kafka/headers",
    CONNECTIONS: "/kafka/connections",
    EVENTS: "/kafka/events",
}

# ---------------------------------------------------------------- the row of a frame

ROW_FIELDS = (
    ("received_ns", "<u8"),
    ("request_received_ns", "<u8"),
    ("number", "<u8"),
    ("sent_after_us", "<u4"),
    ("request_sent_after_us", "<u4"),
    ("position", "<u4"),
    ("frame_bytes", "<u4"),
    ("request_bytes", "<u4"),
    ("connection", "<u4"),
    ("correlation_id", "<i4"),
    ("api_key", "<i2"),
    ("api_version", "<i2"),
    ("error_code", "<i2"),
    ("fault_id", "<u2"),
    ("flags", "<u2"),
    ("side", "u1"),
    ("reserved", "u1"),
)
"""Names and numpy types of a row's fields, in order, without gaps."""

_STRUCT_CODES = {
    "<u8": "Q",
    "<u4": "I",
    "<i4": "i",
    "<i2": "h",
    "<u2": "H",
    "u1": "B",
}
_ROW_FORMAT = "".join(_STRUCT_CODES[kind] for _, kind in ROW_FIELDS)

ROW = struct.Struct("<" + _ROW_FORMAT)
ROW_BYTES = ROW.size
NOT_SENT = 0xFFFFFFFF
"""sent_after_us of a frame that was not handed on when it was recorded."""
DELAY_US_MAX = NOT_SENT - 1
"""Longer delays are stored as this (71.6 minutes); earlier than received is stored as 0."""

# ---------------------------------------------------------------- MCAP records as structs

RECORD = struct.Struct("<BQ")
MESSAGE_HEAD = struct.Struct("<BQHIQQ")
"""opcode, length, channel, sequence, log_time, publish_time"""
MESSAGE_FIXED_BYTES = MESSAGE_HEAD.size - RECORD.size
"""The content of a message record without its data."""
FRAME_HEAD = struct.Struct(MESSAGE_HEAD.format + _ROW_FORMAT)
"""A message record up to the frame's bytes: one pack call per frame."""
FRAME_FIXED_BYTES = MESSAGE_FIXED_BYTES + ROW_BYTES

CHUNK_FIXED = struct.Struct("<QQQI")
"""message_start_time, message_end_time, uncompressed_size, uncompressed_crc"""
CHUNK_HEADS = {
    "": struct.Struct("<BQQQQIIQ"),
    "zstd": struct.Struct("<BQQQQII4sQ"),
}
"""A chunk record up to its records, by compression."""
DATA_END_BYTES = RECORD.size + 4
FOOTER_FIELDS = struct.Struct("<QQI")
FOOTER_BYTES = RECORD.size + FOOTER_FIELDS.size

# ---------------------------------------------------------------- limits

CHUNK_BYTES = 256 * 1024
"""A chunk that has this many bytes takes no further entry."""
PIECE_BYTES_MAX = 1024 * 1024
"""Frames with more bytes are stored in pieces."""
STORED_BYTES_MIN = 16 * 1024
"""From here on frames are rather stored than compressed."""
CHUNK_BYTES_MAX = 64 * 1024 * 1024
"""The largest chunk, compressed or not, that is read. Other tools write 4 MiB or less."""
RECORD_BYTES_MAX = 16 * 1024 * 1024
"""The largest other record whose content is looked at."""


class RecordingError(Exception):
    """A file that is not a recording, or not any more.

    `path` (Path), `offset` (of the byte in the file, or None) and `what` (what is wrong and what to
    do about it) say it all; the text is one line with the three.
    """

    def __init__(self, path: Path | str, offset: int | None, what: str):
        self.path = Path(path)
        self.offset = offset
        self.what = what
        super().__init__(path, offset, what)

    def __str__(self) -> str:
        where = "" if self.offset is None else f" (at byte {self.offset})"
        return f"{self.path}: {self.what}{where}"


# ---------------------------------------------------------------- small records


def string(text: str) -> bytes:
    """Return MCAP's encoding of a string: u32 length, UTF-8."""
    data = text.encode()
    return len(data).to_bytes(4, "little") + data


def string_map(entries: dict[str, str]) -> bytes:
    """Return MCAP's encoding of a map of strings: u32 length in bytes, then the pairs."""
    data = b"".join(string(key) + string(value) for key, value in entries.items())
    return len(data).to_bytes(4, "little") + data


def record(opcode: int, content: bytes) -> bytes:
    """Return a record: opcode, length, content."""
    return RECORD.pack(opcode, len(content)) + content


def take_string(data: bytes, at: int) -> tuple[str, int]:
    """Read a string; return it and where it ends.

    Raises: ValueError, when it is cut or not UTF-8.
    """
    start = at + 4
    end = start + int.from_bytes(data[at:start], "little")
    if end > len(data) or start > len(data):
        raise ValueError("a string runs past the end of its record")
    return data[start:end].decode(), end


def take_map(data: bytes, at: int) -> tuple[dict[str, str], int]:
    """Read a map of strings; return it and where it ends.

    Raises: ValueError, when it is cut or not UTF-8.
    """
    start = at + 4
    end = start + int.from_bytes(data[at:start], "little")
    if end > len(data) or start > len(data):
        raise ValueError("a map runs past the end of its record")
    entries = {}
    at = start
    while at < end:
        key, at = take_string(data, at)
        entries[key], at = take_string(data, at)
    if at != end:
        raise ValueError("a map's last entry runs past its end")
    return entries, end


# ---------------------------------------------------------------- the head of a file

_ROW_TEXT = "".join(f"{name} {kind}\n" for name, kind in ROW_FIELDS)
_NOTE = {
    "type": "object",
    "properties": {"event": {"type": "string"}, "connection": {"type": "integer"}},
    "required": ["event"],
}
_CONNECTION = _NOTE | {"title": "what happened to a connection"}
_EVENT = _NOTE | {"title": "what happened beside the frames"}

_SCHEMAS = {
    FRAMES: ("kproxy.Frame", "kproxy", _ROW_TEXT + "frame bytes\n"),
    HEADERS: ("kproxy.Headers", "kproxy", "rows of kproxy.Frame, without the bytes\n"),
    CONNECTIONS: ("kproxy.Connection", "jsonschema", json.dumps(_CONNECTION)),
    EVENTS: ("kproxy.Event", "jsonschema", json.dumps(_EVENT)),
}
_ENCODINGS = {FRAMES: "kproxy", HEADERS: "kproxy", CONNECTIONS: "json", EVENTS: "json"}


def schema_records() -> bytes:
    """Return the four Schema records."""
    records = []
    for number, (name, encoding, text) in _SCHEMAS.items():
        data = text.encode()
        content = number.to_bytes(2, "little") + string(name) + string(encoding)
        records.append(record(SCHEMA, content + len(data).to_bytes(4, "little") + data))
    return b"".join(records)


def channel_records(schema_id: str) -> bytes:
    """Return the four Channel records."""
    metadata = {"format_version": str(FORMAT_VERSION), "schema_id": schema_id}
    return b"".join(
        record(
            CHANNEL,
            struct.pack("<HH", number, number)
            + string(topic)
            + string(_ENCODINGS[number])
            + string_map(metadata),
        )
        for number, topic in TOPICS.items()
    )


def metadata_entries(schema_id: str, start_ns: int, extra: dict[str, str]) -> dict[str, str]:
    """Return what the Metadata record "kproxy" says, the checksum excepted.

    Raises: ValueError, when `extra` names what the format itself needs.
    """
    entries = {
        "format_version": str(FORMAT_VERSION),
        "schema_id": schema_id,
        "start_ns": str(start_ns),
    }
    if taken := sorted((entries.keys() | {"head_crc32"}) & extra.keys()):
        raise ValueError(f"metadata of a recording cannot set {', '.join(taken)}")
    return entries | extra
