"""The vocabulary of texts: sizes, durations, lists, topics with their partitions.

Everything here makes short plain text out of values; colour and width are the business of views.
Text that comes from the wire may be hostile: `printable` goes last over all of it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs

from kproxy.exchange.entities import TopicNames, partition_of
from kproxy.wire.protocol.plain import uuid_text

LISTED_MAX = 3
"""The number of topics, groups, … that a line names before it only counts them."""

_PARTITIONS_LISTED_MAX = 4
_ID_LENGTH_MAX = 20
_MESSAGE_LENGTH_MAX = 400


@attrs.define(eq=False)
class Context:
    """The facts around a body that are needed to put it in words."""

    topic_names: TopicNames = attrs.field(factory=TopicNames)
    """The names of topic ids."""
    request: Any = None
    """The body of the request, for a response; None if it is not known."""

    def topic(self, value: Any) -> str:
        """Return the name of a topic in any message, or the start of an id without a name."""
        name = getattr(value, "name", None) or getattr(value, "topic", None)
        if name:
            return name
        topic_id = getattr(value, "topic_id", None)
        if topic_id is None or not topic_id.int:
            return "?"
        return self.topic_names.name(topic_id) or f"id:{uuid_text(topic_id)[:8]}"


Describe = Callable[[Any, Context], str]
"""A function that puts a decoded body in words."""

Words = dict[str, tuple[Describe | None, Describe | None]]
"""API → how to word its request, its response; None leaves that to `generic`."""


def milliseconds(duration_ms: float | None) -> str:
    """Write a duration in milliseconds with about three digits: `0.84`, `12.3`, `503`, `–`.

    From ten seconds on it has another unit, to take no more than five characters: `12.3s`, `7.5m`.
    """
    if duration_ms is None:
        return "–"
    if -9.995 < duration_ms < 9.995:
        return f"{duration_ms:.2f}"
    if abs(duration_ms) < 9_999.5:
        return _three_digits(duration_ms)
    if abs(duration_ms) < 599_500:
        return f"{_three_digits(duration_ms / 1000)}s"
    minutes = duration_ms / 60_000
    return f"{_three_digits(minutes)}m" if minutes < 99.95 else f"{minutes / 60:.1f}h"


def _three_digits(value: float) -> str:
    if abs(value) < 9.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if abs(value) < 99.95 else f"{value:.0f}"


def age(duration_ms: float) -> str:
    """Write a duration with its unit: `2.00 ms`, `1.2 s`, `83.3 min`, `3.0 h`."""
    if duration_ms < 999.5:
        return f"{milliseconds(duration_ms)} ms"
    seconds = duration_ms / 1000
    if seconds < _SECONDS_MAX:
        return f"{seconds:.1f} s"
    minutes = seconds / 60
    return f"{minutes:.1f} min" if minutes < _MINUTES_MAX else f"{minutes / 60:.1f} h"


_SECONDS_MAX = 120
_MINUTES_MAX = 120
"""Longer spans are told in the next unit."""


_DURATIONS = (
    ("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1), ("µs", 0.001),
)  # fmt: skip


def duration(duration_ms: float | None) -> str:
    """Write a duration of any length without needless zeros: `84 µs`, `2 ms`, `1.03 s`, `36 h`.

    It is for reports, axes among them: lines of a list are easier to compare in one unit (`age`).
    """
    if duration_ms is None:
        return "–"
    if not duration_ms:
        return "0 ms"
    # What rounds to a whole unit has that unit: 999.6 ms are 1 s.
    long = (each for each in _DURATIONS if abs(duration_ms) >= 0.9995 * each[1])
    name, unit_ms = next(long, _DURATIONS[-1])
    digits = _three_digits(duration_ms / unit_ms)
    return f"{digits.rstrip('0').rstrip('.') if '.' in digits else digits} {name}"


def count(number: int, noun: str) -> str:
    """Write a number of things: `1 record`, `3 records`."""
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{number} {noun[:-1]}ies"
    return f"{number} {noun}{'es' if noun.endswith('ch') else 's'}"


def listed(items: Iterable[str], listed_max: int = LISTED_MAX, total: int = 0) -> str:
    """Join the first few items: `a, b, c +4`. `total` is their number, where these are only the
    first."""
    given = list(items)
    total = total or len(given)
    more = f" +{total - listed_max}" if total > listed_max else ""
    return f"{', '.join(given[:listed_max])}{more}"


def quoted(messages: Iterable[str], where_all: str = "") -> list[str]:
    """Quote a broker's messages: the first few, each up to a length. The last entry counts the
    others: a response has as many as the batch had records. `where_all` says where they are."""
    given = list(messages)
    texts = [
        f"“{each}”" if len(each) <= _MESSAGE_LENGTH_MAX else f"“{each[:_MESSAGE_LENGTH_MAX]}…”"
        for each in given[:LISTED_MAX]
    ]
    if len(given) > LISTED_MAX:
        texts.append(f"{count(len(given) - LISTED_MAX, 'more message')}{where_all}")
    return texts


def joined(*parts: str) -> str:
    """Join the parts that are not empty with commas."""
    return ", ".join(filter(None, parts))


def shortened(identifier: str | None) -> str:
    """Cut a long generated id (of a member, say) to its distinctive ends."""
    if not identifier or len(identifier) <= _ID_LENGTH_MAX:
        return identifier or ""
    # Clients put their own name first and something random behind it: keep both ends.
    return f"{identifier[: _ID_LENGTH_MAX - 7]}…{identifier[-6:]}"


def partitions(topic: str, entries: Sequence[str], total: int = 0) -> str:
    """Write a topic with its partitions: `orders[0,1]`, `orders[0@41,1@7,2@0,3@9 +2]`. `total` is
    their number, where the entries are only the first."""
    total = total or len(entries)
    more = f" +{total - _PARTITIONS_LISTED_MAX}" if total > _PARTITIONS_LISTED_MAX else ""
    return f"{topic}[{','.join(entries[:_PARTITIONS_LISTED_MAX])}{more}]"


def at(partition: int, offset: int | str) -> str:
    """Write a partition with an offset: `0@41`; a negative offset is none: `0@–`."""
    return f"{partition}@{'–' if isinstance(offset, int) and offset < 0 else offset}"


def by_topic(
    topics: Sequence[Any] | None,
    context: Context,
    inner: str,
    entry: Callable[[Any], str],
    asked: Sequence[Any] | None = None,
) -> str:
    """List topics with their partitions (attribute `inner`), each worded by `entry`, in the order
    of names and numbers: that of the wire differs between a request and its response.

    What failed is left out: its error is named with it. A single topic goes without its name if it
    is the only one `asked` for: the request has it.
    """
    topics = topics or ()
    named = len(topics) != 1 or asked is None or len(asked) != 1
    given = [
        (context.topic(topic), found)
        for topic in topics
        if (found := _succeeded(getattr(topic, inner))) is not None
    ]
    if len(given) > 1:
        given.sort(key=_name_of)
    texts: list[str] = []
    for name, found in given[:LISTED_MAX]:
        first = sorted(found, key=partition_number)[:_PARTITIONS_LISTED_MAX]
        texts.append(partitions(name if named else "", [*map(entry, first)], len(found)))
    return listed(texts, total=len(given))


def _succeeded(found: Sequence[Any] | None) -> Sequence[Any] | None:
    """Return the partitions without an error; None if all have one."""
    if not found or not hasattr(found[0], "error_code"):
        return found or ()
    return [each for each in found if not each.error_code] or None


_name_of = operator.itemgetter(0)


def partition_number(each: Any) -> int:
    """Return the number of a partition: it alone, or what is said of the partition."""
    return each if isinstance(each, int) else partition_of(each)


_RESOURCES = {2: "topic", 4: "broker", 8: "broker logger", 16: "client metrics", 32: "group"}


def resource(each: Any) -> str:
    """Write the resource that a config is of: `topic orders`, `broker default`."""
    kind = _RESOURCES.get(each.resource_type, f"type {each.resource_type}")
    return f"{kind} {each.resource_name or 'default'}"


def transaction(body: Any) -> str:
    """Write the transactional id of a request that has one."""
    name = getattr(body, "transactional_id", None)
    return f"transaction {name}" if name else ""


def no_text(body: Any, context: Context) -> str:
    """Return no text: for a plain success, or a request that is all in its API's name."""
    return ""
