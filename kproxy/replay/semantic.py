"""Recorded responses to requests of the same meaning, for APIs that the state does not model.

::

    request ─▶ its meaning ─▶ the recorded exchanges of that meaning, in order ─▶ their responses;
                                                                                  the last repeats

The meaning of a request is its body without the fields that change from run to run or from client
to client (timeouts, options of the response, order), and without its version: the response is
encoded in the requested version. There is no closest match: a request that was not recorded is
refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import attrs

from kproxy.exchange.entries import Side
from kproxy.proxy import redact
from kproxy.replay.call import Call
from kproxy.replay.loaded import Other
from kproxy.replay.report import Report
from kproxy.wire.protocol import ProtocolError, api_name, decode_request

ADVICE = "record a run that does this"
_PATIENCE = "how long the client waits, or lets others wait"
_WANTED = "an option of the response, or a side effect: the recorded response is what it is"
_CHANCE = "made up in each run, by the client or by a coordinator"
_NEWER = "written by a client that is newer than this schema"
_NORMALIZED = "one coordinator's key or several: they are compared as sorted keys"
_MEMBER = "depends on who is in the group at the time"
_EXPLAINED = "for a person, or for the client itself when it comes back"

VOLATILE = {
    "timeout_ms": _PATIENCE,
    "session_timeout_ms": _PATIENCE,
    "rebalance_timeout_ms": _PATIENCE,
    "transaction_timeout_ms": _PATIENCE,
    "retention_time_ms": _PATIENCE,
    "include_synonyms": _WANTED,
    "include_documentation": _WANTED,
    "include_authorized_operations": _WANTED,
    "include_topic_authorized_operations": _WANTED,
    "include_cluster_authorized_operations": _WANTED,
    "allow_auto_topic_creation": _WANTED,
    "unknown_tags": _NEWER,
    "member_id": _CHANCE,
    "member_epoch": _CHANCE,
    "generation_id": _CHANCE,
    "generation_id_or_member_epoch": _CHANCE,
    "producer_id": _CHANCE,
    "producer_epoch": _CHANCE,
    "v3_and_below_producer_id": _CHANCE,
    "v3_and_below_producer_epoch": _CHANCE,
    "committed_leader_epoch": _CHANCE,
    "committed_metadata": _EXPLAINED,
}
"""Fields of any request that are not part of its meaning, and why."""
VOLATILE_IN = {
    ("FindCoordinatorRequest", "key"): _NORMALIZED,
    ("FindCoordinatorRequest", "coordinator_keys"): _NORMALIZED,
    ("JoinGroupRequest", "reason"): _EXPLAINED,
    ("JoinGroupRequest", "protocols"): _MEMBER,
    ("SyncGroupRequest", "protocol_type"): _MEMBER,
    ("SyncGroupRequest", "protocol_name"): _MEMBER,
    ("SyncGroupRequest", "assignments"): _MEMBER,
    ("LeaveGroupRequest", "members"): _MEMBER,
    ("ConsumerGroupHeartbeatRequest", "topic_partitions"): _MEMBER,
}
"""Fields of one struct that are not part of its meaning, and why."""


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


def _elements(value: Any) -> int:
    """Return the number of elements of the longest array that is part of a body's meaning."""
    names: Iterable[str] = getattr(type(value), "__slots__", ())
    kind = type(value).__name__
    arrays = (getattr(value, name) for name in names if (kind, name) not in VOLATILE_IN)
    return max((len(each) for each in arrays if isinstance(each, list)), default=0)


def _without_secrets(call: Call) -> Any:
    """Return the request's body with its secrets blanked out, as in a recording."""
    if redact.is_sensitive(call.api_key):
        frame = redact.redact(bytes(call.frame), Side.CLIENT, call.api_key, call.version)
        if frame is not None:
            return decode_request(frame).body
    return call.body


def meaning(value: Any) -> Any:
    """Return the meaning of a message, or of a part of one, as a value that can be compared."""
    if isinstance(value, list | tuple):
        return tuple(sorted((meaning(each) for each in value), key=repr))
    if _is_blank(value):
        return "a secret"
    names: Iterable[str] | None = getattr(type(value), "__slots__", None)
    if names is None or not hasattr(type(value), "__field_defaults__"):
        return value
    kind = type(value).__name__
    found: list[Any] = [
        (name, meaning(getattr(value, name)))
        for name in names
        if name not in VOLATILE and (kind, name) not in VOLATILE_IN
    ]
    if kind == "FindCoordinatorRequest":
        found.append(tuple(sorted(value.coordinator_keys or [value.key])))
    return tuple(found)


def _is_blank(value: Any) -> bool:
    """Return whether a value is a blanked secret: of any length, for salts vary in length."""
    if not value or not isinstance(value, bytes | str):
        return False
    return set(value) in ({"*"}, {ord("*")}, {0})
