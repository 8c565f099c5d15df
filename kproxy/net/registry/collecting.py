"""Collects the schemas that a recording's records name, and that it lacks.

    Exchange … ─ look ─▶ ids ─ ask ─▶ Source, Source … ─▶ notes, for whoever writes the recording

An id is asked for once; one that no source has, again after a while, for it may be new. A source
that does not answer is left alone for a while, longer each time.

Invariants: an id that is known costs a look into a set. Bytes that look like an id may be none: a
topic with many ids that no source has, and none that one has, is not asked about any more. The
schemas of a recording are bounded: each of its files has all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from uuid import UUID

import attrs

from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import Filter, parse
from kproxy.exchange.meanings import RECORDS, apis_with
from kproxy.exchange.schema_ids import SchemaIds, SchemaUse
from kproxy.net.registry.source import FoundSchema, RegistryError, Source
from kproxy.wire.payloads.schemas import SchemaId
from kproxy.wire.protocol import api_name

SCHEMAS_BYTES_MAX = 16 << 20
"""The limit of all schemas of a recording."""
_AGAIN_SECONDS = (1.0, 5.0, 30.0)
"""The pauses before an id that no source has is asked for again."""
_PAUSE_SECONDS_MAX = 60.0
_STRANGERS_MAX = 32
"""After this many ids that no source has, and none that one has, the keys or values of a topic are
taken to have no ids."""
_IDS_MAX = 10_000
_NAMES_SHOWN = 10


@attrs.define
class _UnknownSchema:
    """An id that is not known."""

    use: SchemaUse
    due: float = 0.0
    asked: int = 0
    problem: str = ""
    """Why a source that has its schema cannot give it."""


@attrs.define(eq=False)
class SchemaCollector:
    """The ids of one recording. Times are seconds of any clock."""

    sources: Sequence[Source]
    room_bytes: int = SCHEMAS_BYTES_MAX
    """The room for further schemas."""
    failures: dict[str, str] = attrs.field(factory=dict, init=False)
    """Source → why it does not answer, while it does not."""
    _known: set[SchemaId] = attrs.field(factory=set, init=False)
    _wanted: dict[SchemaId, _UnknownSchema] = attrs.field(factory=dict, init=False)
    _left_out: set[SchemaId] = attrs.field(factory=set, init=False)
    """Ids for which there is no room."""
    _hits: Counter[tuple[str, str]] = attrs.field(factory=Counter, init=False)
    _strangers: Counter[tuple[str, str]] = attrs.field(factory=Counter, init=False)
    """Schemas that were found, and ids that no source has, by topic and part."""
    _ids: SchemaIds = attrs.field(factory=SchemaIds, init=False)
    _paused: dict[str, tuple[float, float]] = attrs.field(factory=dict, init=False)
    """Source that failed → when it is asked again, and the pause after that."""

    def know(self, ids: Iterable[SchemaId]) -> None:
        """Take ids that the recording has."""
        for each in ids:
            self._known.add(each)
            self._wanted.pop(each, None)

    def look(self, exchange: Exchange) -> bool:
        """Take the ids that the records of an exchange name; return whether one is new."""
        before = len(self._wanted)
        for schema_id, use in self._ids.of(exchange):
            if schema_id in self._known or schema_id in self._wanted:
                continue
            if not self._are_no_ids(use) and len(self._wanted) < _IDS_MAX:
                self._wanted[schema_id] = _UnknownSchema(use)
        return len(self._wanted) > before

    def _are_no_ids(self, use: SchemaUse) -> bool:
        where = use.topic, use.part
        return self._strangers[where] >= _STRANGERS_MAX and not self._hits[where]

    def ask(self, now: float, last: bool = False) -> Iterator[FoundSchema]:
        """Yield the schemas that sources have of ids that are due; the `last` time, of all ids and
        sources. May block for as long as a source does."""
        if last:
            self._paused.clear()
        for schema_id, wanted in list(self._wanted.items()):
            if schema_id not in self._wanted or (wanted.due > now and not last):
                continue
            if self._are_no_ids(wanted.use):
                del self._wanted[schema_id]
                continue
            found, answered = self._find(schema_id, wanted, now)
            if found is not None:
                self._hits[wanted.use.topic, wanted.use.part] += 1
                self.know({schema_id, *found.ids})
                if found.size > self.room_bytes:
                    self._left_out.add(schema_id)
                    continue
                self.room_bytes -= found.size
                yield found
            elif answered:
                if not wanted.asked and not wanted.problem:
                    self._strangers[wanted.use.topic, wanted.use.part] += 1
                pauses = _AGAIN_SECONDS[wanted.asked :]
                wanted.due = now + (pauses[0] if pauses else _PAUSE_SECONDS_MAX)
                wanted.asked += 1

    def _find(
        self, schema_id: SchemaId, wanted: _UnknownSchema, now: float
    ) -> tuple[FoundSchema | None, bool]:
        """Return a schema, and whether every source was asked and has answered."""
        answered = True
        for source in self.sources:
            due, pause = self._paused.get(source.name, (0.0, 1.0))
            if due > now:
                answered = False
                continue
            try:
                found = source.find(schema_id, wanted.use)
            except RegistryError as error:
                if not error.unreachable:
                    wanted.problem = str(error)
                    continue
                self.failures[source.name] = str(error)
                self._paused[source.name] = now + pause, min(2 * pause, _PAUSE_SECONDS_MAX)
                answered = False
                continue
            self.failures.pop(source.name, None)
            self._paused.pop(source.name, None)
            if found is not None:
                return found, True
        return None, answered

    def missing(self) -> str:
        """Return a line on the ids that were not found; "" if there are none."""
        ids = [each for each, wanted in self._wanted.items() if wanted.use.certain]
        said = [*(_listed("not found:", ids) if ids else ())]
        if self._left_out:
            limit = f"{SCHEMAS_BYTES_MAX >> 20} MiB of schemas are kept, not those of"
            said += _listed(limit, self._left_out)
        problems = dict.fromkeys(each.problem for each in self._wanted.values() if each.problem)
        said += [*dict.fromkeys(self.failures.values()), *list(problems)[:_NAMES_SHOWN]]
        return "; ".join(said)


def carrying() -> Filter:
    """Return the filter for exchanges that carry records."""
    return parse(f"api:{','.join(map(api_name, sorted(apis_with(RECORDS))))}")


def _listed(what: str, ids: Iterable[SchemaId]) -> list[str]:
    """Return a sentence on some ids."""
    names = sorted(ids, key=lambda each: (isinstance(each, UUID), each))
    shown = ", ".join(str(each) for each in names[:_NAMES_SHOWN])
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return [f"{what} {'schema' if len(names) == 1 else 'schemas'} {shown}{more}"]
