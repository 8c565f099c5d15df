"""The index of a large recording, kept in the user's cache, so that the next start is quick.

::

    magic │ u32 size of the text │ JSON text │ columns and bytes … │ u32 CRC-32 of all before

The text has the sizes of the columns and bytes, and the key: the recording's files (path, size,
time of the last change, a checksum of both ends, the last of which has checksums of all the rest),
the options they were loaded with, and the version of kproxy. An index with another key, or a
damaged one, is ignored. It is written to a temporary file, which is then renamed.

The folder keeps `KEPT_BYTES_MAX` of indexes: those that were used last.

Like the recording, an index may hold personal data, so only its owner can read it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import sys
import time
import uuid
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs
from zlib_ng.zlib_ng import crc32

from kproxy import __version__
from kproxy.recording import files
from kproxy.recording.files import make_folder, replacing
from kproxy.recording.layout import FORMAT_VERSION
from kproxy.recording.stored import Locations
from kproxy.replay.batch_index import COLUMNS, PartitionBatches
from kproxy.replay.live_order import PartitionTransaction
from kproxy.replay.loaded import Committed, CommittingGroups, Loaded, Other, RefusedBatch
from kproxy.replay.log import PartitionLog
from kproxy.replay.topics import Partition, Topic

INDEX_VERSION = 13
"""Version of the format; the key has that of kproxy, too, which may load a recording in another
way."""
KEPT_BYTES_MAX = 1 << 30
"""Limit of all indexes together; the newest is kept, however large. The index of a recording of a
gigabyte has some tens of megabytes."""
_MAGIC = b"KPROXYIX"
_END_BYTES = 4096
_UNFINISHED = ".index-"
_UNFINISHED_SECONDS = 3600
"""Older unfinished files belong to processes that have died."""
_OFFSETS = ("start_offset", "last_start_offset", "end_offset", "epochs")
_LOCATION_CODES = {"numbers": "q", "offsets": "q", "ends": "q", "nths": "i", "lasts": "i"}


@attrs.define(eq=False)
class Indexed:
    """The contents of an index."""

    loaded: Loaded
    locations: list[Locations]
    times: dict[int, array]
    """Recorded response times for `pace`, by API key."""
    faults: list[dict[str, Any]]
    """Fault rules of `recorded_faults`, as dicts."""
    not_repeated: list[str]
    """Recorded faults that no rule repeats."""


# ---- keys and paths


def cache_folder() -> Path | None:
    """Return the folder for indexes in the user's cache; None for a user without a home."""
    return files.cache_folder("replay")


def key_of(paths: Sequence[Path], way: Sequence[Any]) -> dict[str, Any]:
    """Return the key of an index of these files, loaded with these options.

    Raises: OSError.
    """
    files = []
    for path in paths:
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            start = file.read(_END_BYTES)
            file.seek(max(0, about.st_size - _END_BYTES))
            ends = crc32(file.read(_END_BYTES), crc32(start))
        files.append([str(path.resolve()), about.st_size, about.st_mtime_ns, ends])
    versions = [__version__, INDEX_VERSION, FORMAT_VERSION, sys.byteorder]
    return {"files": files, "way": list(way), "versions": versions}


def path_of(folder: Path, key: dict[str, Any]) -> Path:
    """Return the path of the index of a key; an outdated index has the same path."""
    names = [each[0] for each in key["files"]]
    text = json.dumps([names, key["way"]])
    return folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.index"


# ---- reading and writing


def read(path: Path, key: dict[str, Any]) -> Indexed | None:
    """Read an index; return None if there is none with this key."""
    data = _read_if_owned(path)
    size = int.from_bytes(data[8:12], "little")
    if data[:8] != _MAGIC or len(data) < 16 + size:
        return None
    if crc32(memoryview(data)[:-4]) != int.from_bytes(data[-4:], "little"):
        return None
    try:
        text = json.loads(data[12 : 12 + size])
        if text["key"] != key:
            return None
        found = _decoded(text, _Blobs.of(text["sizes"], memoryview(data)[12 + size : -4]))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError):
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # the time of its last use
    return found


def _read_if_owned(path: Path) -> bytes:
    """Return the contents of a file that only the user can write; nothing of any other.

    An index is trusted, so another user who could plant one could change what is replayed.
    """
    try:
        # Without O_NONBLOCK, opening a pipe would wait for its other end.
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(number, "rb") as file:
            about = os.fstat(number)
            owned = about.st_uid == os.geteuid() and not about.st_mode & 0o022
            return file.read() if owned and stat.S_ISREG(about.st_mode) else b""
    except OSError:
        return b""


