"""What no state models is answered as it was recorded, to requests that mean the same.

::

    request ─▶ its meaning ─▶ the recorded exchanges of that meaning, in order ─▶ their responses,
                                                                                  the last for ever

The meaning of a request is its body without what changes from run to run or from client to client
(timeouts, what to include, order), and without its version: the response is encoded in the version
that is asked for. There is no nearest one: a request that was not recorded is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import attrs

from kproxy.exchange.entries import Side
from kproxy.protocol import ProtocolError, api_name, decode_request
from kproxy.proxy import redact
from kproxy.replay.call import Call
from kproxy.replay.loaded import Other
from kproxy.replay.report import Report

ADVICE = "record a run that does this"
_VOLATILE = frozenset(
    {
        "timeout_ms",
        "timeout_in_ms",
        "include_synonyms",
        "include_documentation",
        "include_authorized_operations",
        "include_topic_authorized_operations",
        "include_cluster_authorized_operations",
        "allow_auto_topic_creation",
        "unknown_tags",
    }
)
"""Fields that mean nothing in any request."""
_VOLATILE_IN: dict[str, frozenset[str]] = {
    "FindCoordinatorRequest": frozenset({"key", "coordinator_keys"}),
    "JoinGroupRequest": frozenset(
        {"member_id", "reason", "protocols", "session_timeout_ms", "rebalance_timeout_ms"}
    ),
    "SyncGroupRequest": frozenset(
        {"member_id", "generation_id", "assignments", "protocol_type", "protocol_name"}
    ),
    "HeartbeatRequest": frozenset({"member_id", "generation_id"}),
    "LeaveGroupRequest": frozenset({"member_id", "members"}),
    "ConsumerGroupHeartbeatRequest": frozenset(
        {"member_id", "member_epoch", "rebalance_timeout_ms", "topic_partitions"}
    ),
    "OffsetFetchRequestGroup": frozenset({"member_id", "member_epoch"}),
    "OffsetCommitRequest": frozenset(
        {"member_id", "generation_id_or_member_epoch", "retention_time_ms"}
    ),
    "OffsetCommitRequestPartition": frozenset({"committed_leader_epoch", "committed_metadata"}),
    "TxnOffsetCommitRequest": frozenset(
        {"member_id", "generation_id_or_member_epoch", "producer_id", "producer_epoch"}
    ),
    "InitProducerIdRequest": frozenset({"transaction_timeout_ms", "producer_id", "producer_epoch"}),
    "AddPartitionsToTxnRequest": frozenset(
        {"v3_and_below_producer_id", "v3_and_below_producer_epoch"}
    ),
    "AddOffsetsToTxnRequest": frozenset({"producer_id", "producer_epoch"}),
    "EndTxnRequest": frozenset({"producer_id", "producer_epoch"}),
}
"""Fields that mean nothing in one struct."""


@attrs.define(eq=False)
class Semantic:
    """The exchanges that are answered so, by API; read when the API is first asked for."""

    exchanges: dict[int, list[Other]]
    report: Report
    _by_meaning: dict[int, dict[Any, list[Any]]] = attrs.field(factory=dict, init=False)

    def respond(self, call: Call) -> Any | None:
        """The body of the next response to requests that mean the same; None if there is none,
        and the report says so."""
        body = self.recorded(call)
        if body is None:
            name = api_name(call.api_key) or f"API {call.api_key}"
            why = "with another meaning" if self.exchanges.get(call.api_key) else "not at all"
            what = f"{name} v{call.version} cannot be answered: it was recorded {why}"
            self.report.add("not served", what, ADVICE)
        return body

    def recorded(self, call: Call) -> Any | None:
        """The same, and nothing is said of it."""
        bodies = self._of(call.api_key).get(meaning(_without_secrets(call)))
        if not bodies:
            return None
        return bodies.pop(0) if len(bodies) > 1 else bodies[0]

    def _of(self, api_key: int) -> dict[Any, list[Any]]:
        found = self._by_meaning.get(api_key)
        if found is None:
            found = self._by_meaning[api_key] = {}
            for exchange in self.exchanges.get(api_key, ()):
                with contextlib.suppress(ProtocolError):  # what is malformed is no answer
                    found.setdefault(meaning(exchange.request), []).append(exchange.response)
        return found


def _without_secrets(call: Call) -> Any:
    """The request as it would have been recorded."""
    if redact.is_sensitive(call.api_key):
        frame = redact.redact(call.frame, Side.CLIENT, call.api_key, call.version)
        if frame is not None:
            return decode_request(frame).body
    return call.body


def meaning(value: Any) -> Any:
    """A message, or a part of one, as a value that compares by what it means."""
    if isinstance(value, list | tuple):
        return tuple(sorted((meaning(each) for each in value), key=repr))
    if _is_blank(value):
        return "a secret"
    names: Iterable[str] | None = getattr(type(value), "__slots__", None)
    if names is None or not hasattr(type(value), "__field_defaults__"):
        return value
    ignored = _VOLATILE_IN.get(type(value).__name__, frozenset())
    found: list[Any] = [
        (name, meaning(getattr(value, name)))
        for name in names
        if name not in _VOLATILE and name not in ignored
    ]
    if type(value).__name__ == "FindCoordinatorRequest":
        found.append(tuple(sorted(value.coordinator_keys or [value.key])))
    return tuple(found)


def _is_blank(value: Any) -> bool:
    """Whether a secret was blanked out here: of whatever length, for salts have any."""
    if not value or not isinstance(value, bytes | str):
        return False
    return set(value) in ({"*"}, {ord("*")}, {0})
