"""Schemas from a folder of files: `.avsc` (Avro), `.proto` (Protobuf), `.json` (JSON Schema).

The name of a file says what it is for::

    17.avsc  17-order.avsc      the schema of id 17; a GUID instead of the number is as good
    orders-value.avsc           of values on the topic orders whose id no file has; -key: of keys

Registries give ids, files have none: a file named by a topic is taken for each id on that topic.
A `.proto` may import others of the folder.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from kproxy.exchange.schema_ids import SchemaUse
from kproxy.net.registry import proto
from kproxy.net.registry.source import SCHEMA_BYTES_MAX, FoundSchema, RegistryError
from kproxy.printable import printable
from kproxy.wire.payloads.schemas import Schema, SchemaId

KINDS = {".avsc": "AVRO", ".proto": proto.KIND, ".json": "JSON"}
"""Suffix of a file → the kind of its schema."""


class Folder:
    """A folder of schemas."""

    def __init__(self, path: Path) -> None:
        """Take schemas from a folder.

        Raises: RegistryError, when there is none.
        """
        if not path.is_dir():
            what = "give http://HOST:PORT of a registry, or a folder of .avsc, .proto, .json files"
            # What was meant as a URL may have a key in it, which is not echoed.
            named = "it" if any(sign in str(path) for sign in "@?#") else repr(str(path))
            raise RegistryError(printable(f"{named} is no folder; {what}"))
        self._path = path

    @property
    def name(self) -> str:
        """Its path."""
        return str(self._path)

    def find(self, schema_id: SchemaId, use: SchemaUse) -> FoundSchema | None:
        """Return the schema of an id; None if no file is for it.

        Raises: RegistryError.
        """
        try:
            files = sorted(each for each in self._path.iterdir() if each.suffix in KINDS)
        except OSError as error:
            raise RegistryError(printable(f"{self.name}: {error.strerror}")) from None
        for file in [*_of_id(files, schema_id), *_of_topic(files, use)]:
            kind, subject = KINDS[file.suffix], f"{use.topic}-{use.part}"
            definition = self._definition(file)
            return FoundSchema(frozenset({schema_id}), Schema(kind, definition, (), subject))
        return None

    def _definition(self, file: Path) -> str:
        if file.suffix == ".proto":
            return proto.compiled_file(self._path, file.name)
        try:
            about = file.stat()
            if not stat.S_ISREG(about.st_mode) or about.st_size > SCHEMA_BYTES_MAX:
                what = f"is no file of at most {SCHEMA_BYTES_MAX >> 20} MiB"
                raise RegistryError(printable(f"{file} {what}"))
            return file.read_text(encoding="utf-8")
        except OSError as error:
            raise RegistryError(printable(f"{file}: {error.strerror}")) from None
        except ValueError:
            raise RegistryError(printable(f"{file} is no text in UTF-8")) from None


def _of_id(files: list[Path], schema_id: SchemaId) -> Iterator[Path]:
    for file in files:
        if file.stem == str(schema_id) or file.stem.startswith(f"{schema_id}-"):
            yield file


def _of_topic(files: list[Path], use: SchemaUse) -> Iterator[Path]:
    for file in files:
        if file.stem == f"{use.topic}-{use.part}":
            yield file