def write(path: Path, key: dict[str, Any], indexed: Indexed) -> None:
    """Write an index.

    Raises: OSError.
    """
    blobs = _Blobs()
    text = {"key": key, **_encoded(indexed, blobs)}
    text["sizes"] = [memoryview(each).nbytes for each in blobs.all]
    head = json.dumps(text, separators=(",", ":")).encode()
    make_folder(path.parent)
    _remove_unfinished(path.parent)
    with replacing(path, _UNFINISHED) as file:
        crc = 0
        for piece in (_MAGIC, len(head).to_bytes(4, "little"), head, *blobs.all):
            file.write(piece)
            crc = crc32(piece, crc)
        file.write(crc.to_bytes(4, "little"))
    _remove_unused(path)


def _remove_unused(newest: Path) -> None:
    """Remove the indexes that were used longest ago, if all together exceed the limit."""
    found: list[tuple[float, int, Path]] = []
    for each in newest.parent.glob(f"*{newest.suffix}"):
        with contextlib.suppress(OSError):  # another process may have removed it
            about = each.stat()
            found.append((about.st_mtime, about.st_size, each))
    left = KEPT_BYTES_MAX - sum(size for _, size, path in found if path == newest)
    for _, size, path in sorted(found, reverse=True):
        if path == newest:
            continue
        left -= size
        if left < 0:
            with contextlib.suppress(OSError):
                path.unlink()


def _remove_unfinished(folder: Path) -> None:
    """Remove the unfinished files of processes that were killed."""
    for each in folder.glob(f"{_UNFINISHED}*"):
        with contextlib.suppress(OSError):
            if time.time() - each.stat().st_mtime > _UNFINISHED_SECONDS:
                each.unlink()


@attrs.define(eq=False)
class _Blobs:
    """The columns and bytes of an index; the text refers to them by number."""

    all: list[Any] = attrs.Factory(list)

    def add(self, data: Any) -> int:
        """Add a blob; return its number."""
        self.all.append(data)
        return len(self.all) - 1

    def bytes(self, number: int) -> bytes:
        """Return a blob as bytes."""
        return bytes(self.all[number])

    def column(self, code: str, number: int) -> array:
        """Return a blob as a column."""
        found = array(code)
        found.frombytes(self.all[number])
        return found

    @classmethod
    def of(cls, sizes: list[int], data: memoryview) -> _Blobs:
        """Split the data of a file into blobs of these sizes."""
        found, at = cls(), 0
        for size in sizes:
            found.add(data[at : at + size])
            at += size
        if at != len(data):
            raise ValueError("its parts are larger or smaller than it says")
        return found


# ---- the text


def _encoded(indexed: Indexed, blobs: _Blobs) -> dict[str, Any]:
    loaded, cluster = indexed.loaded, indexed.loaded.cluster
    return {
        "cluster_id": cluster.cluster_id,
        "controller_id": cluster.controller_id,
        "racks": list(cluster.racks.items()),
        "names": [[topic_id.hex, name] for topic_id, name in cluster.names.items()],
        "coordinators": [[*key, node] for key, node in cluster.coordinators.items()],
        "topics": [_encoded_topic(each, blobs) for each in cluster.all_topics],
        "made": [blobs.add(each) for each in cluster.store.made],
        "committed": [
            [group, [[*key, *attrs.astuple(each)] for key, each in offsets.items()]]
            for group, offsets in loaded.committed.items()
        ],
        "groups": loaded.groups,
        "committing": [sorted(names) for names in attrs.astuple(loaded.committing)],
        "produced": sorted(loaded.produced),
        "refused": sorted(loaded.refused),
        "unplaced": [[each.hex, index, blobs.add(data)] for each, index, data in loaded.unplaced],
        "refused_batches": [
            [each.topic, blobs.add(each.data), each.error_code, each.by_rule]
            for each in loaded.refused_batches
        ],
        "undecoded": [_encoded_other(each, blobs) for each in loaded.undecoded],
        "others": [
            _encoded_other(each, blobs) for others in loaded.others.values() for each in others
        ],
        "producer_id_max": loaded.producer_id_max,
        "exchanges": loaded.exchanges,
        "lacking": loaded.lacking,
        "schemas": loaded.schema_notes,
        "locations": [
            [blobs.add(getattr(each, name)) for name in _LOCATION_CODES]
            for each in indexed.locations
        ],
        "times": [[api_key, blobs.add(times)] for api_key, times in indexed.times.items()],
        "faults": indexed.faults,
        "not_repeated": indexed.not_repeated,
    }


