"""Differences of records and requests from the recorded ones, short enough to be read.

::

    currency "USD", recorded "EUR"          JSON, decoded or not, and requests: the parts
    value …'ing long', recorded …'ing wide'  other values: from just before the first difference
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import starmap
from typing import Any

import attrs

from kproxy.exchange.topic_records import TopicRecord
from kproxy.exchange.words.wording import count
from kproxy.printable import printable
from kproxy.replay.ignored import PRESENT, Headers, Ignored
from kproxy.replay.kinds import MARKS
from kproxy.wire.payloads.decoding import decode
from kproxy.wire.payloads.json_paths import objects_of
from kproxy.wire.payloads.meaning import Decoded, Undecoded
from kproxy.wire.payloads.schemas import Schemas
from kproxy.wire.protocol.record_batch import Record

SHOWN_CHARACTERS = 60
_BEFORE_CHARACTERS = 20
"""Number of equal characters that are shown before the first difference."""
_PARTS_SHOWN = 3
_ABSENT = object()

Difference = tuple[str, str, str]
"""The part that differs, its text now, and its recorded text; no texts for a number of parts."""
Meaning = Decoded | Undecoded | None
"""What a key or a value means by its schema, if it names one."""


def differences(
    now: Record, then: Record, of_now: Mapping[str, Meaning], of_then: Mapping[str, Meaning]
) -> Iterator[Difference]:
    """Yield the differences of a record from the recorded one, given what the `key` and the `value`
    of each mean."""
    for part, data, recorded in (("key", now.key, then.key), ("value", now.value, then.value)):
        if data != recorded:
            yield from _of_part(part, (data, of_now[part]), (recorded, of_then[part]))
    if now.headers != then.headers:
        yield from _of_headers(now.headers, then.headers)


def compared(
    record: Record | TopicRecord, topic: str, ignored: Ignored, schemas: Schemas | None
) -> tuple[Record, dict[str, Meaning]]:
    """Return a record without the ignored parts, and what its key and its value mean."""
    content = attrs.evolve(ignored, schemas=schemas).content(record, topic)
    given = topic, record.key, record.value, record.headers, schemas or Schemas()
    meanings: dict[str, Meaning] = {part: decode(part, *given) for part in ("key", "value")}
    if content.decoded_as:
        meanings["value"] = Decoded(json.loads(content.value or b""), content.decoded_as)
    return Record(-1, -1, content.key, content.value, content.headers), meanings


def why(meaning: Meaning) -> str:
    """Return the word beside a text why it is not decoded, if it should be."""
    return f" [{printable(meaning.why)}]" if isinstance(meaning, Undecoded) else ""


def sentence(found: Iterable[Difference]) -> str:
    """Return differences in the words of an app: `total 12.0, recorded 11.5`."""
    return "; ".join(starmap(_in_words, found))


def _in_words(name: str, now: str, then: str) -> str:
    if not now:
        return name
    name = name.removeprefix("value.")
    if now == "absent":
        return f"no {name}, recorded {then}"
    return f"{name} {now}, recorded {'without' if then == 'absent' else then}"


def text_of(data: bytes | None) -> str:
    """Return a key or a value as text, uncut."""
    if data is None:
        return "null"
    try:
        return repr(data.decode())
    except UnicodeDecodeError:
        return data.hex()


def short(text: str) -> str:
    """Return a text, cut to `SHOWN_CHARACTERS`."""
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def _of_headers(now: Headers, then: Headers) -> Iterator[Difference]:
    names = dict.fromkeys(name for name, _ in (*then, *now))
    found = [
        (f"header {printable(name)}", *cut_to_difference(*texts))
        for name in names
        if len(set(texts := [_header_text(each, name) for each in (now, then)])) > 1
    ]
    yield from found[:_PARTS_SHOWN]
    if len(found) > _PARTS_SHOWN:
        yield count(len(found) - _PARTS_SHOWN, "more differing header"), "", ""
    if not found:
        yield "headers", *cut_to_difference(str(now), str(then))


def _header_text(headers: Headers, name: str) -> str:
    """Return the values of all headers of a name."""
    values = [value for each, value in headers if each == name]
    if any(value is PRESENT for value in values):  # it is ignored
        return f"present {len(values)} times" if len(values) > 1 else "present"
    return ", ".join(map(text_of, values)) or "absent"


_Part = tuple[bytes | None, Meaning]
"""A key or a value, and what it means."""


def _of_part(part: str, now: _Part, then: _Part) -> Iterator[Difference]:
    found = _of_plain(part, now, then)
    yield from found[:_PARTS_SHOWN]
    if len(found) > _PARTS_SHOWN:
        yield count(len(found) - _PARTS_SHOWN, "more differing part"), "", ""
    if not found:
        texts = cut_to_difference(text_of(now[0]), text_of(then[0]))
        yield part, f"{texts[0]}{why(now[1])}", f"{texts[1]}{why(then[1])}"


def _of_plain(part: str, now: _Part, then: _Part) -> list[Difference]:
    """Return the parts in which two decoded values, or two JSON objects or arrays, differ, or their
    schemas if nothing else does; none if one is neither."""
    try:
        match now, then:
            case (_, Decoded(value, by)), (_, Decoded(recorded, recorded_by)):
                found = list(parts(part, value, recorded))
                return found or ([(part, by, recorded_by)] if by != recorded_by else [])
            case (data, None), (recorded_data, None):
                value, recorded = objects_of(data), objects_of(recorded_data)
                if value is not None and type(value) is type(recorded):
                    return list(parts(part, value, recorded))
            case _:
                pass
    except RecursionError:
        pass
    return []


def parts(path: str, now: Any, then: Any) -> Iterator[Difference]:
    """Yield the parts in which two plain values differ, cut to where they do: `whole_parts`."""
    for inner, *texts in whole_parts(path, now, then):
        yield inner, *cut_to_difference(*texts)


def whole_parts(path: str, now: Any, then: Any) -> Iterator[Difference]:
    """Yield the parts in which two plain values differ, by their paths below `path`."""
    if isinstance(now, dict) and isinstance(then, dict):
        for name in {**then, **now}:
            inner = f"{path}.{printable(name)}" if path else printable(name)
            yield from whole_parts(inner, now.get(name, _ABSENT), then.get(name, _ABSENT))
    elif isinstance(now, list) and isinstance(then, list):
        for index in range(max(len(now), len(then))):
            pair = [each[index] if index < len(each) else _ABSENT for each in (now, then)]
            yield from whole_parts(f"{path}[{index}]", *pair)
    elif (texts := (_json(now), _json(then)))[0] != texts[1]:
        yield path, *texts


def _json(value: Any) -> str:
    return "absent" if value is _ABSENT else json.dumps(value, sort_keys=True)


def cut_to_difference(now: str, then: str) -> tuple[str, str]:
    """Return two texts, cut so that their first difference is shown. A kind is no text: it has no
    quotes."""
    now, then = (text[1:-1] if text[1:-1] in MARKS else text for text in (now, then))
    if max(len(now), len(then)) <= SHOWN_CHARACTERS:
        return now, then
    start = max(0, common_prefix_length(now, then) - _BEFORE_CHARACTERS)
    before = "…" if start else ""
    return before + short(now[start:]), before + short(then[start:])


def common_prefix_length(one: str | bytes, other: str | bytes) -> int:
    """Return the length of the common prefix of two texts."""
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return index
    return min(len(one), len(other))
