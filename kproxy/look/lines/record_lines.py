"""`kproxy show --records`: the records of a topic, with their producers and consumers.

    orders[0] @41  2026-05-01T12:03:04.123Z #812 produced by app-1  key  value  {header: value}

A record has a line each time that it passes: once when it is produced, once per consumer. Keys and
values are decoded, with a word by what, or why not. What cannot be read has a line, too, with the
reason, whichever keys and values are looked for: it may hold them. On a narrow terminal the part
before the key is shorter, without the topic that the user named.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import attrs

from kproxy.exchange.body_json import DECODED_KEYS, decoded, members
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import Filter
from kproxy.exchange.filter.terms import Combination, Node, Not, Term, grouped, terms_of
from kproxy.exchange.topic_records import TopicRecord, Unreadable
from kproxy.exchange.words.line import Segment
from kproxy.exchange.words.terminal_width import columns, cut, cut_middle, padded
from kproxy.look.lines.frame import value_text, when
from kproxy.look.lines.lines import rendered
from kproxy.printable import printable
from kproxy.wire.payloads.meaning import Decoded
from kproxy.wire.payloads.plain import shown_json
from kproxy.wire.protocol.record_json import bytes_pieces, headers_pieces


@attrs.frozen
class RecordSelection:
    """The records to show: of a topic or partition, and of those the ones that match a filter."""

    topic: str
    partition: int | None = None
    wanted: Filter | None = None
    """Its terms on keys and values are asked of each record, the others of its exchange; its times
    do not count from a beginning."""

    def records(self, exchange: Exchange) -> Iterator[TopicRecord]:
        """Yield the selected records of an exchange."""
        if self.topic in exchange.topics:
            wanted = self.wanted
            if wanted is not None and wanted.recordings:
                wanted = wanted.within(lambda name: exchange.topic_names.recording in ("", name))
            for record in exchange.records:
                if record.topic == self.topic and self.partition in (None, record.partition):
                    if wanted is None or _matches(wanted.node, record, exchange):
                        yield record

    def unreadable(self, exchange: Exchange) -> Iterator[Unreadable]:
        """Yield what cannot be read of the selected topic's records in an exchange."""
        if self.topic in exchange.topics:
            known = None if self.wanted is None else carrying(self.wanted)
            for each in exchange.records.unreadable:
                if each.topic == self.topic and self.partition in (None, each.partition):
                    if known is None or known.matches(exchange):
                        yield each


_WIDE = 120
_CLIENT_WIDTH = 8


def carrying(wanted: Filter | None) -> Filter | None:
    """Return the filter for the exchanges that may carry a record which matches; None for all."""
    node = None if wanted is None else _without_records(wanted.node)
    return None if wanted is None or node is None else Filter(node, wanted.text)


def _without_records(node: Node) -> Node | None:
    """Return what a node says of exchanges, whatever their records are; None if that is nothing."""
    if not any(each.key.of_record for each in terms_of(node)):
        return node
    match node:
        case Combination(parts, one):
            found = [_without_records(part) for part in parts]
            known = [each for each in found if each is not None]
            return None if not known or (one and len(known) < len(found)) else grouped(known, one)
        case _:
            return None


def _matches(node: Node, record: TopicRecord, exchange: Exchange) -> bool:
    match node:
        case Term(values=values) if of_record := node.key.of_record:
            return any(value.matches(each) for each in of_record(record) for value in values)
        case Not(part):
            return not _matches(part, record, exchange)
        case Combination(parts, one):
            matching = (_matches(part, record, exchange) for part in parts)
            return any(matching) if one else all(matching)
        case _:
            return node.matches(exchange)


def lines(
    exchange: Exchange,
    selection: RecordSelection,
    colour: bool = False,
    width: int | None = None,
) -> Iterator[str]:
    """Yield a line per selected record of an exchange."""
    for record in selection.records(exchange):
        narrow = width is not None and width < _WIDE
        head = _narrow_head(exchange, record) if narrow else _head(exchange, record)
        segments = [*head, *_content(record)]
        yield rendered(segments if width is None else _cut(segments, width), colour)
    for each in selection.unreadable(exchange):
        segments = [*_head(exchange, each), ("error", printable(each.damage))]
        yield rendered(segments if width is None else _cut(segments, width), colour)


