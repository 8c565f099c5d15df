"""Avro's bytes as plain values: fastavro reads the same; hostile schemas and bytes cost little."""

from __future__ import annotations

import copy
import datetime
import io
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.wire.payloads import avro
from kproxy.wire.payloads.plain import PayloadError, SchemaError, json_text, plain

PRIMITIVES = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]


def read(schema: Any, data: bytes, *references: Any) -> Any:
    texts = tuple(("", json.dumps(each)) for each in references)
    return avro.compiled(json.dumps(schema), texts)[1](data)


def written(schema: Any, value: Any) -> bytes:
    into = io.BytesIO()
    fastavro.schemaless_writer(into, fastavro.parse_schema(schema), value)
    return into.getvalue()


def varint(value: int) -> bytes:
    return written("long", value)


@st.composite
def schemas(draw: st.DrawFn, depth: int = 3) -> Any:
    """Schemas in which each name is new."""
    numbers = iter(range(1000))

    def one(depth: int) -> Any:
        kinds = ["primitive"] * 3 + (["record", "array", "map", "union"] if depth else [])
        match draw(st.sampled_from([*kinds, "enum", "fixed"])):
            case "record":
                fields = [one(depth - 1) for _ in range(draw(st.integers(0, 4)))]
                named = [{"name": f"f{nth}", "type": each} for nth, each in enumerate(fields)]
                return {"type": "record", "name": f"N{next(numbers)}", "fields": named}
            case "array":
                return {"type": "array", "items": one(depth - 1)}
            case "map":
                return {"type": "map", "values": one(depth - 1)}
            case "union":
                return ["null", draw(st.sampled_from(["int", "string", "bytes"])), record(depth)]
            case "enum":
                return {"type": "enum", "name": f"N{next(numbers)}", "symbols": ["A", "B"]}
            case "fixed":
                size = draw(st.integers(0, 5))
                return {"type": "fixed", "name": f"N{next(numbers)}", "size": size}
        return draw(st.sampled_from(PRIMITIVES))

    def record(depth: int) -> Any:
        field = {"name": "only", "type": one(depth - 1)}
        return {
            "type": "record",
            "name": f"N{next(numbers)}",
            "namespace": "a.b",
            "fields": [field],
        }

    return one(depth)


SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "long": st.integers(-(1 << 63), (1 << 63) - 1),
    "float": st.floats(width=32),
    "double": st.floats(),
    "bytes": st.binary(max_size=200),
    "string": st.text(max_size=100),
}


def values(schema: Any) -> st.SearchStrategy[Any]:
    """Values of a schema, as fastavro writes them."""
    if isinstance(schema, str):
        return SCALARS[schema]
    if isinstance(schema, list):
        return st.one_of([values(each) for each in schema])
    match schema["type"]:
        case "record":
            return st.fixed_dictionaries({f["name"]: values(f["type"]) for f in schema["fields"]})
        case "array":
            return st.lists(values(schema["items"]), max_size=3)
        case "map":
            return st.dictionaries(st.text(max_size=3), values(schema["values"]), max_size=3)
        case "enum":
            return st.sampled_from(schema["symbols"])
    return st.binary(min_size=schema["size"], max_size=schema["size"])


@given(schemas(), st.data())
def test_it_reads_what_fastavro_reads(schema: Any, drawn: st.DataObject) -> None:
    data = written(schema, drawn.draw(values(schema)))
    theirs = fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(schema))
    assert read(schema, data) == plain(theirs)


@given(schemas(), st.binary(max_size=60))
def test_whatever_the_bytes_are_they_are_read_or_refused(schema: Any, data: bytes) -> None:
    try:
        value = read(schema, data)
    except PayloadError as error:
        assert len(str(error)) < 100
    else:
        assert json.loads(json_text(value)) == value


