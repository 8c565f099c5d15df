"""Recorded responses to requests of the same meaning, for APIs that the state does not model.

::

    request ─▶ its meaning ─▶ the recorded exchanges of that meaning, in order ─▶ their responses;
                                                                                  the last repeats

The meaning of a request is its body without the fields that vary (`varying`), without the order of
its arrays and its version: the response is encoded in the requested version. There is no closest
match: a request that was not recorded is refused.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

import attrs

from kproxy.exchange import varying
from kproxy.exchange.entries import Side
from kproxy.exchange.varying import Why
from kproxy.proxy import redact
from kproxy.replay.call import Call
from kproxy.replay.loaded import Other
from kproxy.replay.report import Report
from kproxy.wire.protocol import ProtocolError, api_name, decode_request

ADVICE = "record a run that does this"
_COMPARED = Why.ID, Why.CLUSTER, Why.OFFSET, Why.SIZE
"""Requests that differ in these are not answered alike. (Of what else varies, some is compared
elsewhere, and the rest no answer here depends on.)"""


@attrs.define(eq=False)
class Semantic:
    """Recorded exchanges by API; they are decoded at the first request of the API."""

    exchanges: dict[int, list[Other]]
    report: Report
    _by_meaning: dict[int, dict[Any, list[Other]]] = attrs.field(factory=dict, init=False)
    _elements_max: dict[int, int] = attrs.field(factory=dict, init=False)
    """By API, so many elements has the longest array of the recorded requests."""

    def respond(self, call: Call) -> Any | None:
        """Return the body of the next response to requests of this meaning; report a request that
        has none, and return None."""
        body = self.recorded(call)
        if body is None:
            name = api_name(call.api_key) or f"API {call.api_key}"
            why = "with another meaning" if self.exchanges.get(call.api_key) else "not at all"
            what = f"{name} v{call.version} cannot be answered: it was recorded {why}"
            self.report.add("not served", what, ADVICE)
        return body

    def recorded(self, call: Call) -> Any | None:
        """Return the same as `respond`, but without a report."""
        known = self._of(call.api_key)
        if _elements(call.body) > self._elements_max[call.api_key]:
            return None  # to find out what a million elements mean takes long
        recorded = known.get(meaning(_without_secrets(call)))
        if not recorded:
            return None
        # Decoded for each request: whoever sends a body may take it apart.
        return (recorded.pop(0) if len(recorded) > 1 else recorded[0]).response

    def _of(self, api_key: int) -> dict[Any, list[Other]]:
        found = self._by_meaning.get(api_key)
        if found is None:
            found = self._by_meaning[api_key] = {}
            self._elements_max[api_key] = 1
            for exchange in self.exchanges.get(api_key, ()):
                with contextlib.suppress(ProtocolError):  # a malformed exchange is skipped
                    request, _ = exchange.request, exchange.response
                    found.setdefault(meaning(request), []).append(exchange)
                    elements_max = max(self._elements_max[api_key], _elements(request))
                    self._elements_max[api_key] = elements_max
        return found


def _elements(request: Any) -> int:
    """Return the number of elements of the longest array that is part of a request's meaning."""
    kind = type(request)
    names = set(kind.__slots__) - varying.left_out(kind.__name__, *_COMPARED)
    arrays = (getattr(request, name) for name in names)
    return max((len(each) for each in arrays if isinstance(each, list)), default=0)


def _without_secrets(call: Call) -> Any:
    """Return the request's body with its secrets blanked out, as in a recording."""
    if redact.is_sensitive(call.api_key):
        frame = redact.redact(bytes(call.frame), Side.CLIENT, call.api_key, call.version)
        if frame is not None:
            return decode_request(frame).body
    return call.body


def meaning(request: Any) -> str:
    """Return the meaning of a request's body as text."""
    found = varying.meaning(request, *_COMPARED)
    if type(request).__name__ == "FindCoordinatorRequest":
        found["keys"] = sorted(request.coordinator_keys or [request.key])
    return json.dumps(found)
