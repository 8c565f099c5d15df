"""The schemas that a recording has told so far, by id.

    note {"event": "schema", …} ─▶ Schemas.note ─▶ find(id) ─▶ Schema
                       ahead ─▶ the same notes, of what was not read yet, once

A recording has a note for each schema that its records were written with, made when it was recorded
or later (`recover --schemas`): it reads alone. The note comes after the first records that need it,
so who reads in order may give `ahead`, which is asked when an id is not known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from uuid import UUID

import attrs

from kproxy.wire.payloads.own import OwnDecoder
from kproxy.wire.payloads.plain import SchemaError

SchemaId = int | UUID
"""A registry's number of a schema, or its GUID, which headers have."""
NOTE = "schema"
"""The event of the notes."""
_CHARS_MAX = 64 << 20
"""Several times what a recording of kproxy's has (`registry.collecting`)."""
_SCHEMAS_MAX = 100_000
_READERS_MAX = 1000
Reader = Callable[[Any], tuple[Any, str]]
"""Returns the plain value of framed bytes (`framing.Framed`), and what they are: `Avro shop.Order`;
raises PayloadError."""


@attrs.frozen
class Schema:
    """A schema as a registry has it."""

    kind: str
    """AVRO, PROTOBUF or JSON, as registries name them."""
    definition: str
    """Avro's or JSON Schema's own JSON; of Protobuf base64 of a FileDescriptorSet, dependencies
    first, so that nobody who reads needs a compiler."""
    references: tuple[tuple[str, str], ...] = ()
    """Names and definitions of the schemas that it refers to, dependencies first."""
    subject: str | None = None
    version: int | None = None


def note_of(ids: Iterable[SchemaId], schema: Schema) -> dict[str, Any]:
    """Return the body of the note of a schema."""
    named = {"guid" if isinstance(each, UUID) else "id": each for each in ids}
    body: dict[str, Any] = {"event": NOTE}
    body |= {key: str(each) if isinstance(each, UUID) else each for key, each in named.items()}
    body |= {"kind": schema.kind, "schema": schema.definition}
    if schema.references:
        body["references"] = [{"name": name, "schema": text} for name, text in schema.references]
    if schema.subject is not None:
        body |= {"subject": schema.subject, "version": schema.version}
    return body


@attrs.define(eq=False)
class Schemas:
    """The schemas by id, what reads their bytes, and a user's own decoders, which are asked first.

    Memory is bounded: beyond a number that only hostile files have, schemas are left out."""

    ahead: Callable[[], Iterable[dict[str, Any]]] | None = None
    """Returns the bodies of the notes that are still to come."""
    own: Sequence[OwnDecoder] | None = None
    """A user's own decoders; None: those of installed packages."""
    _chars: int = attrs.field(default=0, init=False)
    """The size of all schemas that came."""
    _by_id: dict[SchemaId, Schema] = attrs.field(factory=dict, init=False)
    _readers: dict[SchemaId, Reader | SchemaError] = attrs.field(factory=dict, init=False)
    """Made when they are needed first; an error where that failed."""

    @property
    def any(self) -> bool:
        """True if it knows a schema."""
        return bool(self._by_id)

    @property
    def ids(self) -> Iterable[SchemaId]:
        """The ids that it knows."""
        return self._by_id.keys()

    def note(self, body: dict[str, Any]) -> None:
        """Take the body of a note; in a foreign file it may hold anything."""
        kind, text = body.get("kind"), body.get("schema")
        if not (isinstance(kind, str) and isinstance(text, str) and self._takes(body)):
            return
        schema = Schema(kind, text, _references(body), body.get("subject"), body.get("version"))
        for each in _ids(body):
            if len(self._by_id) < _SCHEMAS_MAX and self._by_id.get(each) != schema:
                self._by_id[each] = schema
                self._readers.pop(each, None)

    def _takes(self, body: dict[str, Any]) -> bool:
        """Return whether a note is on a schema that there is room for: known ones need none."""
        if body.get("event") != NOTE:
            return False
        references = _references(body)
        known = [self._by_id.get(each) for each in _ids(body)]
        if all(
            each and (each.definition, each.references) == (body["schema"], references)
            for each in known
        ):
            return True
        self._chars += len(body["schema"]) + sum(map(len, sum(references, ())))
        return self._chars <= _CHARS_MAX

    def find(self, schema_id: SchemaId) -> Schema | None:
        """Return the schema of an id; None if the recording does not tell it."""
        found = self._by_id.get(schema_id)
        if found is None and self.ahead is not None:
            ahead, self.ahead = self.ahead, None
            for body in ahead():
                self.note(body)
            found = self._by_id.get(schema_id)
        return found

    def reader(self, schema_id: SchemaId, make: Callable[[Schema], Reader]) -> Reader:
        """Return what reads the bytes of a known schema.

        Raises:
            SchemaError: the schema cannot be used.
        """
        found = self._readers.get(schema_id)
        if found is None:
            try:
                found = make(self._by_id[schema_id])
            except SchemaError as error:
                found = error
            if len(self._readers) >= _READERS_MAX:
                self._readers.clear()
            self._readers[schema_id] = found
        if isinstance(found, SchemaError):
            raise SchemaError(*found.args)
        return found


def _references(body: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    references = body.get("references")
    for each in references if isinstance(references, list) else ():
        if isinstance(each, dict):
            name, text = each.get("name"), each.get("schema")
            if isinstance(name, str) and isinstance(text, str):
                found.append((name, text))
    return tuple(found)


def _ids(body: dict[str, Any]) -> list[SchemaId]:
    found: list[SchemaId] = [body["id"]] if isinstance(body.get("id"), int) else []
    with contextlib.suppress(ValueError):
        found += [UUID(body["guid"])] if isinstance(body.get("guid"), str) else []
    return found
