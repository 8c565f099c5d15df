"""A recording whose records name schemas, known, unknown and lying."""

from __future__ import annotations

from pathlib import Path

from kproxy.exchange.entries import EVENTS, Note
from kproxy.recording import Writer
from kproxy.wire.payloads.schemas import Schema, note_of
from kproxy.wire.protocol.record_batch import Record
from kproxy.wire.protocol.records import encode_batch, rebase
from tests.exchange.bodies import (
    fetch_request,
    fetch_response,
    produce_request,
    produce_response,
)
from tests.exchange.making import START_NS, opened, request, response

ID = b"\0\0\0\0\x11"
"""What stands in front of data of schema 17."""
KEYS = [ID + b'"ann"', b"ben", b"eve", ID + b'"mal"']
VALUES = [
    ID + b'{"customer": "ann", "amount": 12, "paid": true, "items": [{"id": 17}, {"id": 4}], '
    b'"city": "K\\u00f6ln"}',
    b"\0\0\0\0\x63\x01\x02",
    b'{"customer": "eve", "amount": 101.5, "note": null}',
    ID + b'{"customer": "\\u001b[2J<b>", "amount": ',
]
"""Of a known schema, of an unknown one, JSON by itself, and not of the schema that it names."""
SCHEMA = Schema("JSON", '{"title": "Order"}', (), "orders-value", 1)


def records() -> list[Record]:
    """The records."""
    return [
        Record(n, 1_700_000_000_000 + n, key, value)
        for n, (key, value) in enumerate(zip(KEYS, VALUES, strict=True))
    ]


def write(path: Path) -> Path:
    """A recording of a producer and a consumer of these records; return its path."""
    data = encode_batch(records())
    asked = request("Produce", 9, produce_request({0: data}), 1)
    fetched = request("Fetch", 11, fetch_request({0: 41}), 2, connection=2)
    writer = Writer(path, start_ns=START_NS, schema_id="x", library_version="0")
    writer.write(
        [
            opened(1, node_id=2),
            opened(2),
            Note(EVENTS, START_NS, note_of([17], SCHEMA)),
            asked,
            fetched,
            response(fetched, fetch_response({0: rebase(data, 41)})),
            response(asked, produce_response({0: 41})),
        ]
    )
    writer.close()
    return path
