"""A recording of any length: one file after the other.

    write(entries) ─▶ due? ─▶ next file: open connections, state ─▶ Writer

Files are named `<stem>.mcap`, `<stem>-0002.mcap`, `<stem>-0003.mcap` …: a short recording has the
name that was asked for, and a long one's files stand together in a listing. Readers go by the times
and the recording's id that the files carry, never by name.

Each file stands alone: it starts with notes that repeat what is open (`connections`), and list the
exchanges that are not complete (`encoding`). Numbers of exchanges, connections and chunks go on.

A file ends when entries would begin behind `rotate_bytes` or `rotate_ns`, measured by the times of
the entries: nothing here reads a clock. A file that cannot be begun is no reason to lose anything:
the current one goes on, and the next entries try again. One that somebody deletes is left for the
next one at once: what goes into it nobody will ever read. So is one in which something went wrong
that nobody foresaw, because what the writer knows of it may be wrong; but once a minute at most.

Some room on the disk is held from the beginning, by a file without a name, and given back for the
end: the recording itself must report what was lost for want of room.

Notes on connections that could not be written are repeated with the next ones.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from kproxy.exchange.entries import Entry, Note
from kproxy.levels import Logger, silent
from kproxy.recording.connections import ConnectionLog
from kproxy.recording.encoding import Encoder, Wall, as_it_is
from kproxy.recording.files import make_folder, reason
from kproxy.recording.writer import Writer

ROTATE_BYTES = 1 << 30
ROTATE_NS = 3600 * 1_000_000_000
_DOUBT_NS = 60 * 1_000_000_000
"""The least age of a file that was begun because of a defect, before another defect ends it."""
_RESERVE_BYTES = 64 << 10
"""Room for notes of losses, and for the summary of a recording of some hundred chunks."""


class Recording:
    """A recording being written, in one file or several.

    Parameters as for `Writer`; `rotate_bytes` and `rotate_ns` end a file, None never does. `log`
    gets one line for each thing that the user should know. Calls may come from any thread, one at a
    time; `log` is called from there.

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
        log: Logger = silent,
    ):
        self.path = Path(path)
        self.paths: list[Path] = []
        """The files so far, the current one last, without those that were removed (`forget`)."""
        self._make_room: Callable[[int], bool] = lambda size_bytes: False
        self.unfinished: list[Path] = []
        """Files that were left without their summary (disk full …): readable all the same."""
        self.problem: Exception | None = None
        """The error of the last attempt to begin a new file; None if that succeeded."""
        self._rotate_bytes = rotate_bytes
        self._rotate_ns = rotate_ns
        self._settings: dict[str, Any] = {
            "schema_id": schema_id,
            "library_version": library_version,
            "compression": compression,
            "make_room": self._call_make_room,
        }
        self._metadata = {"recording": os.urandom(8).hex()} | (metadata or {})
        self._connections = ConnectionLog()
        self._encoder = Encoder()
        self._log = log
        self._doubtful = False
        """True after an unforeseen error with the current file."""
        self._kept_until_ns = 0
        """The time until which a file in doubt is kept."""
        self._since_ns = start_ns
        """The time from which the age of the current file counts."""
        self._part = 0
        self._growing = self._begin(self.path, start_ns), 0
        """The current file and the size of all before it, in one value, for readers of the size
        while another thread begins a new file."""
        self._reserve = _reserve(self.path.parent)

    @property
    def _writer(self) -> Writer:
        return self._growing[0]

    @property
    def id(self) -> str:
        """The id of the recording, which all its files carry."""
        return self._metadata["recording"]

    def when_full(self, make_room: Callable[[int], bool]) -> None:
        """Call this when the disk is full, as `Writer` does."""
        self._make_room = make_room

    def forget(self, path: Path) -> None:
        """Leave out a complete file that was removed."""
        self.paths.remove(path)

    @property
    def bytes_written(self) -> int:
        """The size of all its files so far."""
        writer, bytes_before = self._growing
        return bytes_before + writer.bytes_written

    @property
    def waits(self) -> bool:
        """True while there is something to be written that comes without further entries."""
        return self._encoder.waits

    def write(self, entries: Sequence[Entry], wall: Wall = as_it_is) -> None:
        """Append entries, to a new file if the current one is due; `wall` moves the times of frames
        to the system's clock.

        Raises: OSError, when they cannot be written: then none of them is in the recording.
        """
        notes = [each for each in entries if type(each) is Note]
        time_ns = entries[0].time_ns if entries else 0
        if entries and type(entries[0]) is not Note:
            time_ns += wall(time_ns)
        try:
            if entries and (self._writer.deleted or self._due(time_ns)):
                self._rotate(time_ns, wall)
            again = self._connections.notes_to_repeat(time_ns)
            self._writer.write([*again, *entries] if again else entries, wall)
            self._connections.clear_missing()
        except Exception as error:
            self._doubtful |= not isinstance(error, OSError)
            self._connections.keep_missing(notes)
            raise
        finally:
            self._connections.remember(notes)

    def prepare_close(self) -> None:
        """Release the room that was held for the last batch and the end of the file."""
        reserve, self._reserve = self._reserve, None
        if reserve is not None:
            with contextlib.suppress(OSError):  # it was written for nobody
                reserve.close()

    def close(self) -> None:
        """Complete and close the current file. Closing twice does nothing.

        Raises: OSError, when there is no room for the summary; the file is readable all the same.
        """
        self.prepare_close()
        self._writer.close()

    def _call_make_room(self, size_bytes: int) -> bool:
        return self._make_room(size_bytes)  # that of now, whenever the file was begun

    def _due(self, time_ns: int) -> bool:
        if self._doubtful and time_ns >= self._kept_until_ns:
            return True
        if self._rotate_bytes is not None and self._writer.bytes_written >= self._rotate_bytes:
            return True
        # The clock may have been set back since the file began.
        age_ns = abs(time_ns - self._since_ns)
        return self._rotate_ns is not None and age_ns >= self._rotate_ns

    def _begin(self, path: Path, start_ns: int, wall: Wall = as_it_is) -> Writer:
        """Create the next file.

        Raises: OSError.
        """
        make_folder(path.parent)
        writer = Writer(
            path,
            start_ns=start_ns,
            metadata=self._metadata | {"part": str(self._part + 1)},
            encoder=self._encoder,
            **self._settings,
        )
        try:
            if self._part:
                opening = self._connections.opening_notes(start_ns)
                writer.write([*opening, *self._encoder.pending(start_ns, wall)])
        except BaseException:
            writer.abandon()
            path.unlink()
            raise
        self._part += 1
        self._start_ns = start_ns
        self.paths.append(path)
        return writer

    def _rotate(self, time_ns: int, wall: Wall) -> None:
        """Go on in a new file, if one can be begun.

        Raises: OSError, when none can be begun and the current file was deleted.
        """
        old, bytes_before = self._growing
        deleted = old.deleted
        try:
            new = self._begin(self._next_path(), max(time_ns, self._start_ns), wall)
            self._since_ns = time_ns
        except Exception as error:
            if deleted:
                raise
            if self.problem is None and not self._doubtful:  # else it is said already
                why = _why(error)
                what = f"cannot begin a new file ({why})"
                self._log(f"{what}; the recording goes on in {old.path}", "error")
            self.problem = error
            return
        self.problem = None
        if self._doubtful:
            self._doubtful, self._kept_until_ns = False, time_ns + _DOUBT_NS
        self._connections.clear_missing()
        if deleted:
            self._log(f"{old.path} was deleted; the recording goes on in {new.path}", "warning")
        self._growing = new, bytes_before + old.bytes_written
        try:
            old.close()
        except Exception as error:
            self.unfinished.append(old.path)
            what = f"cannot complete {old.path} ({_why(error)})"
            self._log(f"{what}; kproxy recover does that later", "error")

    def _next_path(self) -> Path:
        """Return the next free name; leftovers of other recordings may be in the way."""
        numbers = itertools.count(self._part + 1)
        paths = (self.path.with_stem(f"{self.path.stem}-{number:04}") for number in numbers)
        return next(path for path in paths if not path.exists())


def _why(error: Exception) -> str:
    """Return why an operation on a file failed."""
    if isinstance(error, OSError):
        return reason(error)
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _reserve(folder: Path) -> BinaryIO | None:
    """Reserve some room on the disk until the file is closed; return None if there is none."""
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
