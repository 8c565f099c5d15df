"""The messages of verified chunks, as frames and notes.

    Scan ─▶ chunk ─▶ Content ─▶ Frame, Note
                        └─▶ rows, or the table of them

In files that kproxy wrote, data chunks and header chunks alternate, and what they say about each
other is compared: a header chunk has exactly the rows of the frames in the chunk before it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

from kproxy.exchange.entries import CONNECTIONS as CONNECTIONS_NAME
from kproxy.exchange.entries import EVENTS as EVENTS_NAME
from kproxy.exchange.entries import MORE, REWRITTEN, Frame, Note, Side, Splice
from kproxy.recording.format import (
    CHANNEL,
    CONNECTIONS,
    EVENTS,
    FRAME_HEAD,
    FRAMES,
    HEADERS,
    MESSAGE,
    MESSAGE_FIXED_BYTES,
    MESSAGE_HEAD,
    NOT_SENT,
    RECORD,
    ROW,
    ROW_BYTES,
    RecordingError,
)
from kproxy.recording.pack import rewritten_frame
from kproxy.recording.scan import Chunk, Scan
from kproxy.recording.summary import ChunkInfo

_SIDES = (Side.CLIENT, Side.BROKER)


def walk(scan: Scan) -> Iterator[Content]:
    """Yield the chunks of a file that hold entries; exhaust `entries` of one before the next.

    Raises: RecordingError.
    """
    for chunk in scan.chunks():
        content = Content(scan, chunk)
        if scan.contents is None:  # another tool wrote it, or a damaged chunk was left out
            yield content
            continue
        if scan.rows_due is None:
            yield content
            scan.rows_due = content.rows
        else:
            if content.only_table() != b"".join(scan.rows_due):
                raise scan.damage(chunk.offset, "a table of headers differs from its frames")
            scan.rows_due = None
        content.check_times()
        scan.contents.add(content.info(), scan.crc)


class Content:
    """The messages of one chunk."""

    def __init__(self, scan: Scan, chunk: Chunk):
        self.scan = scan
        self.chunk = chunk
        self.rows: list[bytes] = []
        """Of the frames that end in this chunk."""
        self.table: bytes | None = None
        """What a message on /kafka/headers says."""
        self._counts = [0, 0, 0, 0]
        self._start_ns, self._end_ns = 1 << 64, 0

    def entries(self) -> Iterator[Frame | Note]:
        """Yield its entries.

        Raises: RecordingError.
        """
        data = self.chunk.records or b""
        at, end = 0, len(data)
        while at < end:
            if end - at < RECORD.size:
                raise self._wrong("ends in the middle of a record")
            opcode, length = RECORD.unpack_from(data, at)
            after = at + RECORD.size + length
            if after > end:
                raise self._wrong("has a record that runs past its end")
            if opcode == MESSAGE:
                if length < MESSAGE_FIXED_BYTES:
                    raise self._wrong("has a message that is too short")
                entry = self._message(data, at, after)
                if entry is not None:
                    yield entry
            elif self.scan.info.native:
                raise self._wrong(f"has a record of kind {opcode}")
            elif opcode == CHANNEL:
                self._channel(data[at + RECORD.size : after])
            at = after

    def only_table(self) -> bytes:
        """Return the table of a chunk that holds nothing else.

        Raises: RecordingError.
        """
        for _ in self.entries():
            raise self._wrong("has a frame where a table belongs")
        if self.table is None or len(self.table) % ROW_BYTES:
            raise self._wrong("has no table of headers")
        return self.table

    def check_times(self) -> None:
        """Compare the times in the chunk's header with those of its messages.

        Raises: RecordingError.
        """
        if (self._start_ns, self._end_ns) != (self.chunk.start_ns, self.chunk.end_ns):
            raise self._wrong("has other times than its messages")

    def info(self) -> ChunkInfo:
        """Return the chunk's entry of the index."""
        chunk = self.chunk
        return ChunkInfo(
            chunk.start_ns,
            chunk.end_ns,
            chunk.offset,
            chunk.end - chunk.offset,
            chunk.compression,
            chunk.compressed_bytes,
            chunk.uncompressed_bytes,
            (self._counts[0], self._counts[1], self._counts[2], self._counts[3]),
        )

    def _wrong(self, what: str) -> RecordingError:
        return self.scan.damage(self.chunk.offset, f"a chunk {what}")

    def _channel(self, content: bytes) -> None:
        try:
            self.scan.channel(content)
        except ValueError as error:
            raise self._wrong(f"has a channel that does not decode: {error}") from None

    def _message(self, data: bytes, at: int, end: int) -> Frame | Note | None:
        """Return the entry that a message record holds; None on other channels."""
        _, _, number, _, log_ns, _ = MESSAGE_HEAD.unpack_from(data, at)
        channel = self.scan.channels.get(number)
        if channel is None:
            if self.scan.info.native:
                raise self._wrong("has a message on an unknown channel")
            return None
        self._counts[channel - 1] += 1
        if log_ns < self._start_ns:
            self._start_ns = log_ns
        if log_ns > self._end_ns:
            self._end_ns = log_ns
        if channel == FRAMES:
            return self._frame(data, at, end, log_ns)
        if channel == HEADERS:
            if self.table is not None and self.scan.info.native:
                raise self._wrong("has two tables of headers")
            self.table = data[at + MESSAGE_HEAD.size : end]
            return None
        name = CONNECTIONS_NAME if channel == CONNECTIONS else EVENTS_NAME
        note = Note(name, log_ns, self._body(data[at + MESSAGE_HEAD.size : end]))
        if channel == EVENTS and note.body.get("event") == "rewritten":
            self.scan.rewritten = note
        return note

    def _body(self, data: bytes) -> dict[str, object]:
        try:
            body = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise self._wrong(f"has a note that is not JSON: {type(error).__name__}") from None
        if not isinstance(body, dict):
            raise self._wrong("has a note that is not a JSON object")
        return body

    def _frame(self, data: bytes, at: int, end: int, log_ns: int) -> Frame:
        start = at + FRAME_HEAD.size
        if start > end:
            raise self._wrong("has a frame that is too short")
        (
            received_ns,
            asked_ns,
            number,
            sent_after_us,
            asked_sent_after_us,
            position,
            frame_bytes,
            request_bytes,
            connection,
            correlation_id,
            api_key,
            api_version,
            error_code,
            fault_id,
            flags,
            side,
            _,
        ) = ROW.unpack_from(data, at + MESSAGE_HEAD.size)
        if side > 1:
            raise self._wrong("has a frame of neither client nor broker")
        if self.scan.info.native and (position != at or received_ns != log_ns):
            raise self._wrong("has a frame whose row contradicts its message")
        if not flags & MORE:
            self.rows.append(data[at + MESSAGE_HEAD.size : start])
        splices = ()
        if flags & REWRITTEN and self.scan.rewritten is not None:
            splices = _splices(self.scan.rewritten, number, _SIDES[side])
        return Frame(
            _SIDES[side],
            connection,
            number,
            api_key,
            api_version,
            correlation_id,
            received_ns,
            [data[start:end]] if end > start else [],
            frame_bytes,
            flags,
            0 if sent_after_us == NOT_SENT else received_ns + sent_after_us * 1000,
            asked_ns,
            0 if asked_sent_after_us == NOT_SENT else asked_ns + asked_sent_after_us * 1000,
            request_bytes,
            error_code,
            (fault_id,) if fault_id else (),
            splices,
        )


def _splices(note: Note, number: int, side: Side) -> tuple[Splice, ...]:
    """Return what a "rewritten" note says, if it is about this frame and makes sense."""
    if rewritten_frame(note) != (number, side):
        return ()
    try:
        return tuple(
            (int(offset), int(length), base64.b64decode(replacement, validate=True))
            for offset, length, replacement in note.body["splices"]
        )
    except (KeyError, TypeError, ValueError):
        return ()
