"""The content of a recording: an MCAP file of profile "kproxy", whose messages are a log.

::

    magic
    Header        profile "kproxy", library "kproxy <version>"
    Schema × 3    of pieces, this text; two JSON schemas
    Channel × 3   1 /kafka/pieces  2 /kafka/connections  3 /kafka/events
    Metadata      "kproxy": format_version, kproxy_min, schema_id, start_ns, what the caller adds,
                  head_crc32
    Chunk …       pieces and notes, in the order in which things happened
    DataEnd       data_section_crc: of every byte before this record
    Schema × 3, Channel × 3, Statistics, ChunkIndex …, MetadataIndex, SummaryOffset …
    Footer        summary_crc: of every byte from DataEnd up to the field itself
    magic

**/kafka/pieces** (message encoding "kproxy.piece"): what one side of a connection sent and was
received at once: whole frames that are alike (one API and version), or one frame that is not only
passed on, or a part of one. `log_time` is when its last byte arrived, and `publish_time` when it
began to be sent on (0: not known yet). Its data, little-endian:

* `number` i64: of the exchange that begins, or is answered, with its first frame; those of its
  other frames follow;
* `before_ns` i64: of responses, when the one before it on this connection arrived (0: none did);
* `connection` u32, `node_id` i32 (−1: a bootstrap address), `flags` u32 (`exchange.entries`; and
  bit 31: the broker sent it; bit 30: LATE);
* `api_key` i16, `api_version` i16: of the requests;
* the size of the extras u32, and the extras: nothing, or a JSON object;
* the bytes **as their sender sent them**, secrets blanked out.

The extras have what few pieces have: `splices`, what was replaced in each frame before it was sent
on (offset, length, replacement in base64); `fault_ns`, `held_behind`, `fault_ids`, `withheld`: what
rules did; `client_ended`; `error_code` of a response that was looked into; `correlation_id` and
`frame_bytes` of what the bytes do not tell them of; `request`, of a response: what the piece of
its request does not say, or where that is not recorded (`request_received_ns`, `request_sent_ns`,
`request_bytes`, `correlation_id`, `fault_ns`, `held_behind`); `at`: the place of the piece before
it of the same frame (FRAGMENT), or of the piece that has left (LATE). A place is the number of a
chunk, that of a piece in it, and that of a frame in that (`chunk << 32 | piece << 16 | frame`).

A LATE piece has no bytes: the frames of an earlier piece have left, at its `publish_time`; 0: their
connection has ended, and they never will. One with the flag UNANSWERED has none either: nothing
will answer the request; with OPEN_AT_END, too, that is told because its connection has ended.

The sequence of a message is the number of its chunk. Chunks count from 1 over all files of a
recording; one that could not be written is missing.

**/kafka/connections, /kafka/events** (message encoding "json"): one JSON object each, a note
(`exchange.notes`). A file that goes on with a recording begins with those that still hold, and with
what is pending, in notes on /kafka/events with the event "pending": `columns` names fields of
`exchange.entries.ExchangeRow`, and `exchanges` has a list of their values for each exchange. So
nothing but the file is needed to read it.

Times are of the system's clock, as it was set at that time; a note with the event "clock_step" says
that it was set, and by how many seconds. Those of an exchange all lie where the clock was when its
request arrived, so that durations hold. Times may run backwards; numbers do not.

The schemas that records name are notes on /kafka/events with the event "schema"
(`payloads.schemas`). A note stands behind the first records that need it, which were asked about
when they were read; what later files repeat has it, too.

A file of 16 MiB or more ends with a note on /kafka/events with the event "index": what each chunk
holds, so that readers find the few that they need (`batch_index`). It is of no interest otherwise.

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
unless they happen to break the structure. kproxy's own reader notices all of them.

Bits that a zstd decoder ignores (unused bits of its frame header, padding of its bit streams) do
not change what comes out; they are noticed through `data_section_crc`, so in complete files only.

`format_version`, `kproxy_min` (the first kproxy that reads this version) and `schema_id` are also
in the metadata of the channels, because tools that rewrite MCAP files may drop Metadata records.

**What a change must keep.** Recordings are kept in git, and read by kproxys that are older and
newer than the one that wrote them.

* Extras may get new keys, and notes new keys and events: readers pass over them. What is not there
  is 0, or nothing: who adds a key sees to it that this means "not known".
* What a field says it says for ever: its unit, its flags, what is 0. A flag, a number of an API or
  a kind of note is never given another meaning, nor one that was given up used again. An older
  reader passes over new flags: one that it must not pass over is another version.
* All else is another `format_version`: other types, channels, chunks. Its files still begin with
  Header, Schema and Channel records, whose metadata say `kproxy_min`, so that every kproxy since
  0.1.0 can say which one is needed. Version 3 is the oldest that is read as it is, and stays so;
  files of version 2, which was never released, are converted (`format2`).
"""

