"""The records of a topic, each once, with the exchanges that wrote it and that read it.

    exchanges of the topic ─▶ records ─ by partition and offset ─▶ who produced, who consumed

Memory is bounded: the first `RECORDS_MAX` records of a filter are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import Filter, matching
from kproxy.exchange.topic_records import TopicRecord
from kproxy.printable import printable
from kproxy.view.frame import value_text, when
from kproxy.view.record_lines import RecordSelection, part_text
from kproxy.view.stream import Stream

RECORDS_MAX = 2000
TEXT_CHARACTERS_MAX = 2000
"""Characters of a key or value that are shown."""
PASSES_MAX = 20
"""Exchanges that are named with a record."""


def records_of(paths: Sequence[Path | str], wanted: Filter | None, topic: str) -> dict[str, Any]:
    """Return the records of a topic in the exchanges that match a filter, as JSON values.

    Raises: RecordingError.
    """
    selection = RecordSelection(topic, None, wanted)
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    stream = Stream(paths, matching("topic", topic))
    for exchange in stream.exchanges():
        if wanted is not None and not wanted.matches(exchange):
            continue
        for record in selection.records(exchange):
            place = stream.recording, record.partition, record.offset
            if record.offset is None:  # nobody can say which record it became
                place = (*place, exchange.number, len(found))
            row = found.get(place)
            if row is None:
                if len(found) == RECORDS_MAX:
                    return {
                        "topic": printable(topic),
                        "records": list(found.values()),
                        "more": True,
                    }
                row = found[place] = _row(record)
            _pass(row["produced" if record.produced else "consumed"], exchange)
    return {"records": list(found.values()), "more": False}


def _row(record: TopicRecord) -> dict[str, Any]:
    """Return a record; `key_by` and `value_by` say by what they are decoded, or why not."""
    (key, key_by), (value, value_by) = part_text(record, "key"), part_text(record, "value")
    return {
        "partition": record.partition,
        "offset": record.offset,
        "time": when(record.timestamp),
        "key": None if record.key is None else _shown(key),
        "key_by": printable(key_by),
        "value": None if record.value is None else _shown(value),
        "value_by": printable(value_by),
        "headers": [[printable(name), _text(value)] for name, value in record.headers],
        "aborted": record.aborted,
        "produced": [],
        "consumed": [],
    }


def _pass(passes: list[list[str]], exchange: Exchange) -> None:
    if len(passes) < PASSES_MAX:
        client = printable(exchange.client_id or f"c{exchange.connection}")
        passes.append([exchange.name, client])


def _text(data: bytes | None) -> str | None:
    return None if data is None else _shown(value_text(data))


def _shown(text: str) -> str:
    text = printable(text[: TEXT_CHARACTERS_MAX + 1])
    return text if len(text) <= TEXT_CHARACTERS_MAX else f"{text[:TEXT_CHARACTERS_MAX]}…"
