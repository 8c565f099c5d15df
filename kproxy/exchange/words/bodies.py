"""An exchange as text, in a few words: one entry of a table per API.

An entry is a pair of functions, one for the request and one for the response; both get the decoded
body and what is known around it::

    "Produce": (_produce_request, _produce_response)

    orders[0] 3 records, 812 B, acks=all  →  offset 41
    └───────────── request ────────────┘     └ response

The entries stand beside their functions in `data`, `groups` and `cluster`. APIs without one get
`generic`'s: the fields that are set, in the definition's order. Error codes, throttling and opaque
bodies are the same for all APIs and not the table's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kproxy.exchange.entries import SASL_TOKEN
from kproxy.exchange.words import cluster, data, generic, groups
from kproxy.exchange.words.wording import Context, Words
from kproxy.units import format_bytes

if TYPE_CHECKING:
    from kproxy.exchange.exchange import Exchange

_WORDS: Words = {**data.WORDS, **groups.WORDS, **cluster.WORDS}

_EMPTY = frozenset({"Fetch", "ShareFetch"})
_HEARTBEATS = frozenset({"Heartbeat", "ConsumerGroupHeartbeat", "ShareGroupHeartbeat"})


class ExchangeText(NamedTuple):
    """An exchange in words."""

    request: str
    response: str
    """The words for the response; empty if it reports success and nothing else."""
    noise: str | None = None
    """None if something happened. Otherwise the word for it where many like it are counted: `empty`
    for a Fetch, no word for a heartbeat."""


def text_of(exchange: Exchange) -> ExchangeText:
    """Put an exchange in words."""
    request, response = exchange.request, exchange.response
    api = exchange.api
    if api == SASL_TOKEN:
        return ExchangeText(_token(exchange.request_bytes), _token(exchange.response_bytes))
    context = Context(exchange.topic_names, request)
    of_request, of_response = _WORDS.get(api or "", (None, None))
    request_text = response_text = ""
    if request is not None:
        request_text = (
            of_request(request, context)
            if of_request
            else generic.request(request, exchange.api_key)
        )
    if response is not None:
        response_text = (
            of_response(response, context)
            if of_response
            else generic.response(response, exchange.api_key)
        )
        if response_text == request_text:
            # A response that only repeats the request reports success.
            response_text = ""
    return ExchangeText(request_text, response_text, _noise(exchange, response_text))


def _noise(exchange: Exchange, response_text: str) -> str | None:
    if response_text == "empty":
        quiet = exchange.api in _EMPTY
    else:
        quiet = not response_text and exchange.api in _HEARTBEATS and _is_idle(exchange.request)
    if not quiet or exchange.response is None or exchange.row.fault_ids:
        return None
    # `uneventful` is the cheaper answer, and mostly enough.
    return response_text if exchange.uneventful or not exchange.errors else None


def _is_idle(heartbeat: Any) -> bool:
    """Return whether a heartbeat only says that its member is alive: it does not join, leave or
    report what it owns."""
    if getattr(heartbeat, "member_epoch", 1) <= 0:
        return False
    news = ("subscribed_topic_names", "subscribed_topic_regex", "topic_partitions")
    return all(getattr(heartbeat, name, None) is None for name in news)


def _token(frame_bytes: int | None) -> str:
    return "" if frame_bytes is None else f"token {format_bytes(max(0, frame_bytes - 4))}"
