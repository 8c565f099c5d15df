"""What an exchange says, in a few words: one entry of a table per API.

An entry is a pair of functions, one for the request and one for the response; both get the decoded
body and the topic names known so far::

    "Produce": (_produce, _produced)      orders[0] 3 records, 812 B, acks=all  →  offset 41
                └ asked ┘ └ answered ┘    └────────────── asked ────────────┘     └ answered┘

The entries stand beside their functions in `words_data`, `words_groups` and `words_cluster`. APIs
without one get `generic`'s: the fields that are set, in the definition's order. Error codes,
throttling and opaque bodies are the same for all APIs and not the table's business.
"""

from __future__ import annotations

import attrs

from kproxy.exchange.exchange import SASL_TOKEN, Exchange
from kproxy.units import format_bytes
from kproxy.view import generic, words_cluster, words_data, words_groups
from kproxy.view.wording import Names, Words

_WORDS: Words = {**words_data.WORDS, **words_groups.WORDS, **words_cluster.WORDS}

_TELLS_NAMES = frozenset({"Metadata", "CreateTopics", "DescribeTopicPartitions"})
_EMPTY = frozenset({"Fetch", "ShareFetch"})
_HEARTBEATS = frozenset({"Heartbeat", "ConsumerGroupHeartbeat", "ShareGroupHeartbeat"})


@attrs.frozen
class Summary:
    """An exchange in words."""

    asked: str
    answered: str
    """Empty if there is nothing to say beyond success."""
    noise: str | None = None
    """Of the many that only say that nothing happened, how to count them: `empty`, ``."""


def summarise(exchange: Exchange, names: Names) -> Summary:
    """Put an exchange in words, and learn the topic names that it tells."""
    request, response = exchange.request, exchange.response
    api, api_key = exchange.api, exchange.api_key
    if api == SASL_TOKEN:
        return Summary(_token(exchange.request_bytes), _token(exchange.response_bytes))
    learn(exchange, names)
    ask, answer = _WORDS.get(api or "", (None, None))
    asked = answered = ""
    if request is not None:
        asked = ask(request, names) if ask else generic.asked(request, api_key)
    if response is not None:
        answered = answer(response, names) if answer else generic.answered(response, api_key)
        if answered == asked:
            # What was asked for, named again, only says yes.
            answered = ""
    return Summary(asked, answered, _noise(exchange, answered))


def learn(exchange: Exchange, names: Names) -> None:
    """Learn the topic names that an exchange tells."""
    if exchange.api in _TELLS_NAMES and exchange.response is not None:
        names.learn(exchange.response.topics or ())


def _noise(exchange: Exchange, answered: str) -> str | None:
    if exchange.response is None or exchange.errors:
        return None
    if exchange.api in _EMPTY and answered == "empty":
        return answered
    return "" if exchange.api in _HEARTBEATS and not answered else None


def _token(frame_bytes: int | None) -> str:
    return "" if frame_bytes is None else f"token {format_bytes(max(0, frame_bytes - 4))}"
