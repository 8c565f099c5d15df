"""The folder in which an analysis is written, on a disk or on remote storage.

    "captures/a"       ─▶ Place ─┬─▶ create: new files, by the driver and by tasks
    "s3a://bucket/a"   ─▶        └─▶ spark: the same folder, by the name that Spark knows

Invariants: a new file is there when it is committed, whole; a local one has the mode that was asked
for, whatever the umask is, and so have the folders that are made for it.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import attrs

from kproxy.recording.files import make_folder
from kproxy.recording.uri import Uri, located

OWNER_ONLY = 0o600


@attrs.frozen
class Place:
    """A folder, or a file in it; it may not be there yet."""

    path: Path | Uri
    mode: int = OWNER_ONLY
    """The mode of local files; folders can be entered by those who can read files."""

    @classmethod
    def named(cls, text: str, mode: int = OWNER_ONLY) -> Place:
        """Return the place that a text names, from whatever working directory."""
        path = located(text)
        return cls(path if isinstance(path, Uri) else path.absolute(), mode)

    def __str__(self) -> str:
        return str(self.path)

    def __truediv__(self, name: str) -> Place:
        """Return what has this name in the folder."""
        return attrs.evolve(self, path=self.path / name)

    @property
    def local(self) -> Path | None:
        """The path, if it is on a disk."""
        return self.path if isinstance(self.path, Path) else None

    @property
    def spark(self) -> str:
        """The name by which Spark writes it: that of Hadoop, without pyarrow's settings. Hadoop
        takes every character as it is, also `%20`."""
        if isinstance(self.path, Path):
            return f"file://{self.path.absolute()}"
        bare = re.sub(r"\?(?=[\w.-]+=).*$", "", self.path.text.removeprefix("fsspec+"))
        bare = re.sub(r"^(\w+)://[^/@]*@", r"\1://", bare) if bare.startswith("s3") else bare
        return re.sub(r"^s3n?://", "s3a://", bare)

    @property
    def spark_pattern(self) -> str:
        """The name by which Spark reads it: it takes names as patterns."""
        return re.sub(r"([\[\]{}*?\\])", r"\\\1", self.spark)

    def exists(self) -> bool:
        """Return whether something is there.

        Raises: OSError.
        """
        return self.path.exists()

    def children(self) -> list[str]:
        """Return the names of what is in the folder; none if it is not there.

        Raises: OSError.
        """
        if isinstance(self.path, Uri):
            return self.path.children()
        return sorted(os.listdir(self.path)) if self.path.is_dir() else []

    def make_folder(self) -> None:
        """Make the folder, and the missing ones above it; remote storage makes them by itself.

        Raises: OSError.
        """
        if isinstance(self.path, Path):
            make_folder(self.path, of_folder(self.mode))

    def read(self) -> bytes:
        """Return what is in the file.

        Raises: OSError.
        """
        with self.path.open("rb") as file:
            return file.read()

    def write(self, data: bytes) -> None:
        """Write a file, in the place of one that was.

        Raises: OSError.
        """
        with self.create() as new:
            new.file.write(data)

    @contextlib.contextmanager
    def create(self) -> Iterator[NewFile]:
        """Yield a new file; it is committed if nothing is raised.

        Raises: OSError.
        """
        new = NewFile.of(self)
        try:
            yield new
            new.commit()
        except BaseException:
            new.abandon()
            raise

    def remove(self) -> None:
        """Remove it, and all that is in it, as far as that can be done."""
        if isinstance(self.path, Uri):
            with contextlib.suppress(OSError):
                self.path.remove()
        elif self.path.is_dir():
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            self.path.unlink(missing_ok=True)


def of_folder(mode: int) -> int:
    """Return the mode of folders for files of a mode."""
    return mode | (mode & 0o444) >> 2


@attrs.define(eq=False)
class NewFile:
    """A file that is being written.

    A local one has a hidden name until it is committed, so that two attempts at one task, of which
    one may be killed, do not write into each other's file. On remote storage a file is there when
    it is closed; two attempts write the same.

    Resource handling: holds a file open until `commit` or `abandon`.
    """

    place: Place
    file: BinaryIO
    _hidden: Path | None

    @classmethod
    def of(cls, place: Place) -> NewFile:
        """Open a new file.

        Raises: OSError.
        """
        path = place.path
        if isinstance(path, Uri):
            return cls(place, path.create(), None)
        Place(path.parent, place.mode).make_folder()
        # Spark ignores names with a dot, and no suffix keeps it out of *.parquet.
        hidden = path.with_name(f".{path.stem}.{secrets.token_hex(4)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        fd = os.open(hidden, flags, 0o600)
        os.fchmod(fd, place.mode)
        return cls(place, open(fd, "wb"), hidden)

    def commit(self) -> None:
        """Close it, and give it its name.

        Raises: OSError.
        """
        self.file.close()
        if self._hidden is not None:
            self._hidden.replace(str(self.place.path))

    def abandon(self) -> None:
        """Close and remove it after an error."""
        with contextlib.suppress(OSError):  # the first error was raised already
            self.file.close()
        if self._hidden is None:
            self.place.remove()
        else:
            self._hidden.unlink(missing_ok=True)
