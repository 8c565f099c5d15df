"""What keys and values mean: the schema that they name, or why not."""

from __future__ import annotations

from uuid import UUID

from kproxy.exchange.topic_records import TopicRecord
from kproxy.payloads.decoding import Decoded, Undecoded
from kproxy.payloads.schemas import Schema, Schemas, note_of

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
