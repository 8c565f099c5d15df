"""A part of a report as JSON, to be kept and added to.

    ReportPart ─ to_json ─▶ text ─ from_json ─▶ ReportPart

Each value that JSON does not have is a list that begins with the name of its kind:
`["set", 1, 2]`, `["Counter", [["Fetch", null], 3]]`, `["Tally", {"count": 1, …}]`.

Invariant: what is read back is one of the kinds below, and nothing else, whoever wrote the text.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any

import attrs

from kproxy.exchange.counts import Counts, ErrorTally, Tally
from kproxy.exchange.histogram import Histogram
from kproxy.look.report.commits import CommittedOffsets, Segment
from kproxy.look.report.data import FileSpan
from kproxy.look.report.groups import GroupTally
from kproxy.look.report.part import ReportPart
from kproxy.look.report.slots import Slots


def to_json(part: ReportPart) -> str:
    """Return a part as one line of JSON."""
    return json.dumps(_plain(part), separators=(",", ":"))


def from_json(text: str | bytes) -> ReportPart:
    """Return the part that a text has.

    Raises: ValueError, if it has none that this kproxy knows.
    """
    try:
        found = _made(json.loads(text))
    except (TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise ValueError(f"no part of a report: {type(error).__name__}: {error}") from None
    if not isinstance(found, ReportPart):
        raise ValueError("no part of a report")
    return found


_ATTRS = {
    each.__name__: each
    for each in (
        ReportPart, CommittedOffsets, Counts, ErrorTally, FileSpan, GroupTally, Histogram,
        Segment, Slots, Tally,
    )
}  # fmt: skip
_MANY: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": dict,
    "Counter": lambda pairs: Counter(dict(pairs)),
}
_TIME = "datetime"


def _plain(value: Any) -> Any:
    kind = type(value).__name__
    if kind in _ATTRS:
        names = (each.name for each in attrs.fields(_ATTRS[kind]))
        return [kind, {name: _plain(getattr(value, name)) for name in names}]
    if isinstance(value, dict):
        return [kind, *([_plain(key), _plain(each)] for key, each in value.items())]
    if kind in _MANY:
        return [kind, *map(_plain, value)]
    return [_TIME, value.isoformat()] if isinstance(value, datetime) else value


def _made(plain: Any) -> Any:
    if not isinstance(plain, list):
        return plain
    kind, *rest = plain
    if kind in _ATTRS:
        return _of_attributes(_ATTRS[kind], rest[0])
    if kind == _TIME:
        return datetime.fromisoformat(rest[0])
    if kind in ("dict", "Counter"):
        rest = [(_made(key), _made(each)) for key, each in rest]
        return _MANY[kind](rest)
    return _MANY[kind](list(map(_made, rest)))


def _of_attributes(kind: type[Any], given: dict[str, Any]) -> Any:
    """Make an object of its attributes; those that are not given are empty."""
    made = {name: _made(each) for name, each in given.items()}
    later = [each.name for each in attrs.fields(kind) if not each.init and each.name in made]
    after = {name: made.pop(name) for name in later}
    found = kind(**made)
    for name, value in after.items():
        setattr(found, name, value)
    return found
