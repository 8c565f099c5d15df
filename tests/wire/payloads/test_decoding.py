"""What keys and values mean: the schema that they name, or why not."""

from __future__ import annotations

import json
import sys
from uuid import UUID

import pytest

from kproxy.exchange.topic_records import TopicRecord
from kproxy.wire.payloads.meaning import Decoded, Undecoded
from kproxy.wire.payloads.plain import json_text
from kproxy.wire.payloads.schemas import Schema, Schemas, note_of

GUID = UUID("89791762-2336-4186-9674-299b90a802e2")


def known() -> Schemas:
    schemas = Schemas()
    schemas.note(note_of([17, GUID], Schema("JSON", '{"type": "object"}', (), "orders-value", 1)))
    return schemas


def record(value: bytes, *headers: tuple[str, bytes]) -> TopicRecord:
    return TopicRecord("orders", 0, 1, 0, None, value, headers, True, schemas=known())


def test_the_schema_is_named_in_front_or_in_a_header() -> None:
    meaning = Decoded({"customer": "ann"}, "JSON, schema 17")
    assert record(b'\0\0\0\0\x11{"customer": "ann"}').meaning("value") == meaning
    in_header = record(b'{"customer": "ann"}', ("__value_schema_id", b"\1" + GUID.bytes))
    assert in_header.meaning("value") == Decoded({"customer": "ann"}, f"JSON, schema {GUID}")
    assert record(b'{"customer": "ann"}').meaning("value") is None, "it speaks for itself"


def test_what_does_not_follow_its_schema_says_so() -> None:
    assert record(b"\0\0\0\0\x11{").meaning("value") == Undecoded("not of schema 17: it is no JSON")
    assert record(b"\0\0\0\0\x12{}").meaning("value") == Undecoded(
        "schema 18 is not in the recording"
    )


def test_the_schema_may_be_told_later() -> None:
    later = [note_of([3], Schema("JSON", "{}"))]
    schemas = Schemas(lambda: later)
    one = TopicRecord("orders", 0, 1, 0, b"\0\0\0\0\x03[]", None, (), True, schemas=schemas)
    assert one.meaning("key") == Decoded([], "JSON, schema 3")


@pytest.mark.parametrize(
    ("value", "decoded"),
    [
        (b' {"a": [1, NaN, 1e999]}', {"a": [1, "NaN", "Infinity"]}),
        (b"[", "["),
        (b"17", "17"),
        ("Jürgen".encode(), "Jürgen"),
        (b"\xff\0", b"\xff\0"),
        (b"[" * 200_000, "[" * 200_000),
        (b'{"a":' * 150 + b"1" + b"}" * 150, '{"a":' * 150 + "1" + "}" * 150),
        (b"\0\0\0\0\x12{}", "\0\0\0\0\x12{}"),
    ],
    ids=lambda each: str(each)[:20],
)
def test_what_names_no_schema_speaks_for_itself(value: bytes, decoded: object) -> None:
    assert record(value).decoded == decoded


def test_a_schema_that_cannot_be_used_says_why() -> None:
    schemas = Schemas()
    for number, kind, text in ((1, "AVRO", '{"type": "x"}'), (2, "XML", ""), (3, "PROTOBUF", "?")):
        schemas.note(note_of([number], Schema(kind, text)))
    schemas.note(note_of([4], Schema("AVRO", f'"{"x" * (3 << 20)}"')))
    schemas.note(note_of([5], Schema("AVRO", '"string"')))
    words = {
        1: "schema 1 lacks the type x",
        2: "schema 2 is of an unknown kind",
        3: "schema 3 is none of Protobuf",
        4: "schema 4 is too large",
        5: "not of schema 5: it ends too early",
    }
    for number, why in words.items():
        for _ in range(2):
            value = b"\0\0\0\0" + bytes([number]) + b"\x10"
            one = TopicRecord("orders", 0, 1, 0, None, value, (), True, schemas=schemas)
            assert one.meaning("value") == Undecoded(why)


def test_a_value_without_the_library_of_its_schema_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "google.protobuf.message", None)
    schemas = Schemas()
    schemas.note(note_of([1], Schema("PROTOBUF", "")))
    one = TopicRecord("orders", 0, 1, 0, None, b"\0\0\0\0\1\0", (), True, schemas=schemas)
    assert one.meaning("value") == Undecoded("schema 1 needs pip install 'kproxy-kafka[schemas]'")


def test_text_of_values_is_bounded() -> None:
    assert json_text({"a": "ü"}) == '{"a":"ü"}'
    assert json_text("x" * 100, 10) == '"xxxxxxxx…'
    half = json_text(json.loads('"\\ud800"'))
    assert json.loads(half.encode()) == "\ud800"


@pytest.mark.parametrize("text", ["\u202ecod.exe", "\x9b2J", "\x1b[2J", "a\u2028b"])
def test_text_of_values_has_nothing_that_a_terminal_obeys(text: str) -> None:
    made = json_text({"ü": text})
    assert made.isprintable()
    assert json.loads(made) == {"ü": text}
