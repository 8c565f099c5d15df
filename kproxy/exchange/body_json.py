"""The bodies of exchanges as JSON text: what `kproxy show --json`, exports and tables have of them.

Bodies have the fields of their version of Kafka's definition (`wire.protocol.plain`). Fields of
type `records` become lists of batches with their records (`wire.protocol.record_json`), with what
keys and values mean beside them::

    {"value": {"base64": …}, "value_decoded": {"customer": "ann"}, "value_by": "JSON, schema 17"}
    {"value": {"base64": …}, "value_undecoded": "schema 18 is not in the recording"}

What consumers embed in JoinGroup and SyncGroup is decoded. A body that is opaque is
`{"frame": base64, "undecoded": why}`: all of it, size prefix included.

Invariant: an exchange never stands in memory as a whole with its records: compressed records may
become a thousand times what they are in the file. One batch at a time is decompressed, and all
batches of an exchange share one allowance.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from kproxy.exchange import embedded
from kproxy.exchange.entries import SASL_TOKEN
from kproxy.exchange.exchange import Exchange
from kproxy.wire.payloads.decoding import Headers, decode
from kproxy.wire.payloads.meaning import Decoded, Undecoded
from kproxy.wire.payloads.plain import json_text
from kproxy.wire.payloads.schemas import Schemas
from kproxy.wire.protocol import schema
from kproxy.wire.protocol.compression import Allowance
from kproxy.wire.protocol.plain import RECORDS, base64_text, dumps, filled, plain_of
from kproxy.wire.protocol.record_json import json_pieces

Content = tuple[bool, bytes]
"""Whether a request has it, and the content of a field of type `records`."""
PARTS = ("key", "value")
DECODED_KEYS = tuple(f"{part}_{what}" for part in PARTS for what in ("decoded", "by", "undecoded"))
"""For each part its decoded value, by what it was decoded, and why it was not."""


class AnyRecord(Protocol):
    """A record, wherever it comes from."""

    @property
    def key(self) -> bytes | None:
        """Its key."""
        ...

    @property
    def value(self) -> bytes | None:
        """Its value."""
        ...

    @property
    def headers(self) -> Headers:
        """Its headers."""
        ...


def body_text(exchange: Exchange, direction: str) -> str | None:
    """Return the body of a request or a response as JSON; None if there is none."""
    contents: list[Content] = []
    plain = body_plain(exchange, direction, contents)
    with exchange.topic_names.unpacking.of(exchange) as allowance:
        return None if plain is None else "".join(pieces(exchange, plain, contents, allowance))


def body_plain(exchange: Exchange, direction: str, contents: list[Content]) -> Any:
    """Return an exchange's "request" or "response" as plain values, with `RECORDS` for each content
    of a field of type `records`, which is added to `contents`; None if there is none."""
    asks = direction == schema.REQUEST
    frame = exchange.request_frame if asks else exchange.response_frame
    body = exchange.request if asks else exchange.response
    if body is None:
        if frame is None or exchange.api == SASL_TOKEN:
            return None
        why = exchange.undecoded(direction)
        return {"frame": base64_text(frame)} | ({"undecoded": why} if why else {})

    def keep(content: bytes) -> str:
        contents.append((asks, content))
        return RECORDS

    version = exchange.row.api_version if asks else exchange.response_version
    plain = plain_of(body, version)(body, keep)
    if type(body).__name__ in embedded.MESSAGES:
        embedded.to_json(body, plain)
    return plain


def pieces(
    exchange: Exchange, plain: Any, contents: list[Content], allowance: Allowance
) -> Iterator[str]:
    """Yield the JSON of plain values with these contents, whose records are decompressed as the
    allowance is then, batch by batch."""
    carried, schemas = exchange.facts.records if contents else (), exchange.topic_names.schemas
    # Of each content that is not empty: then it has no topic.
    topics = {
        asks: iter([each.topic for each in carried if each.produced is asks])
        for asks in (True, False)
    }

    def batches(of: Content) -> Iterable[str]:
        asks, content = of
        if not content:
            return ("[]",)
        topic = next(topics[asks])
        return json_pieces(
            content, allowance, lambda record: members(decoded(topic, record, schemas))
        )

    return filled(dumps(plain), contents, batches)


def decoded(topic: str, record: AnyRecord, schemas: Schemas) -> dict[str, Any]:
    """Return the keys that a record has of what it means, with their values: none where no schema
    is named."""
    found: dict[str, Any] = {}
    for part in PARTS:
        match decode(part, topic, record.key, record.value, record.headers, schemas):
            case Decoded(value, by):
                found |= {f"{part}_decoded": value, f"{part}_by": by}
            case Undecoded(why):
                found[f"{part}_undecoded"] = why
            case None:
                pass
    return found


def members(found: dict[str, Any]) -> str:
    """Return keys and values as the further members of a JSON object: `, "key": value`."""
    return "".join([f', "{name}": {json_text(value)}' for name, value in found.items()])
