"""The chunks of a file that a filter does not need, by the file's index.

    Filter, context ─▶ Skipper.skips(ChunkFacts): no exchange of the chunk can match

Invariant: a chunk is passed over only if none of its exchanges can match, and none of them changes
what is read of others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from typing import Any

import attrs

from kproxy.exchange.beginnings import FOLLOWED
from kproxy.exchange.entries import NO_API
from kproxy.exchange.filter import Filter
from kproxy.exchange.filter.terms import Combination, Node, Not, Term
from kproxy.exchange.filter.values import ABSOLUTE, Range, TimeRange, Value
from kproxy.exchange.meanings import apis_with
from kproxy.exchange.recording_context import RecordingContext
from kproxy.recording.batch_index import (
    HAS_FAULTS,
    HAS_FLAGS,
    HAS_HEADLESS,
    HAS_NOTES,
    HAS_UNANSWERED,
    ChunkFacts,
)
from kproxy.wire.protocol import schema

_NEVER, _EITHER = frozenset({False}), frozenset({True, False})
_OF_FAULTS = frozenset({"fault", "is:faulted"})
_OF_FLAGS = frozenset({"is:redacted", "is:injected", "is:truncated", "is:one_way"})


@attrs.frozen(eq=False)
class Skipper:
    """Says which chunks a filter does not need, while a recording is read in order."""

    wanted: Filter
    context: RecordingContext

    def skips(self, facts: ChunkFacts) -> bool:
        """Return whether no exchange of a chunk matches, or matters to those of others."""
        return (
            self._is_alone(facts)
            and True not in _answers(self.wanted.node, facts, self.context)
            and not self.context.stuck
        )

    def _is_alone(self, facts: ChunkFacts) -> bool:
        """Return whether a chunk changes nothing that is read of others."""
        if facts.kinds is None or facts.has & (HAS_NOTES | HAS_UNANSWERED):
            return False
        wants = self.context.names.wants
        return not any(key in FOLLOWED or wants(key, version) for key, version in _apis(facts))


def _answers(node: Node, facts: ChunkFacts, context: RecordingContext) -> Set[bool]:
    """Return what a node may answer of the exchanges of a chunk: true, false, either."""
    match node:
        case Not(part):
            return {not each for each in _answers(part, facts, context)}
        case Combination(parts, one):
            found = [_answers(part, facts, context) for part in parts]
            may_be = {one: any(one in each for each in found)}
            may_be[not one] = all((not one) in each for each in found)
            return {answer for answer, may in may_be.items() if may}
        case _:
            return _answers_of_term(node, facts, context)


def _answers_of_term(term: Term, facts: ChunkFacts, context: RecordingContext) -> Set[bool]:
    if term.name == "is:tls_failed" or not _may_have(term, facts):
        return _NEVER
    if term.is_quality:
        return _EITHER
    if term.name == "number":
        return _answers_of_span((facts.first, facts.last), map(_bounds, term.values))
    if term.name == "time" and all(_is_absolute(value) for value in term.values):
        return _answers_of_span((facts.first_ns, facts.last_ns), map(_bounds, term.values))
    known = _known(term.name, facts, context)
    if known is None:
        return _EITHER
    return {
        each is not None and any(value.matches(each) for value in term.values) for each in known
    }


def _may_have(term: Term, facts: ChunkFacts) -> bool:
    """Return whether an exchange of a chunk may have what a term is about."""
    if (term.name in _OF_FAULTS and not facts.has & HAS_FAULTS) or (
        term.name in _OF_FLAGS and not facts.has & HAS_FLAGS
    ):
        return False
    if term.meaning is None or facts.kinds is None:
        return True
    return not apis_with(term.meaning).isdisjoint(key for key, _ in _apis(facts))


def _known(name: str, facts: ChunkFacts, context: RecordingContext) -> Iterable[Any] | None:
    """Return all values that the exchanges of a chunk have for a key; None if they are not
    known."""
    if name in ("api", "api_key", "api_version"):
        if facts.kinds is None or facts.has & HAS_HEADLESS:
            return None
        if name == "api_version":
            return {version for _, version in _apis(facts)}
        keys = {key for key, _ in _apis(facts)}
        return keys if name == "api_key" else map(schema.api_name, keys)
    if facts.connections is None or name == "connection":
        return facts.connections if name == "connection" else None
    if name == "client_address":
        return {context.peer(each).client_address for each in facts.connections}
    if name == "client_id":
        found = {context.peer(each).client_id for each in facts.connections}
        return None if None in found else found  # a request's own header may say more
    return None


def _answers_of_span(span: tuple[int, int], ranges: Iterable[tuple[int, int]]) -> Set[bool]:
    """Return what values between the least and the greatest one may be answered."""
    some = False
    for low, high in ranges:
        if low <= span[0] and span[1] <= high:
            return {True}
        some = some or (low <= span[1] and span[0] <= high)
    return _EITHER if some else _NEVER


def _is_absolute(value: Value) -> bool:
    return isinstance(value, TimeRange) and value.kind == ABSOLUTE


def _bounds(value: Value) -> tuple[int, int]:
    """Return the least and the greatest number, or time in nanoseconds, that a value matches."""
    match value:
        case Range(low, high):
            return -(1 << 64) if low is None else low, 1 << 64 if high is None else high
        case TimeRange(low_ns=low, high_ns=high):
            # An exchange has whole microseconds of its time.
            least = -1 if low is None else -(-low // 1000) * 1000
            return least, 1 << 64 if high is None else high // 1000 * 1000 + 999
        case _:
            raise ValueError(f"{value} names a recording, and which one this is, is not known")


def _apis(facts: ChunkFacts) -> Iterator[tuple[int, int]]:
    """Yield the keys and versions of a chunk's APIs, which are known."""
    for kind in facts.kinds or ():
        key = kind >> 16
        yield key, NO_API if key == NO_API else (kind & 0xFFFF ^ 0x8000) - 0x8000
