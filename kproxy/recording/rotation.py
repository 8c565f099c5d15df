"""A recording of any length: one file after the other.

    write(entries) ─▶ due? ─▶ next file: open connections, state ─▶ Writer

Files are named `<stem>.mcap`, `<stem>-0002.mcap`, `<stem>-0003.mcap` …: a short recording has the
name that was asked for, and a long one's files stand together in a listing. Readers go by the times
and the recording's id that the files carry, never by name.

Each file stands alone. It starts with a note per connection that is open, `{"event": "open", …}`
with everything that earlier notes on CONNECTIONS said about that connection, and one
`{"event": "state", …}` with everything that earlier notes of that event on EVENTS said (mappings
are merged by key). So whoever learns something that later files need (a client id, the API
versions, that a connection is authenticated, the name of a topic id) says it once in a note.
Numbers of exchanges and connections go on.

A file ends when a batch would begin behind `rotate_bytes` or `rotate_ns`, measured by the times of
the entries: nothing here reads a clock. A file that cannot be begun is no reason to lose anything:
the current one goes on, and the next batch tries again. One that somebody deletes is left for the
next one at once: what goes into it nobody will ever read.

Some room on the disk is held from the beginning, by a file without a name, and given back for the
end: what was lost for want of room must be told in the recording itself.

What was said of connections in a batch that could not be written is said again with the next one.
"""

from __future__ import annotations

import itertools
import os
import secrets
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from kproxy.exchange.entries import CONNECTIONS, EVENTS, Entry, Note
from kproxy.recording.writer import Writer

ROTATE_BYTES = 1 << 30
ROTATE_NS = 3600 * 1_000_000_000
_RESERVE_BYTES = 64 << 10
"""For notes of what is lost, and the summary of a recording of some hundred chunks."""


