"""The entries of a recording: frames and notes.

The proxy makes them, the recorder writes them, the reader gives them back, and `pair` turns them
into exchanges::

    proxy ─▶ Frame, FrameRun, Note ─▶ recording ─▶ Frame, Note ─▶ pair ─▶ Exchange

Invariants: a frame holds the bytes as their sender sent them (before any address is rewritten),
size prefix included, secrets blanked out. Times are integer nanoseconds since the Unix epoch on a
clock that never runs backwards within one process.

A run is frames that passed without ado, as one value: those that arrived whole in one chunk, or a
single one, maybe in several. An object per chunk instead of one per frame is half of what a small
frame costs.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple, final

import attrs


class Side(enum.IntEnum):
    """One of the two peers of a connection; the side of a frame is its sender."""

    CLIENT = 0
    BROKER = 1


# Flags of a frame; plain integers, because they are combined for every frame that passes.
OPAQUE = 1  # its body has no known schema (unknown key or version)
REDACTED = 2  # secrets in it were blanked out
INJECTED = 4  # made by the proxy, not by the peer that it claims to come from
FRAGMENT = 8  # stored in several pieces
MORE = 16  # a piece that others follow
UNANSWERED = 32  # no frame: closes the exchange of a request whose connection ended first
NO_RESPONSE = 64  # a request that the broker does not answer (Produce with acks=0)
RAW_SASL = 128  # a SASL token without a Kafka header (after SaslHandshake v0)
REWRITTEN = 256  # what was sent on differs: its splices say where
TRUNCATED = 512  # its sender stopped in the middle of it
FAULTED = 1024  # a fault rule touched it
OPEN_AT_END = 2048  # of a response: the recording ended first, before it came or left
WITHHELD = 4096  # a fault rule let nothing of it leave, or its beginning only
SILENCED = 8192  # it did not leave: a fault rule had silenced or ended its connection before
CLIENT_ENDED = 16384  # of a response: its client had ended its side before it left
LEFT_OUT = 1 << 16  # in no recording: too large, so that its reader did not keep its bytes

NO_API = -1
"""The api_key and api_version of a frame that has none (raw SASL, a truncated header)."""

SASL_TOKEN = "SaslToken"
"""The `api` of a frame that has no Kafka header (a token after SaslHandshake v0)."""

ERROR_NOT_LOOKED = -32768
"""The error_code of a frame whose body was not looked into."""


Splice = tuple[int, int, bytes]
"""Offset and length of the bytes to replace, and their replacement."""


def apply_splices(data: bytes, splices: Sequence[Splice], start: int = 0) -> Iterator[bytes]:
    """Yield the pieces of `data`, from offset `start` on, with the splices applied."""
    for offset, length, replacement in splices:
        yield data[start:offset]
        yield replacement
        start = offset + length
    yield data[start:]


Buffer = bytes | memoryview
"""Bytes, or a view of a part of some."""

VIEWED_BYTES_MIN = 16 << 10
"""From this size on a part of a chunk is a view of it instead of a copy, is not joined with others,
and a frame that is whole in its chunk is in a run of its own."""


def joined(pieces: Sequence[Buffer]) -> bytes:
    """Join pieces; one that is bytes is not copied."""
    return pieces[0] if len(pieces) == 1 and type(pieces[0]) is bytes else b"".join(pieces)


def coalesce(pieces: Iterable[Buffer]) -> list[Buffer]:
    """Join neighbouring small pieces; leave large ones as they are."""
    found: list[Buffer] = []
    small: list[Buffer] = []
    for piece in pieces:
        if len(piece) < VIEWED_BYTES_MIN:
            small.append(piece)
            continue
        if small:
            found.append(b"".join(small))
            small = []
        found.append(piece)
    if small:
        found.append(b"".join(small))
    return found


@final
@attrs.define(eq=False)
class Frame:
    """One frame as its sender sent it, or a piece of one."""

    side: Side
    """The sender: CLIENT for a request, BROKER for a response."""
    connection: int
    number: int
    """The number of the exchange: counts requests from 1 over the whole recording; a response
    carries its request's number."""
    api_key: int
    api_version: int
    """The version of the request; a response carries its request's."""
    correlation_id: int
    received_ns: int
    """Arrival of the last byte."""
    pieces: list[Buffer]
    """The bytes, in the chunks in which they arrived."""
    frame_bytes: int
    """Size of the whole frame with its size prefix; 0 for UNANSWERED."""
    flags: int = 0
    sent_ns: int = 0
    """The time when its last byte began to be handed on; 0 if that was after it was recorded."""
    request_received_ns: int = 0
    request_sent_ns: int = 0
    """On responses: the request's times, so that latencies need no pairing."""
    request_bytes: int = 0
    """On responses: the request's frame_bytes."""
    error_code: int = ERROR_NOT_LOOKED
    fault_ids: Sequence[int] = ()
    """The fault rules that touched it."""
    splices: Sequence[Splice] = ()
    """The replacements made in a REWRITTEN frame before it was sent on, in order of offset; the
    size prefix was adapted."""
    withheld: bool = False
    """True if it will never be sent on, so that nobody needs to wait for that."""
    client_ended: bool = False
    """True if its client had ended its side before it left."""
    fault_ns: int = 0
    """For how long fault rules held it; known when it has left."""
    behind: int = 0
    """The exchange behind whose delayed frame it waited; 0: none."""
    request_fault_ns: int = 0
    request_behind: int = 0
    """On responses: the same of the request."""
    chunk: ChunkTimes | None = None
    """On one of a run that had not left: what learns when it does."""
    queued_ns: int | None = None
    """On responses: for how long the request waited behind others; None: as their times tell."""

    def change(self, splices: Sequence[Splice]) -> None:
        """Note that it was sent on with these splices."""
        if splices:
            self.flags |= REWRITTEN
            self.splices = splices

    @property
    def time_ns(self) -> int:
        """The time of arrival; every entry has one."""
        return self.received_ns

    @property
    def sent(self) -> bytes:
        """The bytes as they were sent on."""
        if not self.splices:
            return self.data
        body = b"".join(apply_splices(self.data, self.splices, 4))
        return len(body).to_bytes(4) + body

    @property
    def data(self) -> bytes:
        """The bytes as they arrived, in one piece."""
        return joined(self.pieces)


