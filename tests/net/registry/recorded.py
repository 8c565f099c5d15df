"""Recordings whose records name schemas."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from kproxy.exchange.entries import Entry
from kproxy.exchange.exchange import Exchange
from kproxy.recording import Recording, read
from kproxy.wire.payloads.decoding import Decoded, Undecoded
from tests.exchange.batches import batch
from tests.exchange.bodies import produce_request, produce_response
from tests.exchange.making import START_NS, request, response


def framed(schema_id: int, text: str = '{"state": "new"}') -> bytes:
    """A value that names a schema."""
    return b"\0" + schema_id.to_bytes(4, "big") + text.encode()


def produced(*values: bytes, first: int = 1, topic: str = "orders") -> list[Entry]:
    """A Produce for each value, and its response."""
    entries: list[Entry] = []
    for number, value in enumerate(values, first):
        body = produce_request({0: batch(1, value=value)}, topic)
        asked = request("Produce", 9, body, number=number)
        entries += [asked, response(asked, produce_response({0: number}, topic=topic))]
    return entries


def recording(path: Path, *parts: Iterable[Entry], rotated: bool = False) -> list[Path]:
    """A recording of these, a batch for each part, or even a file."""
    made = Recording(
        path,
        start_ns=START_NS,
        schema_id="x",
        library_version="0",
        rotate_bytes=1 if rotated else None,
    )
    for part in parts:
        made.write(part)
    made.close()
    return made.paths


def meanings(exchanges: Iterable[Exchange]) -> list[Decoded | Undecoded | None]:
    """What the values of records mean."""
    return [record.meaning("value") for each in exchanges for record in each.records]


def values(path: Path | list[Path]) -> list[object]:
    """What the values of a recording's records mean, or why that is not known."""
    found = meanings(read(path))
    return [each.value if isinstance(each, Decoded) else each and each.why for each in found]
