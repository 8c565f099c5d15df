"""The content of a recording: an MCAP file of profile "kproxy", whose messages are Arrow tables.

::

    magic
    Header        profile "kproxy", library "kproxy <version>"
    Schema × 4    the columns of the two tables, as Arrow's own schema messages; two JSON schemas
    Channel × 4   1 /kafka/frames  2 /kafka/exchanges  3 /kafka/connections  4 /kafka/events
    Metadata      "kproxy": format_version, kproxy_min, schema_id, start_ns, what the caller adds,
                  head_crc32
    ┌ Chunk       a table of frames: the bytes that came, a row per run
    │ Chunk       a table of exchanges that were completed, a row each; then notes
    └ …           the two make a batch, of which there is one per flush or 256 KiB; if it has less
                  than 16 KiB, it is one chunk
    DataEnd       data_section_crc: of every byte before this record
    Schema × 4, Channel × 4, Statistics, ChunkIndex …, MetadataIndex, SummaryOffset …
    Footer        summary_crc: of every byte from DataEnd up to the field itself
    magic

Of a channel of tables, the data of its Schema record followed by its messages is an Arrow IPC
stream (message encoding "arrow"). Integers are signed and little-endian, nothing is null.

**/kafka/frames**, a row per run (frames that arrived in one chunk; a frame that is large, or not
only passed on, or a piece of such a one, is a run by itself):

* `received_ns`, `sent_ns`: when its last byte arrived, and began to be sent on (0: not known);
* `number`: of its first request or response; the requests of a run have successive numbers;
* `connection`, `flags` (`exchange.entries`), `side` (0 client, 1 broker);
* `notes`: how many notes of this batch stood before it;
* `sizes`: of its frames in `data`; empty if there is one;
* `heads`: what is not in the bytes, or not with certainty. Of requests: nothing. Of responses: the
  number, and `api_key << 16 | api_version` of the request, for each. Of a frame by itself six
  values: number, API key, API version, correlation id, size of the whole frame, and where the piece
  before it lies (`exchange.entries.Position`; 0: there is none);
* `splices`: what was replaced in each of its frames before they were sent on: offset, length, size
  of the replacement (u32 each), replacement, and so on;
* `data`: the bytes **as their sender sent them**, secrets blanked out.

**/kafka/exchanges**, a row per exchange, with the fields of `exchange.entries.ExchangeRow`. It is
written when the response has left, when a request that has none has left, or when the connection
ends. A request that is still pending when a file ends has its row in the next one. An exchange of
which one frame could not be recorded has its row, too, with times and sizes, and with 0 for where
that frame lies; one of which neither could has none.

Times are of the system's clock, as it was set at that time; a note with the event "clock_step" says
that it was set, and by how many seconds. Those of an exchange all lie where the clock was when its
request arrived (a run's: when the run did), so that durations hold. Times may run backwards from
row to row; numbers do not.

**/kafka/connections, /kafka/events** (message encoding "json"): one JSON object each, a note
(`exchange.notes`). What later files of a recording repeat stands in front, in a batch 0.

A file that goes on with a recording says what is pending, by one or more notes on /kafka/events
with the event "pending", in the last of the batches that are written into it at first: `columns`
names fields of `ExchangeRow`, and `exchanges` has a list of their values for each exchange that has
no row up to there; readers keep the values of columns that they do not know. Files of an older
kproxy have none.

The schemas that records name are notes on /kafka/events with the event "schema"
(`payloads.schemas`). A note stands behind the first records that need it, which were asked about
when they were read; what later files repeat has it, too.

A file of 16 MiB or more ends with a note on /kafka/events with the event "batches": what each batch
holds, so that readers find the few that they need (`batch_index`). It is of no interest otherwise;
files of an older kproxy have none, and an older kproxy passes over it.

The sequence of a message is the number of its batch. Batches count from 1 over all files of a
recording; one that could not be written is missing. `log_time` of a table is the time of the last
entry of its batch and `publish_time` that of the first; a note has its own.

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

* Columns may be added anywhere, removed (but for `IN_EVERY_FILE`), put in another order, or made
  wider. Readers take them by name from the schema in the file. For a column that a file lacks,
  `DEFAULTS` says the value; who adds one sees to it that 0 or an empty list means "not known", or
  adds a line there. Columns that a reader does not know it passes over; `recover`, and `export`
  into a recording, keep them. That is no other version.
* What a column says it says for ever: its unit, its flags, what is 0. A flag, a number of an API or
  a kind of note is never given another meaning, nor one that was given up used again. What is new
  gets a new column, flag or key. An older reader passes over new flags where they have room: one
  that it must not pass over is another version.
* A column of frames that is added says something of all frames of its run, and one of exchanges of
  this exchange alone: `export` writes a run for each frame, and repeats the values of its run.
* Types are signed integers, binary, lists of these, structs of all of them, and lists of structs.
  Every record batch has the one form of `arrow`.
* Notes may get new keys and new events: readers pass over them, and the next file of a recording
  repeats all keys of the connections that are open.
* A file whose Schema records another tool has dropped has the columns of the first version 2.
* All else is another `format_version`: other types, channels, chunks. Its files still begin with
  Header, Schema and Channel records, whose metadata say `kproxy_min`, so that every kproxy since
  0.1.0 can say which one is needed. Version 2 is the oldest that is read, and stays so; real files
  of every version are kept in the tests and never rewritten.
"""