@attrs.define(eq=False)
class ChunkTimes:
    """The times when one chunk arrived and was sent on, shared by all frames that it contains."""

    received_ns: int
    sent_ns: int = 0
    """0 until the chunk is sent on."""
    fault_ns: int = 0
    """For how long fault rules held it."""
    behind: int = 0
    """The exchange behind whose delayed frame it waited; 0: none."""
    client_ended: bool = False
    """True if the client had ended its side before the chunk left."""

    def sent_before(self, time_ns: int) -> int:
        """Return the time when the chunk was sent on, 0 if that was later than `time_ns`: a request
        whose chunk a slow broker takes in parts may be answered before the last part."""
        sent_ns = self.sent_ns
        return sent_ns if sent_ns <= time_ns else 0


class PendingRequest(NamedTuple):
    """The facts about one request that are kept until its response has left."""

    correlation_id: int
    api_key: int
    api_version: int
    number: int
    frame_bytes: int
    flags: int
    times: ChunkTimes
    verdict: Any
    """The decision of a rule about it (`proxy.verdicts.Verdict`), or None."""


@final
@attrs.define(eq=False)
class Requests:
    """Consecutive requests that are alike, without their bytes: kept until their responses have
    left.

    Those that arrived whole in one chunk and passed without ado are together; another one is by
    itself. A value for all of them costs a tenth of one for each.
    """

    number: int
    """The number of the first one; those of the others follow."""
    api_key: int
    api_version: int
    flags: int
    correlation_ids: list[int]
    sizes: list[int]
    """The frame_bytes of each."""
    times: ChunkTimes
    verdict: Any = None
    """The decision of a rule (`proxy.verdicts.Verdict`) about one that is by itself, or None."""

    def __getitem__(self, nth: int) -> PendingRequest:
        """Return the nth of them."""
        return PendingRequest(
            self.correlation_ids[nth],
            self.api_key,
            self.api_version,
            self.number + nth,
            self.sizes[nth],
            self.flags,
            self.times,
            self.verdict,
        )

    def __len__(self) -> int:
        return len(self.sizes)


def requests_of(frame: Frame, times: ChunkTimes, verdict: Any = None) -> Requests:
    """Return a request by itself, without its bytes."""
    kind = frame.api_key, frame.api_version, frame.flags
    ids, sizes = [frame.correlation_id], [frame.frame_bytes]
    return Requests(frame.number, *kind, ids, sizes, times, verdict)


RUN_FRAMES_MAX = 0x10000
"""The number of frames that a `Position` can tell apart in a run."""
PIECE_BYTES_MAX = 1 << 20
"""Larger frames are recorded in pieces of about this size; a run is no larger."""


@final
@attrs.define(eq=False)
class FrameRun:
    """Consecutive frames that are alike, and passed as they came or with the same splices:
    requests, or the responses to some. They are of one chunk, if there are several."""

    side: Side
    connection: int
    times: ChunkTimes
    pieces: Sequence[Buffer]
    """The bytes of all frames; of several in one piece."""
    requests: Requests
    """The requests among which are those of this run, or those that it answers."""
    nth: int
    """The place of the first one among them."""
    sizes: list[int]
    """The frame_bytes of each frame."""
    splices: Sequence[Splice] = ()
    """The replacements made in each frame before it was sent on."""

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def number(self) -> int:
        """The number of the first exchange; those of the others follow."""
        return self.requests.number + self.nth

    @property
    def time_ns(self) -> int:
        """The time of arrival."""
        return self.times.received_ns

    @property
    def frame_bytes(self) -> int:
        """The size of all frames together."""
        return sum(self.sizes)

    @property
    def data(self) -> bytes:
        """The bytes of all frames, in one piece."""
        return joined(self.pieces)

    def frames(self) -> Iterator[Frame]:
        """Yield the frames one by one."""
        at, times, responses = 0, self.times, self.side is Side.BROKER
        requests = self.requests
        asked = requests.times
        several, data = len(self.sizes) > 1, self.pieces[0]
        for nth, size in enumerate(self.sizes, self.nth):
            frame = Frame(
                self.side,
                self.connection,
                requests.number + nth,
                requests.api_key,
                requests.api_version,
                requests.correlation_ids[nth],
                times.received_ns,
                [data[at : at + size]] if several else [*self.pieces],
                size,
                requests.flags,
                times.sent_ns,
                splices=self.splices,
                client_ended=times.client_ended,
                fault_ns=times.fault_ns,
                behind=times.behind,
            )
            if not times.sent_ns:
                frame.chunk = times
            if responses:
                frame.flags = REWRITTEN if self.splices else 0
                frame.request_received_ns = asked.received_ns
                frame.request_sent_ns = asked.sent_before(times.received_ns)
                frame.request_bytes = requests.sizes[nth]
                frame.request_fault_ns = asked.fault_ns
                frame.request_behind = asked.behind
            yield frame
            at += size


