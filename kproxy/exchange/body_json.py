"""The bodies of exchanges as JSON text: what `kproxy show --json`, exports and tables have of them.

Bodies have the fields of their version of Kafka's definition, in snake_case; bytes are base64.
Fields of type `records` become lists of batches with their records; where they cannot be read
they stay base64. Keys, values and headers of records are text where they are UTF-8, else objects
`{"base64": …}`, with what they mean beside them (`decoded_json`). What consumers embed in JoinGroup
and SyncGroup is decoded. A body that is opaque is `{"frame": base64}`: all of it, size prefix
included.

Invariant: an exchange never stands in memory as a whole with its records: compressed records may
become a thousand times what they are in the file. One batch at a time is decompressed, and all
batches of an exchange share one allowance.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any, cast

from kproxy import protocol
from kproxy.exchange import embedded, meanings
from kproxy.exchange.decoded_json import decoded_json, members
from kproxy.exchange.entities import TopicNames, topic_of
from kproxy.exchange.entries import SASL_TOKEN
from kproxy.exchange.exchange import Exchange
from kproxy.payloads.schemas import Schemas
from kproxy.protocol import ProtocolError, records, schema
from kproxy.protocol.compression import Allowance
from kproxy.protocol.record_batch import Record
from kproxy.protocol.select import select_of

_dumps = json.JSONEncoder(allow_nan=False).encode


def body_text(exchange: Exchange, direction: str) -> str | None:
    """Return the body of a request or a response as JSON; None if there is none."""
    text = "".join(body_pieces(exchange, direction, allowance(exchange)))
    return None if text == "null" else text


def allowance(exchange: Exchange) -> Allowance:
    """Return the limit for all batches of an exchange together when they are decompressed."""
    size = (exchange.request_bytes or 0) + (exchange.response_bytes or 0)
    return records.json_allowance(size)


def body_pieces(exchange: Exchange, direction: str, allowance: Allowance) -> Iterator[str]:
    """Yield the JSON of an exchange's "request" or "response", batch by batch."""
    if direction == schema.REQUEST:
        body, version = exchange.request, exchange.api_version
        frame = exchange.request_frame
    else:
        body, version = exchange.response, exchange.response_version
        frame = exchange.response_frame
    if body is not None and version is not None:
        if type(body).__name__ in embedded.MESSAGES:
            plain = protocol.to_json(body, version)
            embedded.to_json(body, plain)
            yield _dumps(plain)
            return
        topics = _topics(body, exchange.topic_names)
        for piece in protocol.json_pieces(body, version):
            if isinstance(piece, str):
                yield piece
            else:
                yield from _batches(piece, allowance, next(topics), exchange.topic_names.schemas)
    elif frame is None or exchange.api == SASL_TOKEN:
        yield "null"
    else:
        yield f'{{"frame": {_base64(frame)}}}'


def _base64(data: bytes) -> str:
    return f'"{base64.b64encode(data).decode("ascii")}"'


def _topics(body: Any, names: TopicNames) -> Iterator[str]:
    """Yield the topic of each field of type `records` that a body has."""
    chosen = select_of(cast("type[Any]", type(body)), meanings.PREDICATES[meanings.RECORDS])
    for each in chosen.found(body) if chosen.places else ():
        yield topic_of(each.within, names)


def _batches(data: bytes, allowance: Allowance, topic: str, schemas: Schemas) -> Iterator[str]:
    try:
        batches = records.batches(data)
    except ProtocolError:
        yield _base64(data)
        return

    def decoded(record: Record) -> str:
        return members(decoded_json(topic, record, schemas))

    yield from records.json_pieces(batches, allowance, decoded)
