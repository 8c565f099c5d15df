"""The tables of what varies name fields and APIs that Kafka has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kproxy.exchange import varying
from kproxy.exchange.entries import SASL_TOKEN
from kproxy.wire.protocol import schema
from kproxy.wire.protocol.schema import REQUEST, RESPONSE, Field

MESSAGES = [
    message
    for key in schema.api_names()
    for direction in (REQUEST, RESPONSE)
    if (message := schema.message(key, direction))
]


def names(fields: Iterable[Field]) -> Iterator[str]:
    """All names of fields in a message."""
    for field in fields:
        yield field.name
        yield from names(field.fields)


def test_kafka_has_what_varies() -> None:
    known = {(message.name, name) for message in MESSAGES for name in names(message.fields)}
    assert set(varying._OF_MESSAGES) <= known
    assert set(varying._BY_NAME) - {"unknown_tags"} <= {name for _, name in known}
    apis = {schema.api_name(key) for key in schema.api_names()} | {SASL_TOKEN}
    assert {*varying._PURPOSES, *varying.BY_CHANCE, *varying.OF_CLUSTER} <= apis
    for message in MESSAGES:
        assert varying.left_out(message.name) >= varying.left_out(message.name, *varying.Why)
