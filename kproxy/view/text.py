"""An exchange as text, in a few words: one entry of a table per API.

An entry is a pair of functions, one for the request and one for the response; both get the decoded
body and the topic names known so far::

    "Produce": (_produce_request, _produce_response)

    orders[0] 3 records, 812 B, acks=all  →  offset 41
    └───────────── request ────────────┘     └ response

The entries stand beside their functions in `words_data`, `words_groups` and `words_cluster`. APIs
without one get `generic`'s: the fields that are set, in the definition's order. Error codes,
throttling and opaque bodies are the same for all APIs and not the table's business.
"""

from __future__ import annotations

import attrs

from kproxy.exchange.entries import SASL_TOKEN
from kproxy.exchange.exchange import Exchange
from kproxy.units import format_bytes
from kproxy.view import generic, words_cluster, words_data, words_groups
from kproxy.view.wording import Names, Words

_WORDS: Words = {**words_data.WORDS, **words_groups.WORDS, **words_cluster.WORDS}

_EMPTY = frozenset({"Fetch", "ShareFetch"})
_HEARTBEATS = frozenset({"Heartbeat", "ConsumerGroupHeartbeat", "ShareGroupHeartbeat"})


@attrs.frozen
class ExchangeText:
    """An exchange in words."""

    request: str
    response: str
    """Empty if the response reports success and nothing else."""
    noise: str | None = None
    """None: something happened. Otherwise the word for it where many like it are counted: `empty`
    for a Fetch, no word for a heartbeat."""


def text_of(exchange: Exchange, names: Names) -> ExchangeText:
    """Put an exchange in words."""
    request, response = exchange.request, exchange.response
    api, api_key = exchange.api, exchange.api_key
    if api == SASL_TOKEN:
        return ExchangeText(_token(exchange.request_bytes), _token(exchange.response_bytes))
    learn(exchange, names)
    of_request, of_response = _WORDS.get(api or "", (None, None))
    request_text = response_text = ""
    if request is not None:
        request_text = (
            of_request(request, names) if of_request else generic.request(request, api_key)
        )
    if response is not None:
        response_text = (
            of_response(response, names) if of_response else generic.response(response, api_key)
        )
        if response_text == request_text:
            # A response that only repeats the request reports success.
            response_text = ""
    return ExchangeText(request_text, response_text, _noise(exchange, response_text))


def learn(exchange: Exchange, names: Names) -> None:
    """Take the topic names that are known where an exchange comes from."""
    names.known = exchange.topic_names


def _noise(exchange: Exchange, response_text: str) -> str | None:
    if exchange.response is None or exchange.errors:
        return None
    if exchange.api in _EMPTY and response_text == "empty":
        return response_text
    return "" if exchange.api in _HEARTBEATS and not response_text else None


def _token(frame_bytes: int | None) -> str:
    return "" if frame_bytes is None else f"token {format_bytes(max(0, frame_bytes - 4))}"
