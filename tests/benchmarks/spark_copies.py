"""Distinct recordings, as many as wanted, out of one real one.

::

    a recording ─▶ chunks ─▶ all times + shift ─▶ Writer ─▶ another recording
                                               └ another id, start, names of files

Distinct are the files (so each has its own pages in the cache), the id of the recording, its start,
and every time in heads, tables and notes: copies follow one after the other, without a gap. So each
chunk is compressed anew, and each checksum is another. Not distinct are the bodies (keys, values,
topics, groups, client ids), the numbers of exchanges and connections, sizes and latencies: who
counts distinct ones of these, or compresses across recordings, finds too few.
"""

from __future__ import annotations

import concurrent.futures
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from mcap.reader import make_reader

from kproxy import __version__, tables
from kproxy.recording import RecordingFile, verify
from kproxy.recording.head import RecordingHead
from kproxy.recording.layout import SMALL_BATCH_BYTES, Channel
from kproxy.recording.mcap import MESSAGE_FIXED_BYTES, MESSAGE_HEAD
from kproxy.recording.scan import Scan
from kproxy.recording.source import RecordingSource
from kproxy.recording.writer import Writer, _ChunkRecords

_RESERVED = ("format_version", "kproxy_min", "schema_id", "start_ns", "recording")
_TIMES = {
    Channel.FRAMES: ("received_ns", "sent_ns"),
    Channel.EXCHANGES: (
        "request_received_ns", "request_sent_ns", "response_received_ns", "response_sent_ns",
    ),
}  # fmt: skip
"""The columns of times; 0 is none."""
_TIME_IN_NOTE = re.compile(rb"\b1\d{18}\b")
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
        head, info = scan.head, scan.info
        more = {key: text for key, text in info.metadata.items() if key not in _RESERVED}
        writer = Writer(
            unfinished,
            start_ns=info.start_ns + shift_ns,
            schema_id=info.schema_id,
            library_version=__version__,
            metadata={"recording": _id(info.metadata["recording"], shift_ns), **more},
            schemas=head.schemas,
        )
        writer._append(_shifted(scan, shift_ns))
        writer.close()
    unfinished.rename(path)
    return path.stat().st_size


def _id(recording: str, shift_ns: int) -> str:
    return f"{(int(recording, 16) + shift_ns) % (1 << 64):016x}"


def _shifted(scan: Scan, shift_ns: int) -> Iterator[_ChunkRecords]:
    for chunk in scan.chunks():
        assert chunk.records is not None
        records = bytearray(chunk.records)
        yield _ChunkRecords(
            [records],
            len(records),
            chunk.start_ns + shift_ns,
            chunk.end_ns + shift_ns,
            _shift(records, scan.head, shift_ns),
            stored=not chunk.compression,
            hard=len(records) < SMALL_BATCH_BYTES,
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
        at += MESSAGE_HEAD.size
        data = view[at : at + length - MESSAGE_FIXED_BYTES]
        at += len(data)
        if channel in _TIMES:
            columns = head.tables[number].columns(data)
            for name in _TIMES[channel]:
                values = np.frombuffer(columns[name], "<i8")
                np.add(values, shift_ns, out=values, where=values != 0)
        else:
            data[:] = _TIME_IN_NOTE.sub(
                lambda found: b"%d" % (int(found[0]) + shift_ns), bytes(data)
            )
    return counts
