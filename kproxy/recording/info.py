"""The findings of a pass over a file: the information in its head, and its chunks."""

from __future__ import annotations

from pathlib import Path

import attrs

from kproxy.recording.uri import Uri

_DIGITS_MAX = 9


@attrs.define(eq=False)
class Info:
    """The findings of a pass over a file: the information in its head, and the places of its
    chunks."""

    path: Path | Uri
    library: str = ""
    native: bool = False
    """True if kproxy wrote it, and no other tool touched it since."""
    format_version: int = 0
    schema_id: str = ""
    start_ns: int = 0
    metadata: dict[str, str] = attrs.field(factory=dict)

    @property
    def part(self) -> int:
        """The number of the file in its recording, from 1; 0 if it does not say."""
        part = self.metadata.get("part", "")
        return int(part) if part.isdecimal() and len(part) <= _DIGITS_MAX else 0

    def continues(self, before: Info) -> bool:
        """Return whether this is of a later part of the same recording."""
        recording = before.metadata.get("recording")
        return recording is not None and recording == self.metadata.get("recording")

    def repeats(self, before: Info) -> bool:
        """Return whether this is of the same part of the same recording."""
        return self.part > 0 and self.part == before.part and self.continues(before)


@attrs.frozen
class Chunk:
    """A verified chunk."""

    offset: int
    """The offset of its record in the file."""
    end: int
    start_ns: int = 0
    end_ns: int = 0
    compression: str = ""
    compressed_bytes: int = 0
    uncompressed_bytes: int = 0
    records: bytes | bytearray | None = None
    """The uncompressed records; None if they were not read. Where only its place is known, nothing
    else is given."""

    def passed_over(self) -> Chunk:
        """Return it without its records."""
        return attrs.evolve(self, records=None)
