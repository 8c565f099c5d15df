"""Files on storage that pyarrow reads: `s3://`, `gs://`, `hdfs://`, `abfs://`, `fsspec+…://`.

    "s3://bucket/captures/*.mcap?region=…" ─▶ Uri ─▶ what readers use of a Path
                                               └───▶ new files, for those who write tables

What such a file system wants to know is told as pyarrow has it: in the query of the URI, and in the
environment (AWS_ACCESS_KEY_ID, HADOOP_HOME, …).

Invariants: what is shown of a URI, also in errors of pyarrow, has no password, and of its query no
values but a few that are known to be harmless; whatever goes wrong is an OSError; pyarrow is
imported when a URI is used, not before.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import stat
import urllib.parse
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import attrs

_BUFFER_BYTES = 1 << 20
"""Each read is a request over a network."""
_WILD = {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}
_USER = re.compile(
    r"^(?P<scheme>[A-Za-z][\w+.-]*)://"
    r"(?P<name>[^/?#@:]*)(?:[^/?#]*@|:(?!\d*/)[^?#]*@)"  # the `/` in a password may be unescaped
)
_NAMING = re.compile(r"(?:fsspec\+)?abfss?$", re.IGNORECASE)
"""Schemes in which a container or an account stands before the `@`."""
_HADOOP_S3 = re.compile(r"^s3[an]://", re.IGNORECASE)
"""What Hadoop, and so Spark, calls `s3://`."""
_QUERY = re.compile(r"\?(?=[\w.-]+=)")
"""The beginning of a query; any other `?` is a wild card."""
_HARMLESS = frozenset({"region", "endpoint_override", "scheme"})
_MAGIC_CHARACTERS = re.compile(r"[*?\[]")
_AUTHORITY_PARTS = 3
"""`s3:`, nothing, and `bucket`: they have no wild cards."""


@attrs.frozen(order=True)
class Stat:
    """The status of a file behind a URI."""

    st_size: int
    st_mode: int
    st_mtime_ns: int = 0
    """When it was written; 0 if the storage does not tell."""


@attrs.frozen(order=True)
class Uri:
    """The name of a file or a folder, with the methods of a Path that readers use."""

    text: str

    def __str__(self) -> str:
        head, query = self._split
        found = _USER.match(head)
        if found is not None:
            kept = f"{found['name']}@" if _NAMING.match(found["scheme"]) else ""
            head = f"{found['scheme']}://{kept}{head[found.end() :]}"
        settings = (setting.partition("=") for setting in query[1:].split("&"))
        shown = (
            name + mark + (value if name in _HARMLESS or not value else "…")
            for name, mark, value in settings
        )
        return head + query[:1] + "&".join(shown)

    @property
    def name(self) -> str:
        """The last part of its path."""
        return PurePosixPath(urllib.parse.unquote(self._parts.path)).name

    @property
    def stem(self) -> str:
        """Its name up to the last dot."""
        return PurePosixPath(self.name).stem

    @property
    def _parts(self) -> urllib.parse.SplitResult:
        return urllib.parse.urlsplit(self.text)

    def resolve(self) -> Uri:
        """Return the same URI: there are no links."""
        return self

    def exists(self) -> bool:
        """Return whether the file or folder exists."""
        return self._info().type.name != "NotFound"

    def is_dir(self) -> bool:
        """Return whether it is a folder."""
        return self._info().type.name == "Directory"

    def is_file(self) -> bool:
        """Return whether it is a file."""
        return self._info().type.name == "File"

    def stat(self) -> Stat:
        """Return its size, and whether it is a file.

        Raises: FileNotFoundError, OSError.
        """
        info = self._info()
        if info.type.name == "NotFound":
            raise FileNotFoundError(str(self))
        return _stat(info)

    def open(self, mode: str = "rb") -> BinaryIO:
        """Open it for reading.

        Raises: FileNotFoundError, OSError.
        """
        with self._without_secrets():
            system, path = _system(self.text)
            return io.BufferedReader(_Raw(system.open_input_file(path)), _BUFFER_BYTES)

    def __truediv__(self, name: str) -> Uri:
        """Return the URI of what has this name in the folder."""
        folder, query = self._split
        return Uri(f"{folder.rstrip('/')}/{urllib.parse.quote(name, safe='=')}{query}")

    def create(self) -> BinaryIO:
        """Open it for writing; it is there when the file is closed, in the place of one that was.

        Raises: OSError.
        """
        with self._without_secrets():
            system, path = _system(self.text)
            try:
                return system.open_output_stream(path)
            except FileNotFoundError:  # on storage that has folders
                system.create_dir(path.rpartition("/")[0], recursive=True)
                return system.open_output_stream(path)

    def children(self) -> list[str]:
        """Return the names of what is in the folder; none if it is not there.

        Raises: OSError.
        """
        from pyarrow.fs import FileSelector

        with self._without_secrets():
            system, path = _system(self.text)
            infos = system.get_file_info(FileSelector(path, allow_not_found=True))
        return sorted(info.base_name for info in infos)

    def remove(self) -> None:
        """Remove the file, or the folder and what is in it, if it is there.

        Raises: OSError.
        """
        with self._without_secrets():
            system, path = _system(self.text)
            kind = system.get_file_info(path).type.name
            if kind == "Directory":
                system.delete_dir(path)
            elif kind == "File":
                system.delete_file(path)

    def glob(self, pattern: str) -> Iterator[Uri]:
        """Yield the files below it that match a pattern; `**` in it matches any folders."""
        return (found for found, _ in self._below(pattern))

    def _below(self, pattern: str) -> Iterator[tuple[Uri, Stat]]:
        from pyarrow.fs import FileSelector

        with self._without_secrets():
            system, path = _system(self.text)
            selector = FileSelector(path, allow_not_found=True, recursive="/" in pattern)
            infos = system.get_file_info(selector)
        try:
            wanted = re.compile(_expression(pattern))
        except re.error:  # such as [z-a]
            return
        base = self._parts.path.rstrip("/")
        for info in infos:
            below = info.path[len(path.rstrip("/")) :].lstrip("/")
            if info.is_file and wanted.fullmatch(below):
                found = f"{base}/{urllib.parse.quote(below)}"
                yield Uri(urllib.parse.urlunsplit(self._parts._replace(path=found))), _stat(info)

    def listed(self) -> list[tuple[Uri, Stat]] | None:
        """Return the files that match it as a pattern, or those of the folder that it is, or
        itself, with what one listing says of each; None if it is not there.

        Raises: OSError.
        """
        if self.is_pattern:  # first: for pyarrow a `?` begins a query
            return self._matching()
        info = self._info()
        if info.type.name == "NotFound":
            return None
        return [(self, _stat(info))] if info.is_file else sorted(self._below("*.mcap"))

    @property
    def is_pattern(self) -> bool:
        """True if it has wild cards."""
        return self._first_pattern is not None

    def matches(self) -> list[Uri]:
        """Return the files that match it as a pattern."""
        return [found for found, _ in self._matching()] if self.is_pattern else [self]

    def _matching(self) -> list[tuple[Uri, Stat]]:
        head, query = self._split
        parts, first = head.split("/"), self._first_pattern
        folder = Uri("/".join(parts[:first]) + query)
        return sorted(folder._below("/".join(parts[first:])))

    @property
    def _first_pattern(self) -> int | None:
        """The index of the first part between slashes that has wild cards."""
        parts = enumerate(self._split[0].split("/"))
        magic = (at for at, part in parts if _MAGIC_CHARACTERS.search(part))
        return next((at for at in magic if at >= _AUTHORITY_PARTS), None)

    @property
    def _split(self) -> tuple[str, str]:
        """The URI before the query, and the query."""
        found = _QUERY.search(self.text)
        at = len(self.text) if found is None else found.start()
        return self.text[:at], self.text[at:]

    def _info(self) -> Any:
        with self._without_secrets():
            system, path = _system(self.text)
            return system.get_file_info(path)

    @contextlib.contextmanager
    def _without_secrets(self) -> Iterator[None]:
        """Replace the URI in errors with the one without secrets."""
        try:
            yield
        except OSError as error:
            what = error.strerror or str(error)
            for text in (self.text, self.text.removeprefix("fsspec+")):
                what = what.replace(text, str(self))
            if what == (error.strerror or str(error)):
                raise
            raise OSError(error.errno, what) from None


def located(text: str) -> Path | Uri:
    """Return the file that a text names: a local one, or one behind a URI."""
    if text.startswith("file:/"):
        return Path(urllib.parse.unquote(urllib.parse.urlsplit(text).path))
    return Uri(text) if re.match(r"[A-Za-z][\w+.-]*://", text) else Path(text)


def absolute(text: str) -> str:
    """Return a text that names the same file from any working directory."""
    path = located(text)
    return text if isinstance(path, Uri) else os.path.abspath(path)


def spelled(path: Path | Uri) -> str:
    """Return the text that `located` turns into this path."""
    return path.text if isinstance(path, Uri) else str(path)


@functools.lru_cache(maxsize=256)
def _system(text: str) -> tuple[Any, str]:
    """Return the file system of a URI and the path in it.

    Raises: OSError.
    """
    try:
        from pyarrow.fs import FileSystem
    except ImportError:
        raise OSError(None, "to read it, pip install pyarrow") from None
    try:
        return FileSystem.from_uri(_HADOOP_S3.sub("s3://", text))
    except (ValueError, ImportError) as error:  # no such scheme, or nothing that reads it
        raise OSError(None, str(error).splitlines()[0]) from None


def _stat(info: Any) -> Stat:
    mode = stat.S_IFREG if info.is_file else stat.S_IFDIR
    return Stat(info.size or 0, mode, info.mtime_ns or 0)


def _expression(pattern: str) -> str:
    """Return the regular expression of a pattern, in which only `**` matches a `/`."""
    found = ""
    for part in re.findall(r"\*\*/|\*|\?|\[!?[^]]+\]|(?:%[0-9A-Fa-f]{2})+|.", pattern, re.DOTALL):
        if part.startswith("[") and len(part) > 1:
            negated = part.startswith("[!") and len(part) > len("[!]")
            characters = re.sub(r"([\\^\[&~|])", r"\\\1", part[1 + negated : -1])
            found += f"[{'^/' * negated}{characters}]"
        else:
            found += _WILD.get(part) or re.escape(urllib.parse.unquote(part))
    return found


class _Raw(io.RawIOBase):
    """A file of pyarrow as a raw file of Python, for a buffer to read."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._file.readinto(buffer)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()
        super().close()
