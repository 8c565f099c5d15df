"""Exchanges in words: what `kproxy show` writes, and an exchange's `text`.

::

    request, response ──bodies──▶ ExchangeText ──line──▶ segments ─▶ a terminal (view), plain text

`bodies` has a table with an entry per API, `data`, `groups` and `cluster` its functions, `generic`
what serves every other API, `wording` the vocabulary; `line` puts the fixed part in front.
"""

from kproxy.exchange.words.bodies import ExchangeText, text_of
from kproxy.exchange.words.wording import Context

__all__ = ["Context", "ExchangeText", "text_of"]
