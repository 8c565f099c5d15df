"""Differences from the recorded records that are ignored, in the words of tests and recordings.

::

    "partition"            the partition of the record
    "header:trace-id"      the header of this name
    "json:items[*].id"     a part of values that are JSON
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import attrs

from kproxy.exchange.topic_records import TopicRecord
from kproxy.payloads import json_paths
from kproxy.protocol.record_batch import Record

Headers = tuple[tuple[str, bytes | None], ...]


class Partitions(enum.Enum):
    """The records whose partitions are compared."""

    KEYED = "keyed"
    """Records with a key."""
    ALWAYS = "always"
    NEVER = "never"


@attrs.frozen
class Ignored:
    """The parts of records that are not compared."""

    partitions: Partitions = Partitions.KEYED
    headers: frozenset[str] = frozenset()
    """Names of record headers."""
    paths: tuple[json_paths.Path, ...] = ()
    """Paths of parts of JSON values."""

    def compares_partition(self, record: Record | TopicRecord) -> bool:
        """Return whether the partition of a record is compared."""
        if self.partitions is Partitions.KEYED:
            return record.key is not None
        return self.partitions is Partitions.ALWAYS

    def content(self, record: Record) -> tuple[bytes | None, bytes | None, Headers]:
        """Return key, value and headers of a record, without the ignored parts."""
        headers = record.headers
        if self.headers:
            headers = tuple(each for each in headers if each[0] not in self.headers)
        value = json_paths.without(record.value, self.paths) if self.paths else record.value
        return record.key, value, headers


def parse(words: Iterable[str]) -> Ignored:
    """Parse the words for ignored parts.

    Raises:
        ValueError: a word is none of those above.
    """
    partitions = Partitions.KEYED
    headers: set[str] = set()
    paths: list[json_paths.Path] = []
    for word in words:
        kind, _, name = word.partition(":")
        if word == "partition":
            partitions = Partitions.NEVER
        elif kind == "header" and name:
            headers.add(name)
        elif kind == "json" and name:
            paths.append(json_paths.parse(name))
        else:
            wanted = '"partition", "header:NAME" or "json:PATH"'
            raise ValueError(f"{word!r} cannot be ignored: give {wanted}")
    return Ignored(partitions, frozenset(headers), tuple(paths))
