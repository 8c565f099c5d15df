"""The head of a recording file: what it says of itself before its first chunk.

::

    Header, Schema, Channel, Metadata ─▶ Head ─▶ Info · channels
"""

from __future__ import annotations

import attrs
from zlib_ng.zlib_ng import crc32

from kproxy.recording.info import Info
from kproxy.recording.layout import FORMAT_VERSION, LIBRARY_PREFIX, PROFILE, Channel
from kproxy.recording.mcap import CHANNEL, HEADER, METADATA, RECORD, SCHEMA, take_map, take_string
from kproxy.recording.source import Source, Torn

_CHANNELS = {channel.topic: channel for channel in Channel}
LAYOUTS = {HEADER: (0, 2), SCHEMA: (2, 3), CHANNEL: (4, 3), METADATA: (0, 2)}
"""Of the records of a head: bytes of fixed size, then how many fields with a u32 length."""


@attrs.define(eq=False)
class Head:
    """What was read of the head of a file."""

    source: Source
    info: Info = attrs.field(init=False)
    channels: dict[int, Channel] = attrs.field(factory=dict)
    """The file's channels that are ours, by the file's ids."""

    def __attrs_post_init__(self) -> None:
        self.info = Info(self.source.path)

    def take(self, opcode: int, length: int) -> None:
        """Read the content of a record that is neither chunk nor message.

        Raises: Torn; RecordingError.
        """
        source = self.source
        takes = {HEADER: self._header, CHANNEL: self.channel, METADATA: self._metadata}
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
        """Return how long the fields of a record of the head say that it is.

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

    def channel(self, content: bytes, before: int = 0) -> None:
        """Take a Channel record; other tools put them into chunks.

        Raises: ValueError, when it does not decode.
        """
        number = int.from_bytes(content[:2], "little")
        topic, at = take_string(content, 4)
        _, at = take_string(content, at)
        metadata, at = take_map(content, at)
        if topic in _CHANNELS:
            self.channels[number] = _CHANNELS[topic]
            self._version(metadata)

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
        version = int(entries.get("format_version", FORMAT_VERSION))
        if version != FORMAT_VERSION:
            advice = (
                "read it with a newer kproxy" if version > FORMAT_VERSION else "record it again"
            )
            what = f"has format version {version}, this kproxy reads {FORMAT_VERSION}: {advice}"
            raise self.source.error(self.source.offset, what)
        self.info.schema_id = entries.get("schema_id", self.info.schema_id)
        if not self.info.native:  # there, the version marks the end of the head
            self.info.format_version = version