class Position(NamedTuple):
    """The place of a frame in a recording; a frame in pieces has the place of its last piece.

    As one integer it is `chunk << 32 | piece << 16 | nth`, and 0 is a frame that is not recorded.
    """

    chunk: int
    """The sequence of its chunk, counted from 1 over the whole recording."""
    piece: int
    """The index of the piece among those of the chunk, from 0."""
    nth: int
    """The index of the frame in its piece, from 0."""

    @classmethod
    def of(cls, integer: int) -> Position | None:
        """Return the position that an integer stands for; None for a frame that is not recorded."""
        if integer <= 0:
            return None
        return cls(integer >> 32, integer >> 16 & 0xFFFF, integer & 0xFFFF)

    @property
    def integer(self) -> int:
        """The position as one integer."""
        return self.chunk << 32 | self.piece << 16 | self.nth


UNPLACED = -1
"""The position of a frame that passes just now, and is in no file yet."""

NO_NODE = -1
"""The node_id of a connection to a bootstrap address, in a row."""


UNKNOWN_NS = -1
"""Stands in a row for a span of time that is not known, where 0 is one."""


Int64 = Annotated[int, "int64"]
Int32 = Annotated[int, "int32"]
Int16 = Annotated[int, "int16"]


class ExchangeRow(NamedTuple):
    """The facts about an exchange that a recording tells outside of its bodies.

    The defaults mean that nothing is known. The names of its fields are in recordings, in notes of
    what is pending (`recording.layout`), so they stay.
    """

    number: Int64
    request_received_ns: Int64 = 0
    request_sent_ns: Int64 = 0
    response_received_ns: Int64 = 0
    """The end of the connection, for a request that was not answered."""
    response_sent_ns: Int64 = 0
    queued_ns: Int64 = 0
    """The time that the request, once sent, waited at the broker behind earlier ones of its
    connection: until the response to the one before it arrived."""
    fault_ns: Int64 = UNKNOWN_NS
    """For how long fault rules held the request and the response."""
    held_behind: Int64 = 0
    """The number of the exchange that a rule delayed and behind which one of them waited."""
    request_position: Int64 = 0
    """See `Position`."""
    response_position: Int64 = 0
    request_bytes: Int32 = 0
    response_bytes: Int32 = 0
    connection: Int32 = 0
    node_id: Int32 = NO_NODE
    """NO_NODE on a bootstrap address."""
    correlation_id: Int32 = 0
    max_wait_ms: Int32 = 0
    """The longest wait for records that a Fetch allows the broker."""
    api_key: Int16 = NO_API
    api_version: Int16 = NO_API
    request_flags: Int16 = 0
    response_flags: Int16 = 0
    error_code: Int16 = ERROR_NOT_LOOKED
    """The error code of the response, or ERROR_NOT_LOOKED."""
    fault_ids: Sequence[int] = ()
    """The fault rules that touched the request or the response."""


CONNECTIONS = "connections"
EVENTS = "events"


@final
@attrs.frozen
class Note:
    """Something that happened beside the frames; its body is one JSON object.

    `CONNECTIONS` bodies have `event` ("opened", "client_id", "closed") and `connection`; `EVENTS`
    bodies have `event` ("lost", …).
    """

    channel: str
    """CONNECTIONS or EVENTS."""
    time_ns: int
    body: dict[str, Any]


Entry = Frame | FrameRun | Note
"""Anything that the proxy hands to a recorder."""


def each_frame(entries: Iterable[Entry]) -> Iterator[Frame | Note]:
    """Yield entries, with the frames of runs one by one."""
    for entry in entries:
        if type(entry) is FrameRun:
            yield from entry.frames()
        else:
            yield entry


def count_frames(entries: Iterable[Entry]) -> int:
    """Return the number of frames that these entries complete: a piece that others follow does not
    count, nor does the end of a request without a response."""
    count = 0
    for entry in entries:
        if type(entry) is FrameRun:
            count += len(entry)
        elif type(entry) is Frame:
            count += not entry.flags & (MORE | UNANSWERED)
    return count
