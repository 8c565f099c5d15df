"""The bodies of exchanges as JSON text: what `kproxy show --json`, exports and tables have of them.

Bodies have the fields of their version of Kafka's definition, in snake_case; bytes are base64.
Fields of type `records` become lists of batches with their records; what cannot be read of them
stands in base64 beside the reason. Keys, values and headers of records are text where they are
UTF-8, else objects `{"base64": …}`, with what they mean beside them (`decoded_json`). What
consumers embed in JoinGroup and SyncGroup is decoded. A body that is opaque is
`{"frame": base64, "undecoded": why}`: all of it, size prefix included.

Invariant: an exchange never stands in memory as a whole with its records: compressed records may
become a thousand times what they are in the file. One batch at a time is decompressed, and all
batches of an exchange share one allowance.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator

from kproxy.exchange import decoded_json, embedded, facts
from kproxy.exchange.entries import SASL_TOKEN
from kproxy.exchange.exchange import Exchange
from kproxy.protocol import records, schema
from kproxy.protocol.compression import Allowance
from kproxy.protocol.json_text import base64_json, filled

_dumps = json.JSONEncoder(allow_nan=False).encode


def body_text(exchange: Exchange, direction: str) -> str | None:
    """Return the body of a request or a response as JSON; None if there is none."""
    with exchange.topic_names.unpacking.of(exchange) as allowance:
        text = "".join(body_pieces(exchange, direction, allowance))
    return None if text == "null" else text


def body_pieces(exchange: Exchange, direction: str, allowance: Allowance) -> Iterable[str]:
    """Return the JSON of an exchange's "request" or "response" in pieces, batch by batch, whose
    records are decompressed as the allowance is then."""
    row = exchange.row
    if direction == schema.REQUEST:
        frame = exchange.request_frame
        found = facts.request_json(frame, row.request_flags, exchange.request_kind)
    else:
        frame, known = exchange.response_frame, exchange.named
        kind = (row.api_key, row.api_version) if known else (None, None)
        found = facts.response_json(frame, row.response_flags, *kind)
    if found is not None:
        text, contents = found
        if contents:
            return _with_records(exchange, direction, text, contents, allowance)
        if not _embeds(row.api_key, direction):
            return (text,)
        return (_with_embedded(exchange, direction, text),)
    if frame is None or exchange.api == SASL_TOKEN:
        return ("null",)
    why = exchange.undecoded(direction)
    undecoded = f', "undecoded": {_dumps(why)}' if why else ""
    return (f'{{"frame": {base64_json(frame)}{undecoded}}}',)


def _with_records(
    exchange: Exchange, direction: str, text: str, contents: list[bytes], allowance: Allowance
) -> Iterator[str]:
    """Yield the JSON of a body with the batches of its `records` fields."""
    topics = _topics(exchange, direction)

    def batches(content: bytes) -> Iterable[str]:
        if not content:  # then it has no topic
            return ("[]",)
        beside = decoded_json.writer(next(topics), exchange.topic_names.schemas)
        return records.json_pieces(content, allowance, beside)

    return filled(text, contents, batches)


@functools.cache
def _embeds(api_key: int, direction: str) -> bool:
    """Return whether consumers embed bytes of their own in the bodies of an API."""
    message = schema.message(api_key, direction)
    return message is not None and message.name in embedded.MESSAGES


def _with_embedded(exchange: Exchange, direction: str, text: str) -> str:
    """Return the JSON of a body with what consumers embed in it decoded."""
    plain = json.loads(text)
    body = exchange.request if direction == schema.REQUEST else exchange.response
    embedded.to_json(body, plain)
    return _dumps(plain)


def _topics(exchange: Exchange, direction: str) -> Iterator[str]:
    """Return the topic of each field of type `records` in a body that is not empty."""
    produced = direction == schema.REQUEST
    return (each.topic for each in exchange.facts.records if each.produced is produced)
