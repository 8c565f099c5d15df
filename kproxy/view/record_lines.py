"""`kproxy show --records`: the records of a topic, who produced and who consumed them.

    orders[0] @41  2026-05-01T12:03:04.123Z #812 produced by app-1  key  value  {header: value}

A record has a line each time that it passes: once when it is produced, once per consumer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from kproxy.exchange.exchange import Exchange
from kproxy.exchange.topic_records import TopicRecord
from kproxy.exchange.words.columns import cut
from kproxy.exchange.words.line import Segment
from kproxy.printable import printable
from kproxy.protocol.records import text_or_base64
from kproxy.view.frame import value_text, when
from kproxy.view.lines import rendered


def lines(
    exchange: Exchange,
    topic: str,
    partition: int | None = None,
    colour: bool = False,
    width: int | None = None,
) -> Iterator[str]:
    """Yield a line per record of a topic that an exchange carries."""
    for record in _chosen(exchange, topic, partition):
        segments = list(_segments(exchange, record))
        if width is not None:
            segments = list(_cut(segments, width))
        yield rendered(segments, colour)


def json_lines(exchange: Exchange, topic: str, partition: int | None = None) -> Iterator[str]:
    """Yield a JSON object per record of a topic that an exchange carries."""
    for record in _chosen(exchange, topic, partition):
        yield json.dumps(
            {
                "topic": record.topic,
                "partition": record.partition,
                "offset": record.offset,
                "timestamp": record.timestamp,
                "key": text_or_base64(record.key),
                "value": text_or_base64(record.value),
                "headers": [
                    {"key": name, "value": text_or_base64(value)} for name, value in record.headers
                ],
                "produced": record.produced,
                "aborted": record.aborted,
                "number": exchange.number,
                "client_id": exchange.client_id,
            },
            allow_nan=False,
        )


def _chosen(exchange: Exchange, topic: str, partition: int | None) -> Iterator[TopicRecord]:
    if topic in exchange.topics:
        for record in exchange.records:
            if record.topic == topic and partition in (None, record.partition):
                yield record


def _segments(exchange: Exchange, record: TopicRecord) -> Iterator[Segment]:
    offset = "@–" if record.offset is None else f"@{record.offset}"
    yield "api", f"{printable(record.topic)}[{record.partition}] {offset:<8} "
    yield "dim", f"{when(record.timestamp)} "
    client = printable(exchange.client_id or f"c{exchange.connection}")
    verb = "produced by" if record.produced else "consumed by"
    yield "dim", f"{f'#{exchange.number}':<6} {verb} {client:<12} "
    if record.aborted:
        yield "mark", "aborted "
    if record.key is not None:
        yield "bold", f"{printable(value_text(record.key))} "
    value = "tombstone" if record.value is None else value_text(record.value)
    yield ("quiet" if record.value is None else ""), printable(value)
    if record.headers:
        given = ", ".join(f"{name}: {value_text(value)}" for name, value in record.headers)
        yield "dim", printable(f" {{{given}}}")


def _cut(segments: list[Segment], width: int) -> Iterator[Segment]:
    for style, text in segments:
        if width <= 0:
            return
        yield style, (short := cut(text, width))
        width -= len(short) if short == text else width
