"""The records of a topic, each once, with the exchanges that wrote it and that read it.

    exchanges of the topic ─▶ records ─ by partition and offset ─▶ who produced, who consumed

Memory is bounded: the first `RECORDS_MAX` records of a filter are shown, fewer if their texts have
more than `CHARACTERS_MAX`; of each, what fits a screen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import Filter, matching
from kproxy.exchange.topic_records import TopicRecord
from kproxy.look.lines.frame import value_text, when
from kproxy.look.lines.record_lines import RecordSelection, part_text
from kproxy.look.lines.stream import Stream
from kproxy.look.page.shown import cut, shown_name

RECORDS_MAX = 2000
TEXT_CHARACTERS_MAX = 2000
"""Characters of a key or value that are shown."""
CHARACTERS_MAX = 4 << 20
"""Characters of all records together."""
HEADERS_MAX = 50
UNREADABLE_MAX = 50
PASSES_MAX = 20
"""Exchanges that are named with a record."""


def records_of(
    paths: Sequence[Path | str],
    wanted: Filter | None,
    topic: str,
    on_progress: Callable[[int], None] = lambda done_bytes: None,
) -> dict[str, Any]:
    """Return the records of a topic in the exchanges that match a filter, as JSON values, and what
    of them cannot be read: exchanges, with the place and the reason.

    Raises: RecordingError.
    """
    selection = RecordSelection(topic, None, wanted)
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    unreadable: list[list[str]] = []
    left = CHARACTERS_MAX
    stream = Stream(paths, matching("topic", topic), on_progress=on_progress)
    for exchange in stream.exchanges():
        if wanted is not None and not wanted.matches(exchange):
            continue
        for record in selection.records(exchange):
            place = stream.recording, record.partition, record.offset
            if record.offset is None:  # nobody can say which record it became
                place = (*place, exchange.number, len(found))
            row = found.get(place)
            if row is None:
                if len(found) == RECORDS_MAX or left <= 0:
                    more = list(found.values())
                    return {"records": more, "more": True, "unreadable": unreadable}
                row = found[place] = _row(record)
                left -= len(json.dumps(row))
            left -= _pass(row["produced" if record.produced else "consumed"], exchange)
        for each in selection.unreadable(exchange):
            if len(unreadable) < UNREADABLE_MAX:
                unreadable.append([exchange.name, _shown(each.text)])
    return {"records": list(found.values()), "more": False, "unreadable": unreadable}


def _row(record: TopicRecord) -> dict[str, Any]:
    """Return a record; `key_by` and `value_by` say by what they are decoded, or why not."""
    (key, key_by), (value, value_by) = part_text(record, "key"), part_text(record, "value")
    return {
        "partition": record.partition,
        "offset": record.offset,
        "time": when(record.timestamp),
        "key": None if record.key is None else _shown(key),
        "key_by": _shown(key_by),
        "value": None if record.value is None else _shown(value),
        "value_by": _shown(value_by),
        "headers": _headers(record.headers),
        "aborted": record.aborted,
        "produced": [],
        "consumed": [],
    }


def _headers(headers: Sequence[tuple[str, bytes | None]]) -> list[list[str | None]]:
    """Return the first headers; the last one says how many others there are."""
    shown = [[shown_name(name), _text(v)] for name, v in headers[:HEADERS_MAX]]
    if (more := len(headers) - HEADERS_MAX) > 0:
        shown.append(["…", f"{more} more headers: kproxy show --records has them"])
    return shown


def _pass(passes: list[list[str]], exchange: Exchange) -> int:
    """Add an exchange, if it is one of the first; return the characters that it takes."""
    if len(passes) == PASSES_MAX:
        return 0
    client = exchange.client_id or f"c{exchange.connection}"
    passes.append([exchange.name, shown_name(client)])
    return len(json.dumps(passes[-1]))


def _text(data: bytes | None) -> str | None:
    return None if data is None else _shown(value_text(data))


def _shown(text: str) -> str:
    return cut(text, TEXT_CHARACTERS_MAX)