from __future__ import annotations

import enum
import json

from kproxy.exchange.entries import CONNECTIONS, EVENTS, Note
from kproxy.recording.mcap import channel_record, message_head, schema_record

FORMAT_VERSION = 3
FORMER_VERSION = 2
"""The version whose files are converted (`format2`)."""
KPROXY_MIN = "0.1.0"
"""The first kproxy that reads files of this format version."""
PROFILE = "kproxy"
LIBRARY_PREFIX = "kproxy "
"""The beginning of the library's name in files that kproxy itself wrote: only they are sure to have
the layout above. Tools that rewrite MCAP files put their own name there."""

CHUNK_BYTES = 256 << 10
"""A chunk with this many bytes takes no further message."""
PIECES_MAX = 16 << 10
"""Nor does one with this many pieces."""
STORED_BYTES_MIN = 16 << 10
"""Pieces of this size and more, of one frame, are stored rather than compressed."""


class Channel(enum.IntEnum):
    """The channels of the files that kproxy writes; their schemas have the same ids."""

    PIECES = 1
    CONNECTIONS = 2
    EVENTS = 3

    @property
    def topic(self) -> str:
        """The topic by which readers find the channel."""
        return f"/kafka/{self.name.lower()}"


NOTES = {CONNECTIONS: Channel.CONNECTIONS, EVENTS: Channel.EVENTS}
"""The channels of notes, by `Note.channel`."""


# ---------------------------------------------------------------- notes


def note_record(note: Note, sequence: int) -> bytes:
    """Return a note's message record."""
    body = json.dumps(note.body, separators=(",", ":"), allow_nan=False).encode()
    time_ns = note.time_ns
    return message_head(NOTES[note.channel], sequence, time_ns, time_ns, len(body)) + body


# ---------------------------------------------------------------- the head of a file

_NOTE = {
    "type": "object",
    "properties": {"event": {"type": "string"}, "connection": {"type": "integer"}},
    "required": ["event"],
}
_CONNECTION = _NOTE | {"title": "what happened to a connection"}
_EVENT = _NOTE | {"title": "what happened beside the frames"}


_PIECE = (
    "little-endian: number i64, before_ns i64, connection u32, node_id i32, flags u32, api_key i16,"
    " api_version i16, extras_bytes u32, extras (JSON), frames as they came; log_time: arrived,"
    " publish_time: left"
)


def schema_records() -> bytes:
    """Return the three Schema records."""
    return b"".join((
        schema_record(Channel.PIECES, "kproxy.Piece", "text", _PIECE.encode()),
        _json_schema(Channel.CONNECTIONS, "kproxy.Connection", _CONNECTION),
        _json_schema(Channel.EVENTS, "kproxy.Event", _EVENT),
    ))  # fmt: skip


def _json_schema(channel: Channel, name: str, schema: object) -> bytes:
    return schema_record(channel, name, "jsonschema", json.dumps(schema).encode())


def channel_records(schema_id: str) -> bytes:
    """Return the three Channel records."""
    metadata = _versions(schema_id)
    return b"".join(
        channel_record(
            channel,
            channel,
            channel.topic,
            "json" if channel in NOTES.values() else "kproxy.piece",
            metadata,
        )
        for channel in Channel
    )


def metadata_entries(schema_id: str, start_ns: int, extra: dict[str, str]) -> dict[str, str]:
    """Return the content of the Metadata record "kproxy", without the checksum.

    Raises: ValueError, when `extra` names what the format itself needs.
    """
    entries = _versions(schema_id) | {"start_ns": str(start_ns)}
    if taken := sorted((entries.keys() | {"head_crc32"}) & extra.keys()):
        raise ValueError(f"metadata of a recording cannot set {', '.join(taken)}")
    return entries | extra


def _versions(schema_id: str) -> dict[str, str]:
    return {
        "format_version": str(FORMAT_VERSION),
        "kproxy_min": KPROXY_MIN,
        "schema_id": schema_id,
    }
