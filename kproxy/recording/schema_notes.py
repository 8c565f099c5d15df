"""The notes on schemas that a pass over a recording has not reached.

    id that is not known ─▶ the rest of the file ─▶ the last that continues it ─▶ bodies of notes

A schema is asked for when a record names it, so its note stands behind that record. Who finds an id
that is not known looks ahead once: by the file's index of batches where there is one, else over the
notes, past the frames. The pass itself stays where it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kproxy.recording.file import RecordingFile
from kproxy.recording.files import RecordingError
from kproxy.recording.paths import last_part
from kproxy.recording.uri import Uri


def schemas_ahead(path: Path | Uri | str, offset: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the bodies of the notes on schemas from the batch at an offset on, as far as they can
    be read; then those of the last file of its recording beside it, which repeats all before."""
    with contextlib.suppress(RecordingError):  # whoever reads that part reports it
        with RecordingFile(path) as file:
            file.skip_to(offset)
            for note in file.schema_notes():
                yield note.body
            last = last_part(file.info)
        if last is not None:
            with RecordingFile(last) as file:
                for note in file.schema_notes():
                    yield note.body
