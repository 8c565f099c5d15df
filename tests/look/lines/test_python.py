"""A recording in a test of one's own: what Python says of it is what `show` and its JSON say."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from kproxy import recording
from kproxy.exchange import embedded
from kproxy.exchange.exchange import Exchange
from kproxy.look.lines.jsonl import KEYS, to_json
from kproxy.wire.protocol import records
from kproxy.wire.protocol.record_batch import Record
from tests.bed import needs
from tests.exchange.bodies import produce_request, produce_response
from tests.exchange.making import START_NS, opened, request, response
from tests.recording.making import write

RECORDINGS = [
    needs.REPOSITORY / "tests" / "exchange" / "mock_cluster.mcap",
    *sorted((needs.REPOSITORY / "recordings").rglob("*.mcap")),
]


# ---- sentences


def encoded(key: bytes | None, value: bytes | None = b"v") -> bytes:
    return records.encode_batch([Record(0, START_NS // 1_000_000, key, value, ())])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """`app` sends three orders, the second in vain at first, and a payment."""
    found: list[Any] = [opened(node_id=2)]
    sent = [("orders", b"a", 0), ("orders", b"b", 6), ("payments", b"p", 0), ("orders", b"b", 0)]
    for number, (topic, key, error) in enumerate(sent, 1):
        asked = request("Produce", 9, produce_request({0: encoded(key)}, topic), number)
        found += [asked, response(asked, produce_response({0: 40 + number}, error, topic))]
    made = tmp_path / "some.mcap"
    write(made, [found])
    return made


def test_my_app_sent_three_produce_requests_with_acks_all_to_orders(path: Path) -> None:
    sent = list(recording.read(path, "api:Produce topic:orders client_id:app"))
    assert [produce.request.acks for produce in sent] == [-1, -1, -1], sent


# ---- JSON and Python


@pytest.mark.parametrize("made", RECORDINGS, ids=lambda made: made.stem)
def test_json_and_python_say_the_same(made: Path) -> None:
    for exchange in recording.read(made):
        plain = to_json(exchange)
        assert tuple(plain) == KEYS
        for key in KEYS[2 : KEYS.index("topics") + 1]:
            assert plain[key] == getattr(exchange, key), (key, exchange)
        for key in ("groups", "transactional_ids", "errors", "error_messages", "faults"):
            assert plain[key] == getattr(exchange, key), (key, exchange)
        named = [(each["topic"], each["partition"]) for each in plain["partitions"]]
        assert named == exchange.partitions
        for direction in ("request", "response"):
            body, decoded = plain[direction], getattr(exchange, direction)
            if decoded is None and body is not None:
                assert exchange.opaque
                assert _bytes({"base64": body["frame"]}) == getattr(exchange, f"{direction}_frame")
            else:
                _same(body, decoded, exchange)
        keys = [each.key for each in exchange.records]
        assert [_bytes(each["key"]) for each in _records(plain)] == keys, exchange


def _same(plain: Any, value: Any, exchange: Exchange) -> None:
    """Compare the JSON of a field, or of a whole body, to the field."""
    if isinstance(value, bytes):
        if isinstance(plain, dict):  # what consumers embed
            decode = embedded.subscription if "topics" in plain else embedded.assignment
            del plain["version"]
            _same(plain, decode(value), exchange)
        elif isinstance(plain, str):
            assert base64.b64decode(plain) == value, exchange
        else:
            assert isinstance(plain, list), exchange  # batches of records
    elif isinstance(value, UUID):
        assert base64.urlsafe_b64decode(f"{plain}==") == value.bytes, exchange
    elif isinstance(plain, dict):
        for name, inner in plain.items():
            _same(inner, getattr(value, name), exchange)
    elif isinstance(plain, list):
        assert len(plain) == len(value), exchange
        for inner, each in zip(plain, value, strict=True):
            _same(inner, each, exchange)
    else:
        assert (plain is None) == (value is None) and plain == value, exchange


def _records(plain: Any) -> Iterator[dict[str, Any]]:
    """The records in the JSON of an exchange; control batches have none for an application."""
    if isinstance(plain, list):
        for each in plain:
            yield from _records(each)
    elif isinstance(plain, dict):
        if plain.get("control"):
            return
        for name, each in plain.items():
            if name == "records" and "compression" in plain:
                yield from each
            else:
                yield from _records(each)


def _bytes(plain: Any) -> bytes | None:
    """A key or value as the manual says how to read it."""
    if isinstance(plain, dict):
        return base64.b64decode(plain["base64"])
    return None if plain is None else plain.encode()
