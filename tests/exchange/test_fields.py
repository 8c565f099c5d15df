"""The table of an exchange's fields: what is said there holds for every reader of it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from kproxy import recording
from kproxy.exchange.arriving import ArrivingRequest
from kproxy.exchange.endings import Unanswered
from kproxy.exchange.exchange import FIELDS
from kproxy.exchange.fields import Need, Type
from kproxy.exchange.filter import parse
from kproxy.exchange.filter.keys import BY_NAME, KEYS, QUALITIES, Key
from kproxy.look.lines.jsonl import to_json
from kproxy.look.lines.manual import page
from kproxy.tables.views import EXCHANGES
from tests.bed import needs
from tests.exchange.bodies import produce_request
from tests.exchange.making import START_NS, request

RECORDINGS = [
    needs.REPOSITORY / "tests" / "exchange" / "mock_cluster.mcap",
    needs.REPOSITORY / "recordings" / "demo.mcap",
    *sorted((needs.REPOSITORY / "tests" / "recording" / "formats" / "3").glob("*.mcap")),
]
PYTHON: dict[Type, Any] = {
    Type.INT16: int,
    Type.INT32: int,
    Type.INT64: int,
    Type.FLOAT: float,
    Type.BOOL: bool,
    Type.TEXT: str,
    Type.TEXTS: list,
    Type.TIME: datetime,
    Type.PARTITIONS: list,
    Type.WAITED: Unanswered,
    Type.BODY: object,
    Type.BYTES: bytes,
}


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_a_field_has_the_type_that_it_says(path: Any) -> None:
    for exchange in recording.read(path):
        for name, field in FIELDS.items():
            value = getattr(exchange, name)
            if value is None:
                assert field.nullable, f"{name} is null in {exchange}"
            else:
                assert isinstance(value, PYTHON[field.type]), f"{name} is {value!r}"


def test_every_reader_has_every_field() -> None:
    """JSON, tables, filters and their help: what the table has, and in its order."""
    (first, *_) = recording.read(RECORDINGS[0])
    in_json = [name for name, field in FIELDS.items() if field.in_json]
    assert list(to_json(first)) == in_json
    columns = {column.name: column for column in EXCHANGES}
    assert [name for name in FIELDS if name not in columns] == []
    assert all(columns[name].comment == field.about for name, field in FIELDS.items())
    bodies = {Type.BODY, Type.WAITED}
    keys = {FIELDS[name].key for name in in_json if FIELDS[name].type not in bodies}
    assert keys <= {*BY_NAME, *QUALITIES}
    text = page("filters")
    assert [key for key in keys if f"| `{key}` |" not in text and f"`is:{key}`" not in text] == []


@pytest.mark.parametrize(
    "key", [key for key in KEYS if key.need in (Need.CONNECTION, Need.HEADER, Need.REQUEST)]
)
def test_an_arriving_request_has_what_filters_of_requests_ask(key: Key) -> None:
    """Fault rules and `run --only` ask it in the middle of the traffic."""
    asked = request("Produce", 9, produce_request({0: b""}, "orders"))
    arriving = ArrivingRequest.of(asked.data, 1, 1, 2, "127.0.0.1:5001", START_NS)
    wanted = parse(key.example.split()[0])
    assert wanted.matches(arriving) in (True, False)
