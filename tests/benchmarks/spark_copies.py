"""Distinct recordings, as many as wanted, out of one real one.

::

    a recording ─▶ chunks ─▶ all times + shift ─▶ Writer ─▶ another recording
                                               └ another id, start, names of files

Distinct are the files (so each has its own pages in the cache), the id of the recording, its start,
and every time in heads, pieces and notes: copies follow one after the other, without a gap. So each
chunk is compressed anew, and each checksum is another. Not distinct are the bodies (keys, values,
topics, groups, client ids), the numbers of exchanges and connections, sizes and latencies: who
counts distinct ones of these, or compresses across recordings, finds too few.
"""

from __future__ import annotations

import concurrent.futures
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import attrs
from mcap.reader import make_reader

from kproxy import __version__, tables
from kproxy.recording import RecordingFile, verify
from kproxy.recording.batch_index import IndexNotes
from kproxy.recording.encoding import ChunkRecords, Encoder
from kproxy.recording.head import RecordingHead
from kproxy.recording.layout import Channel
from kproxy.recording.mcap import MESSAGE_FIXED_BYTES, MESSAGE_HEAD
from kproxy.recording.pieces import PIECE
from kproxy.recording.scan import Scan
from kproxy.recording.source import RecordingSource
from kproxy.recording.writer import Writer

_RESERVED = ("format_version", "kproxy_min", "schema_id", "start_ns", "recording")
_BEFORE_NS = 7
"""Of the fields of a piece's head: when the response before it arrived."""
_TIME_IN_JSON = re.compile(rb"\b1\d{18}\b")
"""Nanoseconds since 1970, from 2001 to 2033."""


def copies(parts: Sequence[Path], folder: Path, numbers: range) -> list[list[Path]]:
    """Write distinct copies of a recording, unless they are there; return the files of each."""
    folder.mkdir(exist_ok=True)
    with RecordingFile(parts[0]) as file:
        first_ns = file.info.start_ns
    with RecordingFile(parts[-1]) as file:
        for _ in file.batches():
            pass
        span_ns = file.end_ns - first_ns + 1
    names = {
        number: [
            folder / f"traffic{number:05}{'' if part == 0 else f'-{part + 1:04}'}.mcap"
            for part in range(len(parts))
        ]
        for number in numbers
    }
    missing = [
        (source, path, number * span_ns)
        for number, paths in names.items()
        for source, path in zip(parts, paths, strict=True)
        if not path.exists()
    ]
    started = time.perf_counter()
    with concurrent.futures.ProcessPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        size = sum(pool.map(copy, *zip(*missing, strict=True))) if missing else 0
    if missing:
        rate = size / (time.perf_counter() - started) / 1e6
        print(f"{len(missing)} files copied, {size / 1e9:.1f} GB, {rate:.0f} MB/s", flush=True)
    return list(names.values())


def check(source: Path, path: Path) -> None:
    """Check that a copy is a valid recording of as many exchanges: by the reader of `mcap`, and by
    kproxy's own.

    Raises: AssertionError, RecordingError, mcap.exceptions.McapError.
    """
    verify(path)
    with open(path, "rb") as file:
        reader = make_reader(file, validate_crcs=True)
        summary = reader.get_summary()
        messages = sum(1 for _ in reader.iter_messages(log_time_order=False))
    assert summary is not None and summary.statistics is not None
    assert messages == summary.statistics.message_count
    given, copied = (
        tables.read(each, columns=["number", "service_ms", "time"]) for each in (source, path)
    )
    one, other = given.read_all(), copied.read_all()
    assert one["number"].equals(other["number"]) and one["service_ms"].equals(other["service_ms"])
    assert not one["time"].equals(other["time"])


def copy(source: Path, path: Path, shift_ns: int) -> int:
    """Write a file of a recording again, later by some time; return its size."""
    unfinished = path.with_suffix(".unfinished")
    with open(source, "rb") as file:
        scan = Scan(RecordingSource(source, file))
        scan.read_head()
        scan.index = None  # the chunks are not collected, so the summary is not compared
        info = scan.info
        more = {key: text for key, text in info.metadata.items() if key not in _RESERVED}
        writer = Writer(
            unfinished,
            start_ns=info.start_ns + shift_ns,
            schema_id=info.schema_id,
            library_version=__version__,
            metadata={"recording": _id(info.metadata["recording"], shift_ns), **more},
            encoder=_Copier(),
        )
        writer.notes = None
        writer.write(_shifted(scan, shift_ns))
        with RecordingFile(unfinished) as made:
            writer.notes = IndexNotes.of(made)
        writer.encoder = Encoder(0)
        writer.close()
    unfinished.rename(path)
    return path.stat().st_size


def _id(recording: str, shift_ns: int) -> str:
    return f"{(int(recording, 16) + shift_ns) % (1 << 64):016x}"


@attrs.define(eq=False)
class _Chunk(ChunkRecords):
    """A chunk that was made elsewhere."""

    counts: list[int] = attrs.field(factory=list)

    @property
    def messages(self) -> tuple[int, ...]:
        """The number of messages on each channel."""
        return tuple(self.counts)


class _Copier(Encoder):
    """Passes on chunks that are there already."""

    def chunks(self, entries: Iterable[_Chunk], wall: object = None) -> Iterator[_Chunk]:
        """Yield them."""
        yield from entries


def _shifted(scan: Scan, shift_ns: int) -> Iterator[_Chunk]:
    for chunk in scan.chunks():
        assert chunk.records is not None
        records = bytearray(chunk.records)
        yield _Chunk(
            0,
            [records],
            len(records),
            0 if chunk.compression else len(records),
            times_ns=[chunk.start_ns + shift_ns, chunk.end_ns + shift_ns],
            counts=_shift(records, scan.head, shift_ns),
        )


def _shift(records: bytearray, head: RecordingHead, shift_ns: int) -> list[int]:
    """Shift the times in a chunk; return the number of its messages on each channel."""
    counts, at, view = [0] * len(Channel), 0, memoryview(records)
    while at < len(records):
        opcode, length, number, batch, log_ns, publish_ns = MESSAGE_HEAD.unpack_from(records, at)
        times = (each + shift_ns if each else 0 for each in (log_ns, publish_ns))
        MESSAGE_HEAD.pack_into(records, at, opcode, length, number, batch, *times)
        channel = head.channels[number]
        counts[channel - 1] += 1
        text = view[at + MESSAGE_HEAD.size : at + MESSAGE_HEAD.size + length - MESSAGE_FIXED_BYTES]
        if channel == Channel.PIECES:
            fields = list(PIECE.unpack_from(records, at))
            fields[_BEFORE_NS] += shift_ns if fields[_BEFORE_NS] else 0
            PIECE.pack_into(records, at, *fields)
            extras_at = PIECE.size - MESSAGE_HEAD.size
            text = text[extras_at : extras_at + fields[-1]]
        at += MESSAGE_HEAD.size + length - MESSAGE_FIXED_BYTES
        text[:] = _TIME_IN_JSON.sub(lambda found: b"%d" % (int(found[0]) + shift_ns), bytes(text))
    return counts
