"""A source of schemas, and what goes wrong with one.

find(id, use) ─▶ Schema, its ids · None: the source has none
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import attrs

from kproxy.exchange.schema_ids import SchemaUse
from kproxy.net.tls.settings import Trust
from kproxy.wire.payloads.schemas import Schema, SchemaId

SCHEMA_BYTES_MAX = 4 << 20
"""A larger schema, with what it refers to, is refused."""


class RegistryError(Exception):
    """A source that cannot be asked (`unreachable`), or a schema that it has and that cannot be
    had; the text is one line that says which, why, and what to do."""

    def __init__(self, text: str, *, unreachable: bool = False) -> None:
        super().__init__(text)
        self.unreachable = unreachable


class FoundSchema(NamedTuple):
    """A schema, and the ids that are known to be its own."""

    ids: frozenset[SchemaId]
    schema: Schema

    @property
    def size(self) -> int:
        """The number of characters that it takes."""
        schema = self.schema
        own = len(schema.definition) + len(schema.subject or "")
        return own + sum(len(name) + len(text) for name, text in schema.references)


class Source(Protocol):
    """A registry, or a folder."""

    @property
    def name(self) -> str:
        """Its URL or path."""
        ...

    def find(self, schema_id: SchemaId, use: SchemaUse) -> FoundSchema | None:
        """Return the schema of an id; None if the source has none. May block.

        Raises: RegistryError.
        """
        ...


@attrs.frozen
class Access:
    """The credentials for registries, and who signs their certificates."""

    user: str | None = attrs.field(default=None, repr=False)
    """NAME:PASSWORD."""
    token: str | None = attrs.field(default=None, repr=False)
    trust: Trust | None = None
    """The trusted authorities; None: those of the system."""
