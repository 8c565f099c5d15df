"""kio and kafka-python read what we write and write the same bytes again.

Each for the messages and versions that it covers; where it does something else, DIFFERENT says what
and why.
"""

from __future__ import annotations

import io
import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given

from kproxy.wire.protocol.schema import Message
from tests.bed import needs
from tests.versions import versions
from tests.wire.protocol.making import BODIES, encoded, few, title
from tests.wire.protocol.strategies import bodies

Rewrite = Callable[[bytes], bytes]

DIFFERENT = {
    "ApiVersionsResponse": (
        "kafka-python reads every answer with an error code as version 0, not only error 35"
    ),
}


@pytest.fixture(scope="module")
def kafka_python() -> dict[tuple[int, str], Any]:
    """kafka-python's classes by (api_key, direction)."""
    import kafka.protocol
    from kafka.protocol.api_message import ApiMessage

    for module in pkgutil.walk_packages(kafka.protocol.__path__, "kafka.protocol."):
        if ".old" not in module.name and "generate" not in module.name:
            import_module(module.name)
    found: dict[tuple[int, str], Any] = {}
    waiting: list[Any] = list(ApiMessage.__subclasses__())
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        if cls._class_version is None and cls._json is not None:
            found[cls.API_KEY, cls.type] = cls
    return found


def rewrite_with_kafka_python(cls: Any, version: int) -> Rewrite:
    """Decode and encode again."""

    def rewrite(raw: bytes) -> bytes:
        found = cls.decode(raw, version=version)
        found._header = None  # decode leaves it out, encode needs it
        found.API_VERSION = version
        return bytes(found.encode())

    return rewrite


def rewrite_with_kio(message: Message, version: int) -> Rewrite | None:
    """Decode and encode again; None if kio does not have this version."""
    try:
        from kio.index import KioIndexError, load_request_schema, load_response_schema
    except ImportError:
        needs.missing("kio is not installed")
    from kio.serial import entity_reader, entity_writer

    load = load_request_schema if message.direction == "request" else load_response_schema
    try:
        entity: Any = load(message.api_key, version)
    except (KioIndexError, KeyError, ImportError):
        return None
    read, write = entity_reader(entity), entity_writer(entity)

    def rewrite(raw: bytes) -> bytes:
        value, size = read(raw, 0)
        assert size == len(raw)
        out = io.BytesIO()
        write(out, value)
        return out.getvalue()

    return rewrite


@pytest.mark.parametrize("message", BODIES, ids=title)
def test_they_write_the_same_bytes(message, kafka_python):
    theirs = kafka_python.get((message.api_key, message.direction))
    for version in versions(message):
        rewrites = [rewrite_with_kio(message, version)]
        if theirs is not None and version <= theirs.max_version:
            rewrites.append(rewrite_with_kafka_python(theirs, version))
        hold(message, version, [rewrite for rewrite in rewrites if rewrite])


def hold(message: Message, version: int, rewrites: list[Rewrite]) -> None:
    """Compare some messages with what oracles make of them; neither keeps unknown tags."""

    @few(25)
    @given(bodies(message, version, tame=True, tags=False))
    def check(body):
        if message.name in DIFFERENT:
            body.error_code = 0
        raw = encoded(message, version, body)
        for rewrite in rewrites:
            assert rewrite(raw) == raw

    if rewrites:
        check()


def test_how_much_they_cover(kafka_python):
    found = {"kio": 0, "kafka-python": 0}
    for message in BODIES:
        theirs = kafka_python.get((message.api_key, message.direction))
        for version in message.versions:
            found["kio"] += rewrite_with_kio(message, version) is not None
            found["kafka-python"] += theirs is not None and version <= theirs.max_version
    assert found["kio"] >= 580
    assert found["kafka-python"] >= 500
