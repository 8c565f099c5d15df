"""Gives a recording the schemas that its records name and it lacks: `kproxy recover --schemas`.

file ─▶ notes, records ─▶ SchemaCollector ─▶ sources ─▶ notes appended to the file
(`recording.recovery`)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from kproxy.exchange import notes
from kproxy.net.registry.collecting import SCHEMAS_BYTES_MAX, SchemaCollector, carrying
from kproxy.net.registry.source import Source
from kproxy.recording.exchanges import Reader
from kproxy.recording.file import RecordingFile
from kproxy.recording.recovery import append_notes
from kproxy.wire.payloads.schemas import Schemas, note_of


@attrs.frozen
class Added:
    """The result of `add_schemas`."""

    path: Path
    schemas: int
    """The number that was added."""
    missing: str
    """A line on those that were not found; "" if there are none."""

    def __str__(self) -> str:
        count = self.schemas
        what = f"{count} {'schema' if count == 1 else 'schemas'} added" if count else ""
        if not count:
            what = "no schema added" if self.missing else "has all schemas that its records name"
        return f"{self.path}: {what}" + (f"; {self.missing}" if self.missing else "")


def add_schemas(
    path: Path,
    sources: Sequence[Source],
    on_progress: Callable[[int], None] = lambda done_bytes: None,
) -> Added:
    """Add schemas to a complete recording, in place.

    Raises: RecordingError, when it is damaged, or nothing can be added to it; OSError, when the
    disk is full: the file is then as before.
    """
    known = Schemas()
    room_bytes = SCHEMAS_BYTES_MAX
    with RecordingFile(path) as file:
        for note in file.events("schema"):
            known.note(note.body)
            room_bytes -= len(str(note.body))
    collector = SchemaCollector(sources, room_bytes)
    collector.know(known.ids)
    for exchange in Reader(lambda note: None, carrying(), on_progress).files([path]):
        collector.look(exchange)
    found = list(collector.ask(0.0, last=True))
    if found:
        append_notes(path, lambda now: [notes.schema(now, note_of(*each)) for each in found])
    return Added(path, len(found), collector.missing())
