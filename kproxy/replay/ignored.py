"""Differences from the recorded records that are ignored, in the words of tests and recordings.

::

    "partition"            the partition of the record
    "header:trace-id"      the header of this name
    "json:items[*].id"     a part of values that are JSON, or are decoded to it

What is ignored may differ, and not be missing: a header, or a part, is there as often as when it
was recorded, with whatever content, null too. Where a header stands among others does not matter if
it is ignored.

Of a decoded value that has such a part, the rest is compared as JSON, together with the format and
the name of its schema (`Avro shop.Order`); neither its bytes are, nor the id of the schema. A value
without any such part, or whose schema is not known, is compared byte by byte; so is a batch that
cannot be read (`unreadable`), whatever is ignored but the partition.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple

import attrs

from kproxy.exchange.topic_records import TopicRecord
from kproxy.replay.unreadable import UnreadableBatch
from kproxy.wire.payloads import json_paths
from kproxy.wire.payloads.decoding import decode
from kproxy.wire.payloads.meaning import Decoded
from kproxy.wire.payloads.plain import json_text
from kproxy.wire.payloads.schemas import Schemas
from kproxy.wire.protocol.record_batch import Record

Headers = tuple[tuple[str, bytes | None], ...]


UNREAD = "bytes that cannot be read"
"""Stands for the format of a batch that is compared by its bytes."""
PRESENT = b"present"
"""Stands for the value of an ignored header."""


class Content(NamedTuple):
    """The parts of a record that are compared."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    decoded_as: str = ""
    """Format and name of the schema by which the value was decoded, if its rest is compared."""


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
    schemas: Schemas | None = attrs.field(default=None, eq=False)
    """The schemas by which values are decoded."""

    def besides(self, other: Ignored) -> Ignored:
        """Return what is ignored here or there; of partitions, what is not the default here."""
        chosen = other if self.partitions is Partitions.KEYED else self
        headers, paths = self.headers | other.headers, (*self.paths, *other.paths)
        return attrs.evolve(self, partitions=chosen.partitions, headers=headers, paths=paths)

    def compares_partition(self, record: Record | TopicRecord) -> bool:
        """Return whether the partition of a record is compared."""
        if self.partitions is Partitions.KEYED:
            return record.key is not None or isinstance(record, UnreadableBatch)
        return self.partitions is Partitions.ALWAYS

    def content(self, record: Record | TopicRecord, topic: str) -> Content:
        """Return key, value and headers of a record of a topic, without the content of ignored
        parts."""
        if isinstance(record, UnreadableBatch):  # nothing of it can be told apart, to be ignored
            return Content(None, record.value, (), UNREAD)
        headers = record.headers
        if self.headers:
            kept = [each for each in headers if each[0] not in self.headers]
            ignored = sorted(name for name, _ in headers if name in self.headers)
            headers = (*kept, *((name, PRESENT) for name in ignored))
        if not self.paths:
            return Content(record.key, record.value, headers)
        schemas = Schemas() if self.schemas is None else self.schemas
        match decode("value", topic, record.key, record.value, record.headers, schemas):
            case Decoded(value, by):
                whole = json_text(value).encode()
                rest = json_paths.without(whole, self.paths)
                if rest is not whole:
                    return Content(record.key, rest, headers, schema_name(by))
                return Content(record.key, record.value, headers)
            case _:
                value = json_paths.without(record.value, self.paths)
                return Content(record.key, value, headers)


def schema_name(by: str) -> str:
    """Return the format and the name of a schema, `Avro shop.Order`, of what a value is decoded by:
    without its id, which the next registry may give to another."""
    return by.partition(", ")[0]


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