def json_pieces(
    exchange: Exchange, selection: RecordSelection, recording: str | None = None
) -> Iterator[str]:
    """Yield, in pieces, a line of JSON per selected record of an exchange, and one with `error` and
    `payload` of what cannot be read; `recording`, if given, is added as a key."""
    of = {} if recording is None else {"recording": recording, "name": exchange.name}
    by = {"number": exchange.number, "client_id": exchange.client_id}
    for record in selection.records(exchange):
        where = _where(record) | {"timestamp": record.timestamp}
        yield f'{json.dumps(where)[:-1]}, "key": '
        yield from bytes_pieces(record.key)
        yield ', "value": '
        yield from bytes_pieces(record.value)
        yield ', "headers": '
        yield from headers_pieces(record.headers)
        how = {"produced": record.produced, "aborted": record.aborted} | by | of
        found = decoded(record.topic, record, exchange.topic_names.schemas)
        yield f", {json.dumps(how)[1:-1]}{members(dict.fromkeys(DECODED_KEYS) | found)}}}\n"
    for each in selection.unreadable(exchange):
        payload = b64encode(each.data).decode()
        about = _where(each) | {"error": each.reason, "payload": payload}
        about |= {"produced": each.produced} | by | of
        yield f"{json.dumps(about)}\n"


def _where(record: TopicRecord | Unreadable) -> dict[str, Any]:
    return {"topic": record.topic, "partition": record.partition, "offset": record.offset}


def _head(exchange: Exchange, record: TopicRecord | Unreadable) -> Iterator[Segment]:
    yield "api", f"{printable(record.topic)}[{record.partition}] {_offset(record):<8} "
    if isinstance(record, TopicRecord):
        yield "dim", f"{when(record.timestamp)} "
    verb = "produced by" if record.produced else "consumed by"
    yield "dim", f"{exchange.name:<6} {verb} {_client(exchange):<12} "


def _narrow_head(exchange: Exchange, record: TopicRecord) -> Iterator[Segment]:
    yield "api", f"[{record.partition}] {_offset(record):<5} "
    time, day = when(record.timestamp), f"{exchange.time:%Y-%m-%d}T"
    yield "dim", f"{time[len(day) : -1] if time.startswith(day) else time} "
    verb = "from" if record.produced else "to"
    client = padded(cut_middle(_client(exchange), _CLIENT_WIDTH), _CLIENT_WIDTH)
    yield "dim", f"{exchange.name:<5} {verb:<4} {client} "


def _offset(record: TopicRecord | Unreadable) -> str:
    return "@–" if record.offset is None else f"@{record.offset}"


def _client(exchange: Exchange) -> str:
    return printable(exchange.client_id or f"c{exchange.connection}")


def _content(record: TopicRecord) -> Iterator[Segment]:
    if record.aborted:
        yield "mark", "aborted "
    (key, of_key), (value, of_value) = part_text(record, "key"), part_text(record, "value")
    if record.key is not None:
        yield "bold", f"{printable(key)} "
    if record.value is None:
        yield "quiet", "tombstone"
    else:
        yield "", printable(value)
    words = [f"key: {of_key}"] if of_key else []
    words += [f"value: {of_value}" if of_key else of_value] if of_value else []
    if words:
        yield "dim", printable(f" ({'; '.join(words)})")
    if record.headers:
        given = ", ".join(f"{name}: {value_text(value)}" for name, value in record.headers)
        yield "dim", printable(f" {{{given}}}")


def part_text(record: TopicRecord, part: str) -> tuple[str, str]:
    """Return the key or the value of a record in one line, decoded if it can be, and a word by what
    it was decoded, or why it was not; "" for bytes that speak for themselves."""
    match record.meaning(part):
        case Decoded(value, by):
            return shown_json(value), by
        case meaning:
            data = record.key if part == "key" else record.value
            return value_text(data), "" if meaning is None else meaning.why


def _cut(segments: list[Segment], width: int) -> Iterator[Segment]:
    for style, text in segments:
        if width <= 0:
            return
        yield style, (short := cut(text, width))
        width -= columns(short) if short == text else width