class Recording:
    """A recording being written, in one file or several.

    Parameters as of `Writer`; `rotate_bytes` and `rotate_ns` end a file, None never does. `log` is
    told in one line what the user should know. Calls may come from any thread, one at a time; `log`
    is called from there.

    Resource handling: holds two file descriptors and 64 KiB of disk until `close`.

    Raises: as `Writer`.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        start_ns: int,
        schema_id: str,
        library_version: str,
        compression: str = "adaptive",
        metadata: dict[str, str] | None = None,
        rotate_bytes: int | None = ROTATE_BYTES,
        rotate_ns: int | None = ROTATE_NS,
        log: Callable[[str], None] = lambda text: None,
    ):
        self.path = Path(path)
        self.paths: list[Path] = []
        """The files so far, the current one last."""
        self.unfinished: list[Path] = []
        """Files that were left without their summary (disk full …): readable all the same."""
        self.problem: OSError | None = None
        """Why the last attempt to begin a new file failed; None after one that did not."""
        self._rotate_bytes = rotate_bytes
        self._rotate_ns = rotate_ns
        self._settings = {
            "schema_id": schema_id,
            "library_version": library_version,
            "compression": compression,
        }
        self._metadata = {"recording": secrets.token_hex(8)} | (metadata or {})
        self._open: dict[int, dict[str, Any]] = {}
        self._state: dict[str, Any] = {}
        self._untold: set[int] = set()
        """Open connections of which the current file does not say all, for a batch was refused."""
        self._unopened: set[int] = set()
        """Those among them of which it does not even say that they are open."""
        self._endings: list[Note] = []
        """The notes about the ends of others, that were refused: no more than were open then."""
        self._log = log
        self._part = 0
        self._growing = self._begin(self.path, start_ns), 0
        """The current file and the size of all before it: one thing, for whoever asks for the size
        while another thread begins a new file."""
        self._reserve = _reserve(self.path.parent)

    @property
    def _writer(self) -> Writer:
        return self._growing[0]

    @property
    def bytes_written(self) -> int:
        """The size of all its files so far."""
        writer, bytes_before = self._growing
        return bytes_before + writer.bytes_written

    def write(self, entries: Sequence[Entry]) -> None:
        """Append entries, to a new file if the current one is due.

        Raises: OSError, when they cannot be written: then none of them is in the recording.
        """
        if not entries:
            return
        time_ns = entries[0].time_ns
        notes = [entry for entry in entries if isinstance(entry, Note)]
        try:
            if self._due(time_ns):
                self._rotate(time_ns)
            if self._untold or self._endings:
                told_again = [*self._endings, *self._opening(time_ns, self._untold)]
                entries = [*told_again, *entries]
            self._writer.write(entries)
            self._all_told()
        except OSError:
            self._keep(note for note in notes if note.channel == CONNECTIONS)
            raise
        finally:  # a connection is open even if the note about it is lost
            for note in notes:
                self._remember(note)
            self._untold &= self._open.keys()
            self._unopened &= self._open.keys()

    def prepare_close(self) -> None:
        """Give back the room that was held for the last batch and the end of the file."""
        if self._reserve is not None:
            self._reserve.close()
            self._reserve = None

    def close(self) -> None:
        """Complete and close the current file. Closing twice does nothing.

        Raises: OSError, when there is no room for the summary; the file is readable all the same.
        """
        self.prepare_close()
        self._writer.close()

    def _due(self, time_ns: int) -> bool:
        if self._writer.deleted:
            return True
        if self._rotate_bytes is not None and self._writer.bytes_written >= self._rotate_bytes:
            return True
        return self._rotate_ns is not None and time_ns - self._start_ns >= self._rotate_ns

    def _begin(self, path: Path, start_ns: int) -> Writer:
        """Create the next file.

        Raises: OSError.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = Writer(
            path,
            start_ns=start_ns,
            metadata=self._metadata | {"part": str(self._part + 1)},
            **self._settings,
        )
        try:
            writer.write(self._opening(start_ns, self._open))
        except OSError:
            writer.abandon()
            path.unlink()
            raise
        self._part += 1
        self._start_ns = start_ns
        self.paths.append(path)
        return writer

    def _rotate(self, time_ns: int) -> None:
        """Go on in a new file, if one can be begun.

        Raises: OSError, when none can be begun and the current file was deleted.
        """
        old, bytes_before = self._growing
        deleted = old.deleted
        try:
            new = self._begin(self._next_path(), max(time_ns, self._start_ns))
        except OSError as error:
            if deleted:
                raise
            if self.problem is None:
                why = error.strerror or error
                self._log(f"cannot begin a new file ({why}); the recording goes on in {old.path}")
            self.problem = error
            return
        self.problem = None
        self._all_told()
        if deleted:
            self._log(f"{old.path} was deleted; the recording goes on in {new.path}")
        self._growing = new, bytes_before + old.bytes_written
        try:
            old.close()
        except OSError as error:
            self.unfinished.append(old.path)
            why = error.strerror or error
            self._log(f"cannot complete {old.path} ({why}); kproxy recover does that later")

    def _next_path(self) -> Path:
        """Return the next name that is free; leftovers of other recordings may be in the way."""
        numbers = itertools.count(self._part + 1)
        paths = (self.path.with_stem(f"{self.path.stem}-{number:04}") for number in numbers)
        return next(path for path in paths if not path.exists())

    # ------------------------------------------------------------ what later files need

    def _opening(self, time_ns: int, connections: Iterable[int]) -> list[Note]:
        """Return the notes with which a file starts, of these connections."""
        notes = [
            Note(CONNECTIONS, time_ns, self._open[number] | {"event": "open"})
            for number in connections
        ]
        if self._state:
            notes.append(Note(EVENTS, time_ns, {"event": "state", **self._state}))
        return notes

    def _all_told(self) -> None:
        self._untold.clear()
        self._unopened.clear()
        self._endings.clear()

    def _keep(self, refused: Iterable[Note]) -> None:
        """Keep what must be said again: where these notes should stand, they do not."""
        for note in refused:
            event, connection = note.body.get("event"), note.body["connection"]
            if event == "opened":
                self._unopened.add(connection)
            elif event == "closed" and connection not in self._unopened:
                self._endings.append(note)
            self._untold.add(connection)

    def _remember(self, note: Note) -> None:
        body = note.body
        event = body.get("event")
        if note.channel == EVENTS:
            if event == "state":
                _merge(self._state, body)
            return
        connection = body["connection"]
        if event == "opened":
            self._open[connection] = {"opened_ns": note.time_ns} | body
        elif event == "closed":
            self._open.pop(connection, None)
        elif connection in self._open:
            _merge(self._open[connection], body)


def _reserve(folder: Path) -> BinaryIO | None:
    """Hold some room on the disk until the file is closed; None where there is none to hold."""
    try:
        file = tempfile.TemporaryFile(dir=folder, buffering=0)
    except OSError:
        return None
    try:
        # No zeros: there are file systems that store none.
        if file.write(os.urandom(_RESERVE_BYTES)) == _RESERVE_BYTES:
            return file
    except OSError:
        pass
    file.close()
    return None


def _merge(known: dict[str, Any], body: dict[str, Any]) -> None:
    """Add what a note says to what is known, mappings key by key."""
    for key, value in body.items():
        if key == "event":
            continue
        if isinstance(value, dict):
            known[key] = known.get(key, {}) | value
        else:
            known[key] = value