def _encoded_other(other: Other, blobs: _Blobs) -> list[int]:
    frames = blobs.add(other.request_frame), blobs.add(other.response_frame)
    return [other.api_key, other.api_version, *frames]


def _decoded_other(numbers: list[int], blobs: _Blobs) -> Other:
    key, version, request, response = numbers
    return Other(key, version, blobs.bytes(request), blobs.bytes(response))


def _encoded_topic(topic: Topic, blobs: _Blobs) -> list[Any]:
    partitions = [
        [
            [each.index, each.leader_id, each.leader_epoch, each.replicas, each.in_sync],
            [getattr(each.log, name) for name in _OFFSETS],
            [attrs.astuple(transaction) for transaction in each.log.transactions],
            [blobs.add(column) for column in each.log.index.columns()],
            [blobs.add(column) for column in each.log.removed.columns()],
        ]
        for each in topic.partitions.values()
    ]
    about = [topic.name, topic.topic_id.hex, topic.internal, topic.created, topic.partitions_first]
    return [about, partitions]


def _decoded(text: dict[str, Any], blobs: _Blobs) -> Indexed:
    loaded = Loaded()
    cluster = loaded.cluster
    cluster.cluster_id, cluster.controller_id = text["cluster_id"], text["controller_id"]
    cluster.racks = dict(text["racks"])
    cluster.names = {uuid.UUID(topic_id): name for topic_id, name in text["names"]}
    cluster.coordinators = {(kind, key): node for kind, key, node in text["coordinators"]}
    for number in text["made"]:
        cluster.store.append(blobs.bytes(number))
    for topic in (_decoded_topic(each, loaded, blobs) for each in text["topics"]):
        cluster.generations.setdefault(topic.name, []).append(topic)
        cluster.topics.setdefault(topic.name, topic)
    loaded.committed = {
        group: {(name, index): Committed(*rest) for name, index, *rest in offsets}
        for group, offsets in text["committed"]
    }
    loaded.groups = text["groups"]
    loaded.committing = CommittingGroups(*map(set, text["committing"]))
    loaded.produced = {(name, index) for name, index in text["produced"]}
    loaded.refused = set(text["refused"])
    for topic_id, index, data in text["unplaced"]:
        loaded.unplaced.append((uuid.UUID(topic_id), index, blobs.bytes(data)))
    for name, number, code, by_rule in text["refused_batches"]:
        refused = RefusedBatch(name, blobs.bytes(number), code, by_rule)
        loaded.refused_batches.append(refused)
    loaded.undecoded = [_decoded_other(each, blobs) for each in text["undecoded"]]
    for other in (_decoded_other(each, blobs) for each in text["others"]):
        loaded.others.setdefault(other.api_key, []).append(other)
    loaded.producer_id_max, loaded.exchanges = text["producer_id_max"], text["exchanges"]
    loaded.lacking = text["lacking"]
    for body in text["schemas"]:
        loaded.note_schema(body)
    codes = _LOCATION_CODES.values()
    locations = [
        Locations(*(blobs.column(code, each) for code, each in zip(codes, numbers, strict=True)))
        for numbers in text["locations"]
    ]
    times = {api_key: blobs.column("q", number) for api_key, number in text["times"]}
    return Indexed(loaded, locations, times, text["faults"], text["not_repeated"])


def _decoded_topic(text: list[Any], loaded: Loaded, blobs: _Blobs) -> Topic:
    (name, topic_id, internal, created, first), partitions = text
    topic = Topic(name, uuid.UUID(topic_id), internal, created=created, partitions_first=first)
    for about, offsets, transactions, columns, removed in partitions:
        index, leader_id, leader_epoch, replicas, in_sync = about
        log = PartitionLog(loaded.cluster.store)
        start, last_start, end, epochs = offsets
        log.restore(
            (start, last_start, end),
            [(offset, epoch) for offset, epoch in epochs],
            _index(columns, blobs),
            _index(removed, blobs),
            [PartitionTransaction(*each) for each in transactions],
        )
        partition = Partition(index, log, leader_id, leader_epoch, replicas, in_sync)
        topic.partitions[index] = partition
    return topic


def _index(numbers: Iterable[int], blobs: _Blobs) -> PartitionBatches:
    codes = COLUMNS.values()
    columns = [blobs.column(code, each) for code, each in zip(codes, numbers, strict=True)]
    if len({len(column) for column in columns[:-1]}) != 1:
        raise ValueError("its columns are not of one length")
    return PartitionBatches.of(columns)
