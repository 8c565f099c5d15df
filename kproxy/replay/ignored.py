"""Differences from the recorded records that are ignored; `ignore_words` has the words for them.

What is ignored may differ, and not be missing: a header, or a part, is there as often as when it
was recorded, with whatever content of its kind; of any kind is null, too. Where a header stands
among others does not matter if it is ignored.

Of a decoded value that has such a part, the rest is compared as JSON, together with the format and
the name of its schema (`Avro shop.Order`); neither its bytes are, nor the id of the schema. A value
without any such part, or whose schema is not known, is compared byte by byte; so is a batch that
cannot be read (`unreadable`), whatever is ignored but the partition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import attrs

from kproxy.exchange.topic_records import TopicRecord
from kproxy.replay.kinds import Kind, plain
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
"""Stands for the value of an ignored header of any kind."""


class Content(NamedTuple):
    """The parts of a record that are compared."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    decoded_as: str = ""
    """Format and name of the schema by which the value was decoded, if its rest is compared."""


@attrs.frozen
class IgnoredPart:
    """A part of records that may differ."""

    what: str
    """The first word of it: "key", "header", …"""
    name: str = ""
    """The name of a header, or a path."""
    kind: Kind = Kind.ANY
    topic: str = ""
    """"" for all topics."""

    @property
    def word(self) -> str:
        """The word for it (`ignore_words`)."""
        kind = "" if self.kind is Kind.ANY and ":" not in self.name else self.kind.value
        where = f"{self.topic}/" if self.topic else ""
        return where + ":".join(each for each in (self.what, self.name, kind) if each)

    @property
    def place(self) -> str:
        """The place as differences name it."""
        return {"json": f"value.{self.name}", "key-json": f"key.{self.name}"}.get(
            self.what, f"{self.what} {self.name}".strip()
        )

    @property
    def path(self) -> json_paths.Path:
        """The path of a part of JSON."""
        return json_paths.parse(self.name)


Varying = tuple[tuple[IgnoredPart, Any], ...]
"""The contents of ignored parts that are of a kind."""


@attrs.frozen
class _Masking:
    """Puts marks in the place of what is ignored of one record, and keeps what was there."""

    parts: list[IgnoredPart]
    varying: list[tuple[IgnoredPart, Any]] = attrs.Factory(list)

    def of(self, *whats: str) -> list[IgnoredPart]:
        return [each for each in self.parts if each.what in whats]

    def replacing(self, part: IgnoredPart) -> Callable[[Any], Any]:
        """Return a function that puts the mark of the part's kind in the place of its content."""

        def replace(content: Any) -> Any:
            if not part.kind.fits(content):
                return content
            if part.kind is not Kind.ANY:
                self.varying.append((part, plain(content)))
            return part.kind.mark

        return replace

    def whole(self, what: str, data: bytes | None) -> bytes | None:
        for part in self.of(what):
            found = self.replacing(part)(data)
            data = found.encode() if isinstance(found, str) else found
        return data

    def headers(self, headers: Headers) -> Headers:
        parts = {each.name: each for each in reversed(self.of("header"))}
        if not parts:
            return headers
        kept = [each for each in headers if each[0] not in parts]
        ignored: list[tuple[str, bytes | None]] = []
        for name, data in headers:
            if name in parts:
                found = self.replacing(parts[name])(data)
                found = PRESENT if parts[name].kind is Kind.ANY else found
                ignored.append((name, found.encode() if isinstance(found, str) else found))
        return (*kept, *sorted(ignored, key=repr))

    def json(self, what: str, data: bytes | None) -> bytes | None:
        parts = [(each.path, self.replacing(each)) for each in self.of(what)]
        return json_paths.replaced(data, parts) if parts else data


@attrs.frozen
class Ignored:
    """The parts of records that are not compared."""

    is_partition_always_compared: bool = False
    """False: of records without a key it is not, if nothing else is said."""
    parts: tuple[IgnoredPart, ...] = ()
    schemas: Schemas | None = attrs.field(default=None, eq=False)
    """The schemas by which values are decoded."""
    _of_topics: dict[str, list[IgnoredPart]] = attrs.field(
        factory=dict, init=False, eq=False, repr=False
    )

    @property
    def aspects(self) -> frozenset[str]:
        """The aspects that are not compared, among the other first words."""
        return frozenset(each.what for each in self.parts)

    def of_topic(self, topic: str) -> list[IgnoredPart]:
        """Return the parts that are ignored in a topic."""
        if not self.parts:
            return []
        found = self._of_topics.get(topic)
        if found is None:
            found = [each for each in self.parts if each.topic in ("", topic)]
            self._of_topics[topic] = found
        return found

    def frees(self, topic: str) -> bool:
        """Return whether any records may be produced to a topic, in any number."""
        return any(each.what == "records" for each in self.of_topic(topic))

    def any_partition(self, topic: str) -> bool:
        """Return whether no record of a topic has to be in its recorded partition."""
        free = ("partition", "key", "key-json")
        return not self.is_partition_always_compared and any(
            each.what in free for each in self.of_topic(topic)
        )

    def compares_partition(self, record: Record | TopicRecord, topic: str) -> bool:
        """Return whether the partition of a record of a topic is compared."""
        if self.is_partition_always_compared:
            return True
        is_placed = record.key is not None or isinstance(record, UnreadableBatch)
        return is_placed and not self.any_partition(topic)

    def content(self, record: Record | TopicRecord, topic: str) -> Content:
        """Return key, value and headers of a record of a topic, without the content of ignored
        parts."""
        return self.read(record, topic)[0]

    def read(self, record: Record | TopicRecord, topic: str) -> tuple[Content, Varying]:
        """Return the `content` of a record, and what its ignored parts have that are of a kind."""
        if isinstance(record, UnreadableBatch):  # nothing of it can be told apart, to be ignored
            return Content(None, record.value, (), UNREAD), ()
        parts = self.of_topic(topic)
        if all(each.what == "partition" for each in parts):
            return Content(record.key, record.value, record.headers), ()
        masking = _Masking(parts)
        headers = masking.headers(record.headers)
        key, _ = self._part(masking, "key", record, topic)
        value, decoded_as = self._part(masking, "value", record, topic)
        return Content(key, value, headers, decoded_as), tuple(masking.varying)

    def _part(
        self, masking: _Masking, part: str, record: Record | TopicRecord, topic: str
    ) -> tuple[bytes | None, str]:
        """Return the `key` or the `value` without what is ignored, and by what it was decoded for
        that."""
        data = record.key if part == "key" else record.value
        what = "json" if part == "value" else "key-json"
        if masking.of(what):
            schemas = Schemas() if self.schemas is None else self.schemas
            match decode(part, topic, record.key, record.value, record.headers, schemas):
                case Decoded(value, by):
                    whole = json_text(value).encode()
                    rest = masking.json(what, whole)
                    if rest is not whole:
                        return rest, schema_name(by)
                case _:
                    data = masking.json(what, data)
        return masking.whole(part, data), ""


def schema_name(by: str) -> str:
    """Return the format and the name of a schema, `Avro shop.Order`, of what a value is decoded by:
    without its id, which the next registry may give to another."""
    return by.partition(", ")[0]