from __future__ import annotations

import enum
import json
from typing import get_type_hints

import attrs

from kproxy.exchange.entries import (
    CONNECTIONS,
    EVENTS,
    ExchangeRow,
    Note,
)
from kproxy.recording.arrow import Schema
from kproxy.recording.arrow_schema import ArrowField
from kproxy.recording.mcap import channel_record, message_head, schema_record

FORMAT_VERSION = 2
KPROXY_MIN = "0.1.0"
"""The first kproxy that reads files of this format version."""
PROFILE = "kproxy"
LIBRARY_PREFIX = "kproxy "
"""The beginning of the library's name in files that kproxy itself wrote: only they are sure to have
the layout above. Tools that rewrite MCAP files put their own name there."""

BATCH_BYTES = 256 << 10
"""A batch with this many bytes takes no further entry; bytes of large frames count a sixteenth:
they are stored as they are, and fewer batches are less work."""
BATCH_RUNS_MAX = 16 << 10
"""A batch with this many runs takes no further entry either."""
SMALL_BATCH_BYTES = 16 << 10
"""A smaller batch is one chunk."""
STORED_BYTES_MIN = 16 << 10
"""Frames of this size and more are stored rather than compressed."""


class Channel(enum.IntEnum):
    """The channels of the files that kproxy writes; their schemas have the same ids."""

    FRAMES = 1
    EXCHANGES = 2
    CONNECTIONS = 3
    EVENTS = 4

    @property
    def topic(self) -> str:
        """The topic by which readers find the channel."""
        return f"/kafka/{self.name.lower()}"


NOTES = {CONNECTIONS: Channel.CONNECTIONS, EVENTS: Channel.EVENTS}
"""The channels of notes, by `Note.channel`."""

# ---------------------------------------------------------------- the tables

RUN_INTEGERS = (
    ("received_ns", "int64"),
    ("sent_ns", "int64"),
    ("number", "int64"),
    ("connection", "int32"),
    ("flags", "int32"),
    ("notes", "int32"),
    ("side", "int8"),
)
RUN_LISTS = ("sizes", "heads", "splices", "data")
"""The columns of frames that are lists."""
RESPONSE_HEAD_VALUES = 2
FRAME_HEAD_VALUES = 6
"""The number of integers in `heads` for a response of a run, and for a frame by itself."""
EXCHANGE_INTEGERS = tuple(
    (name, kind.__metadata__[0])
    for name, kind in get_type_hints(ExchangeRow, include_extras=True).items()
    if name != "fault_ids"
)

FRAMES = Schema(
    *(ArrowField(*integer) for integer in RUN_INTEGERS),
    ArrowField("sizes", "int32", many=True),
    ArrowField("heads", "int64", many=True),
    ArrowField("splices", "binary"),
    ArrowField("data", "binary"),
)
EXCHANGES = Schema(
    *(ArrowField(*integer) for integer in EXCHANGE_INTEGERS),
    ArrowField("fault_ids", "int32", many=True),
)

FIRST = {
    Channel.FRAMES: FRAMES,
    Channel.EXCHANGES: Schema(
        *(each for each in EXCHANGES.fields if each.name not in ("fault_ns", "held_behind"))
    ),
}
"""The columns of the first version 2, by channel."""

DEFAULTS = {name: ExchangeRow._field_defaults.get(name, 0) for name, _ in EXCHANGE_INTEGERS}
"""The value of a missing column, for all rows of a file; in any other column it is 0, or an empty
list."""
IN_EVERY_FILE = frozenset({"number", "connection", "side", "sizes", "heads", "data"})
"""Columns that rows are told apart by, or bytes taken apart: a file that lacks one is refused."""


@attrs.frozen(eq=False)
class Schemas:
    """The columns of the two tables of a file."""

    frames: Schema
    exchanges: Schema


OWN_SCHEMAS = Schemas(FRAMES, EXCHANGES)


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


def schema_records(schemas: Schemas) -> bytes:
    """Return the four Schema records."""
    abouts = {
        Channel.FRAMES: ("kproxy.Frames", "arrow", schemas.frames.message),
        Channel.EXCHANGES: ("kproxy.Exchanges", "arrow", schemas.exchanges.message),
        Channel.CONNECTIONS: ("kproxy.Connection", "jsonschema", json.dumps(_CONNECTION).encode()),
        Channel.EVENTS: ("kproxy.Event", "jsonschema", json.dumps(_EVENT).encode()),
    }
    return b"".join(schema_record(channel, *about) for channel, about in abouts.items())


def channel_records(schema_id: str) -> bytes:
    """Return the four Channel records."""
    metadata = _versions(schema_id)
    return b"".join(
        channel_record(
            channel,
            channel,
            channel.topic,
            "json" if channel in NOTES.values() else "arrow",
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