WORDS = ["type", "name", "fields", "items", "values", "symbols", "size", "namespace", "logicalType"]
WORDS += ["record", "array", "map", "enum", "fixed", "decimal", "scale", "A", *PRIMITIVES]
anything = st.recursive(
    st.none() | st.integers(-2, 5) | st.sampled_from(WORDS),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(anything, st.binary(max_size=20))
def test_whatever_the_schema_is_it_is_used_or_refused(schema: Any, data: bytes) -> None:
    try:
        json_text(read(schema, data))
    except (PayloadError, SchemaError) as error:
        assert len(str(error)) < 120


TAX = {"type": "fixed", "name": "Tax", "size": 4, "logicalType": "decimal"}
USUAL = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "note", "type": ["null", "string"]},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "OLD"]}},
        {"name": "items", "type": {"type": "array", "items": "long"}},
        {"name": "by", "type": {"type": "map", "values": "string"}},
        {"name": "sum", "type": {"type": "bytes", "logicalType": "decimal", "scale": 2}},
        {"name": "tax", "type": TAX},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    ],
}


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each container with each of its keys or indexes."""
    for key in list(value if isinstance(value, dict) else range(len(value))):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


@given(st.data(), anything, st.sampled_from(["size", "scale", "namespace", "name", "logicalType"]))
def test_a_schema_with_one_wrong_place_is_used_or_refused(
    drawn: st.DataObject, wrong: Any, key: str
) -> None:
    schema = copy.deepcopy(USUAL)
    found = list(places(schema))
    container, place = found[drawn.draw(st.integers(0, len(found) - 1))]
    if isinstance(container, dict) and drawn.draw(st.booleans()):
        place = key
    container[place] = wrong
    try:
        json_text(read(schema, drawn.draw(st.binary(max_size=40))))
    except (PayloadError, SchemaError) as error:
        assert len(str(error)) < 120


DAY = datetime.date(2026, 3, 1)
TIME = datetime.datetime(2026, 3, 1, 9, 30, 1, 250_000, datetime.UTC)


@pytest.mark.parametrize(
    ("kind", "logical", "value", "text"),
    [
        ("int", {"logicalType": "date"}, DAY, "2026-03-01"),
        ("long", {"logicalType": "timestamp-millis"}, TIME, "2026-03-01T09:30:01.250Z"),
        ("long", {"logicalType": "timestamp-micros"}, TIME, "2026-03-01T09:30:01.250000Z"),
        ("int", {"logicalType": "time-millis"}, TIME.time(), "09:30:01.250"),
        ("long", {"logicalType": "time-micros"}, TIME.time(), "09:30:01.250000"),
        ("string", {"logicalType": "uuid"}, UUID(int=5), str(UUID(int=5))),
        (
            "bytes",
            {"logicalType": "decimal", "precision": 9, "scale": 2},
            Decimal("-0.05"),
            "-0.05",
        ),
        ("bytes", {"logicalType": "decimal", "precision": 9}, Decimal(1200), "1200"),
        ("bytes", {"logicalType": "a-new-one"}, b"\xff", "/w=="),
    ],
)
def test_logical_types_are_texts(kind: str, logical: Any, value: Any, text: str) -> None:
    schema = {"type": kind, **logical}
    assert read(schema, written(schema, value)) == text


def test_a_time_that_has_no_text_stays_a_number() -> None:
    schema = {"type": "long", "logicalType": "timestamp-millis"}
    assert read(schema, varint((1 << 63) - 1)) == (1 << 63) - 1


def test_named_types_are_found_by_their_namespaces_and_in_references() -> None:
    money = {"type": "enum", "name": "shop.Currency", "symbols": ["EUR", "USD"]}
    fields = [{"name": "first", "type": "Currency"}, {"name": "more", "type": "shop.Currency"}]
    order = {"type": "record", "name": "Order", "namespace": "shop", "fields": fields}
    assert read(order, b"\0\2", money) == {"first": "EUR", "more": "USD"}
    with pytest.raises(SchemaError, match="lacks the type Currency"):
        read(order, b"\0\2")


def test_bytes_that_are_all_of_a_value_may_come_without_their_length() -> None:
    assert [read("bytes", data) for data in (b"\4ab", b"ab", b"")] == ["YWI=", "YWI=", ""]


LIST = {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}


def test_recursive_values_are_read_up_to_a_depth() -> None:
    assert read(LIST, b"\2\2\0") == {"next": {"next": {"next": None}}}
    with pytest.raises(PayloadError, match="nested too deeply"):
        read(LIST, b"\2" * 500_000 + b"\0")


def doubled(times: int) -> Any:
    """A schema whose one value has 2 ** times parts, and no bytes."""
    inner: Any = {"type": "record", "name": "R0", "fields": []}
    for nth in range(times):
        two = [{"name": "a", "type": inner}, {"name": "b", "type": f"R{nth}"}]
        inner = {"type": "record", "name": f"R{nth + 1}", "fields": two}
    return inner


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ({"type": "array", "items": "null"}, varint(10**12) + b"\0"),
        ({"type": "array", "items": doubled(10)}, varint(-(10**6)) + b"\0\0"),
        ({"type": "map", "values": "int"}, varint(10**7)),
        ({"type": "array", "items": {"type": "enum", "name": "E", "symbols": ["x" * 50_000]}},
         varint(4000) + b"\0" * 4001),
        ({"type": "array", "items": {"type": "record", "name": "R", "fields": [
            {"name": "n" * 1_000_000, "type": "int"}]}}, varint(100) + b"\0" * 101),
    ],
    ids=["nulls", "records without bytes", "map", "symbols", "names"],
)  # fmt: skip
def test_few_bytes_do_not_become_a_large_value(schema: Any, data: bytes) -> None:
    with pytest.raises(PayloadError, match="it is too large"):
        read(schema, data)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (doubled(28), "makes values that are too large"),
        ("Nope", "lacks the type Nope"),
        ({"type": "record", "name": "A", "fields": 3}, "is none of Avro"),
    ],
)
def test_a_schema_that_cannot_be_used_says_why(schema: Any, why: str) -> None:
    with pytest.raises(SchemaError, match=why):
        read(schema, b"")


def test_a_schema_without_an_end_is_one_without_values() -> None:
    schema = {"type": "record", "name": "A", "fields": [{"name": "a", "type": "A"}]}
    with pytest.raises(PayloadError, match="nested too deeply"):
        read(schema, b"")


@pytest.mark.parametrize(
    ("schema", "data", "why"),
    [
        ("string", b"\x08ab", "it ends too early"),
        ("string", b"\x01", "it ends too early"),
        ("string", b"\x02\xff", "a text is not UTF-8"),
        ("long", b"\xff" * 30, "a number is too long"),
        ("int", varint(1 << 40), "an int is too large"),
        ("int", b"\0\0\0", "2 bytes are left over"),
        ("boolean", b"\7", "a boolean is neither 0 nor 1"),
        (["null", "int"], b"\1", "its union has no branch -1"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\1", "its enum has no symbol -1"),
        (
            {"type": "bytes", "logicalType": "decimal"},
            varint(70) + bytes(70),
            "decimal is too long",
        ),
    ],
)
def test_bytes_of_another_schema_are_refused(schema: Any, data: bytes, why: str) -> None:
    with pytest.raises(PayloadError, match=why):
        read(schema, data)
