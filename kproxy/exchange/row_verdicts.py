"""Verdicts of a filter on the rows of a table of exchanges, and the columns that it looks at.

A verdict on a row is one byte: NO and YES are certain, MAYBE says that the exchange must be opened.
Their values make `and` of two columns of verdicts one `&` of two large numbers.

This is what readers and filters have in common: who reads without a filter starts without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

NO, MAYBE, YES = 0, 1, 3
"""Verdicts of a row: `&` is and, `|` is or."""


class Columns(Protocol):
    """Columns of a table of exchanges, all of one length, by these names:

    * `number`, `connection`: integers; `node_id`: −1 on a bootstrap address;
    * `client_address`: texts, or None; `client_id`: texts, None, or UNKNOWN_TEXT;
    * `api_key`, `api_version`: −1 where there is none; `correlation_id`: anything there;
    * `time_ns`: when the request arrived, since 1970;
    * `request_bytes`: 0 where it is not known; `response_bytes`: 0 where there is no response;
    * `broker_us`, `queued_us`, `proxy_us`, `fault_us`: microseconds, negative where they are not
      known;
    * `flags`: those of both frames together;
    * `got_no_response`, `undelivered`, `faulted`: truth values;
    * `times_ns`, `numbers`: the least and the greatest value that a row may have, where `time_ns`
      or `number` is missing.
    """

    def get(self, name: str, /) -> Sequence[Any] | None:
        """Return a column; None if it is missing: the verdicts are then MAYBE."""
        ...


UNKNOWN_TEXT = "\0unknown"
"""Stands in a column of texts where only the exchange itself has the value."""
