"""The head of a recording file: what it says of itself before its first chunk.

::

    Header, Schema, Channel, Metadata ─▶ RecordingHead ─▶ Info · channels
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import attrs
from zlib_ng.zlib_ng import crc32

from kproxy import __version__
from kproxy.recording.files import FormerFormatError, RecordingError
from kproxy.recording.info import Info
from kproxy.recording.layout import FORMAT_VERSION, FORMER_VERSION, LIBRARY_PREFIX, PROFILE, Channel
from kproxy.recording.mcap import (
    CHANNEL,
    HEADER,
    METADATA,
    RECORD,
    RECORD_BYTES_MAX,
    SCHEMA,
    record,
    take_map,
    take_string,
)
from kproxy.recording.source import RecordingSource, Torn

TOPICS = {channel.topic: channel for channel in Channel}
_RELEASE = re.compile(r"\d{1,5}(\.\d{1,5}){0,3}", re.ASCII)
LAYOUTS = {HEADER: (0, 2), SCHEMA: (2, 3), CHANNEL: (4, 3), METADATA: (0, 2)}
"""The layout of the records of a head: the bytes of fixed size, then the number of fields with a
u32 length."""


@attrs.define(eq=False)
class RecordingHead:
    """The head of a file, as far as it was read."""

    source: RecordingSource
    topics: Mapping[str, int]
    version: int
    info: Info = attrs.field(init=False)
    channels: dict[int, int] = attrs.field(factory=dict)
    """Our channels, by their ids in the file."""
    schemas: dict[int, bytes] = attrs.field(factory=dict)
    """Their schemas."""
    _by_number: dict[int, bytes] = attrs.field(factory=dict, init=False)
    schema_records: bytearray = attrs.field(factory=bytearray)
    """The records that the summary repeats, in a file that kproxy wrote."""
    channel_records: bytearray = attrs.field(factory=bytearray)

    def __attrs_post_init__(self) -> None:
        self.info = Info(self.source.path)

    def take(self, opcode: int, length: int) -> None:
        """Read the content of a record that is neither chunk nor message.

        Raises: Torn; RecordingError.
        """
        source = self.source
        takes = {
            HEADER: self._header,
            SCHEMA: self.schema,
            CHANNEL: self.channel,
            METADATA: self._metadata,
        }
        take = takes.get(opcode)
        before = source.crc
        try:
            if take is None:
                source.pass_over(length, "a record")
            else:
                take(source.content(length, "a record of its head"), before)
        except Torn:
            if self._length_by_fields(opcode) not in (None, length):
                raise source.damage(source.offset, "a length in its head is wrong") from None
            raise
        except (ValueError, IndexError) as error:
            what = f"a record of its head does not decode: {error}"
            raise source.damage(source.offset, what) from None
        if self.info.native and self._length_by_fields(opcode) != length:
            raise source.damage(source.offset, "a length in its head is wrong")

    def _length_by_fields(self, opcode: int) -> int | None:
        """Return the length of a record of the head according to its fields.

        None, if they run past the end of the file or are not known: only then a record that runs
        past it means that the file is torn.
        """
        if opcode not in LAYOUTS:
            return None
        after = self.source.file.tell()
        start = self.source.offset + RECORD.size
        fixed_bytes, fields = LAYOUTS[opcode]
        end = start + fixed_bytes
        for _ in range(fields):
            self.source.file.seek(end)
            end += 4 + int.from_bytes(self.source.file.read(4), "little")
        self.source.file.seek(after)
        return end - start if end <= self.source.size() else None

    def _header(self, content: bytes, before: int) -> None:
        profile, at = take_string(content, 0)
        library, at = take_string(content, at)
        if profile != PROFILE:
            what = f"is an MCAP file, but not a Kafka recording: its profile is {profile[:40]!r}"
            raise self.source.error(self.source.offset, what)
        native = library.startswith(LIBRARY_PREFIX)
        self.info = Info(self.source.path, library or "unknown", native)

    def schema(self, content: bytes, before: int = 0) -> None:
        """Take a Schema record; other tools put them into chunks.

        Raises: ValueError, when it does not decode.
        """
        _, at = take_string(content, 2)
        _, at = take_string(content, at)
        self._by_number[int.from_bytes(content[:2], "little")] = content[at + 4 :]
        if self.info.native:
            self.schema_records += record(SCHEMA, content)
            if len(self.schema_records) > RECORD_BYTES_MAX:
                raise ValueError("its schemas are larger than any")

    def channel(self, content: bytes, before: int = 0) -> None:
        """Take a Channel record; other tools put them into chunks.

        Raises: ValueError, when it does not decode; RecordingError, when it is of another version.
        """
        topic, at = take_string(content, 4)
        _, at = take_string(content, at)
        metadata, at = take_map(content, at)
        channel = self.topics.get(topic)
        if self.info.native:
            self.channel_records += record(CHANNEL, content)
            if len(self.channel_records) > RECORD_BYTES_MAX:
                raise ValueError("it has more channels than any")
        if channel is None:
            return
        self._version(metadata)
        self.channels[int.from_bytes(content[:2], "little")] = channel
        self.schemas[channel] = self._by_number.get(int.from_bytes(content[2:4], "little"), b"")

    def _metadata(self, content: bytes, before: int) -> None:
        name, at = take_string(content, 0)
        entries, at = take_map(content, at)
        if name != PROFILE:
            return
        info = self.info
        if info.native:
            if f"{crc32(content[:-8], before):08x}" != entries.pop("head_crc32", ""):
                raise ValueError("the checksum of the head does not match")
        info.metadata = entries
        info.start_ns = int(entries.get("start_ns", "0"))
        self._version(entries)
        info.format_version = int(entries.get("format_version", "0"))

    def _version(self, entries: dict[str, str]) -> None:
        """Take format_version and schema_id from a channel's or the file's metadata."""
        version = int(entries.get("format_version", self.version))
        if version > FORMAT_VERSION:
            raise self._newer(version, entries.get("kproxy_min", ""))
        if version < self.version:
            raise self._older(version)
        self.info.schema_id = entries.get("schema_id", self.info.schema_id)
        if not self.info.native:  # there, the version marks the end of the head
            self.info.format_version = version

    def _older(self, version: int) -> RecordingError:
        if version != FORMER_VERSION:
            what = f"has format version {version}, which no release wrote or reads: record it again"
            return self.source.error(None, what)
        advice = "copy it to this machine, then `kproxy recover COPY --out NEW` converts it"
        return FormerFormatError(
            self.source.path, None, f"has the former format {version}: {advice}"
        )

    def _newer(self, version: int, kproxy_min: str) -> RecordingError:
        needed = f"a newer kproxy than {__version__}"
        if _release(kproxy_min) > _release(__version__):
            needed = f"kproxy {kproxy_min} or newer, this is {__version__}"
        return self.source.error(None, f"has format version {version}: it needs {needed}")


def _release(text: str) -> tuple[int, ...]:
    """Return the numbers of a release; nothing if the text names none."""
    return tuple(map(int, text.split("."))) if _RELEASE.fullmatch(text) else ()
