"""The faults in a recording, as fault rules that repeat them.

::

    Exchange …, notes ─▶ RecordedFaults ─▶ rules(): arguments of `proxy.faults.Rule`, in order
       an error code, a throttle time         error=…, throttle=…
       a request without a response           disconnect=true; drop=true if its client gave up
       a delay by a rule                      latency=…

A fault is repeated at the same request of its kind: the third OffsetCommit of a group, the second
Produce to a partition. Only Fetches that found records are counted: the number of empty ones is
random. The broker does not see a request that was refused or lost.

Errors that the rebuilt state reports by itself (a rebalance, an offset out of range) are left out,
unless a rule had caused them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

from kproxy.exchange import endings
from kproxy.exchange.entries import CONNECTIONS, Note
from kproxy.exchange.exchange import Exchange
from kproxy.protocol import ProtocolError, decode_response, error_name
from kproxy.protocol.errors import CODES
from kproxy.proxy.faults import errors, items

RULES_MAX = 1000
_LATENCY_MS_MIN = 5
"""A shorter delay is not the effect of a latency rule."""
_LEFT_OUT = frozenset({"ApiVersions", "SaslHandshake", "SaslAuthenticate"})
_OF_THE_STATE = frozenset(
    CODES[name]
    for name in (
        "DUPLICATE_SEQUENCE_NUMBER",
        "FENCED_INSTANCE_ID",
        "FENCED_MEMBER_EPOCH",
        "FETCH_SESSION_ID_NOT_FOUND",
        "FETCH_SESSION_TOPIC_ID_ERROR",
        "GROUP_ID_NOT_FOUND",
        "ILLEGAL_GENERATION",
        "INVALID_FETCH_SESSION_EPOCH",
        "INVALID_PRODUCER_EPOCH",
        "INVALID_PRODUCER_ID_MAPPING",
        "INVALID_TXN_STATE",
        "MEMBER_ID_REQUIRED",
        "OFFSET_OUT_OF_RANGE",
        "PRODUCER_FENCED",
        "REBALANCE_IN_PROGRESS",
        "STALE_MEMBER_EPOCH",
        "TOPIC_ALREADY_EXISTS",
        "UNKNOWN_MEMBER_ID",
        "UNRELEASED_INSTANCE_ID",
        "UNSTABLE_OFFSET_COMMIT",
    )
    if name in CODES
)
"""Errors that the state reports by itself."""
_UNKNOWN_TOPIC = frozenset(
    (CODES["UNKNOWN_TOPIC_OR_PARTITION"], CODES["UNKNOWN_TOPIC_ID"]),
)

Scope = tuple[tuple[str, Any], ...]
"""The requests that a rule matches: (key, value) pairs, with the keys of `items`."""
_KEYS = ("topic", "topic_id", "partition", "group", "transactional_id")


@attrs.define(eq=False)
class _RecordedFault:
    """The same fault at successive requests of a kind."""

    api: str
    scope: Scope
    action: str
    value: Any
    ordinal: int
    """Number of the first of these requests, from 1 on."""
    count: int = 1
    code: int = 0
    phase: str | None = None


@attrs.define(eq=False)
class _LostRequest:
    """A request that was never answered."""

    api: str
    scopes: list[tuple[Scope, int]]
    by_rule: bool
    phase: str | None


@attrs.define(eq=False)
class RecordedFaults:
    """Collects the faults of exchanges and notes, taken in order; only APIs in `served`."""

    served: frozenset[int]
    _seen: dict[tuple[str, Scope], int] = attrs.field(factory=dict, init=False)
    """Number of requests so far, by API and scope."""
    _events: list[_RecordedFault] = attrs.field(factory=list, init=False)
    _last: dict[tuple[str, Scope], _RecordedFault] = attrs.field(factory=dict, init=False)
    _lost: dict[int, _LostRequest] = attrs.field(factory=dict, init=False)
    """The first unanswered request of each connection."""

    def add(self, exchange: Exchange) -> None:
        """Take the next exchange."""
        api, key = exchange.api, exchange.api_key
        if api is None or key is None or key not in self.served or api in _LEFT_OUT:
            return
        if exchange.request is None:
            return
        shape = items.shape(key, exchange.api_version or 0)
        if shape is None:
            return
        own = items.own_keys(shape, exchange.request)
        row, by_rule = exchange.row, bool(exchange.faults)
        # The broker responded, but a rule kept the response from the client.
        kept_back = by_rule and bool(row.response_bytes) and not row.response_sent_ns
        if kept_back or (exchange.unanswered is not None and not exchange.one_way):
            scopes = self._count(api, _requested(shape, exchange.request, own))
            lost = _LostRequest(api, scopes, by_rule, "after" if kept_back else None)
            self._lost.setdefault(exchange.connection, lost)
            return
        body = _response(exchange)
        found = [] if body is None else list(_codes(exchange, body, shape, own))
        if not found:
            return
        scopes = [scope for scope, _, counted in found if counted]
        ordinals = dict(self._count(api, dict.fromkeys(scopes)))
        before = len(self._events)
        for scope, code, _ in found:
            if code and (code not in _OF_THE_STATE or exchange.faults):
                self._add_fault(
                    _RecordedFault(api, scope, "error", error_name(code), ordinals[scope], 1, code)
                )
        self._note_time(exchange, api, _scope(own), ordinals, len(self._events) > before)

    def note(self, note: Note) -> None:
        """Take a note; the end of a connection says which side lost its last request."""
        if note.channel != CONNECTIONS or note.body.get("event") != "closed":
            return
        end = endings.connection_end(note)
        lost = self._lost.pop(end.connection, None)
        side = end.first.side if end.first else None
        if lost is None or not lost.scopes or not (side == "broker" or lost.by_rule):
            return
        action = "drop" if side == "client" else "disconnect"
        scope, ordinal = lost.scopes[-1]
        self._add_fault(_RecordedFault(lost.api, scope, action, True, ordinal, phase=lost.phase))

    def rules(self, names: Mapping[uuid.UUID, str], topics: Iterable[str]) -> Iterator[dict]:
        """Yield the rules as dicts; `names` are those of topic ids, `topics` all topic names."""
        known = set(topics)
        for number, event in enumerate(self._events[:RULES_MAX], 1):
            scope = dict(event.scope)
            topic_id = scope.pop("topic_id", None)
            if topic_id is not None and "topic" not in scope:
                scope["topic"] = names.get(topic_id)
                if scope["topic"] is None:
                    continue
            if event.code in _UNKNOWN_TOPIC and scope.get("topic") not in known:
                continue  # it does not exist in the replay either
            words = {"name": f"recorded-{number}", "api": event.api, **scope}
            if event.ordinal > 1:
                words["skip"] = event.ordinal - 1
            words["times"] = event.count
            if event.phase is not None:
                words["phase"] = event.phase
            yield {**words, event.action: event.value}

    def _note_time(
        self, exchange: Exchange, api: str, scope: Scope, ordinals: dict[Scope, int], failed: bool
    ) -> None:
        """Note a throttle time, or a delay by a rule."""
        ordinal = ordinals[scope]
        throttled = getattr(exchange.response, "throttle_time_ms", 0)
        if throttled > 0:
            self._add_fault(_RecordedFault(api, scope, "throttle", f"{throttled}ms", ordinal))
        delay_ms = exchange.proxy_ms or 0
        if exchange.faults and not failed and not throttled and delay_ms >= _LATENCY_MS_MIN:
            self._add_fault(_RecordedFault(api, scope, "latency", f"{round(delay_ms)}ms", ordinal))

    def _count(self, api: str, scopes: Iterable[Scope]) -> list[tuple[Scope, int]]:
        found = []
        for scope in scopes:
            self._seen[api, scope] = self._seen.get((api, scope), 0) + 1
            found.append((scope, self._seen[api, scope]))
        return found

    def _add_fault(self, event: _RecordedFault) -> None:
        """Add a fault; one that continues the last fault of its kind is merged into that."""
        last = self._last.get((event.api, event.scope))
        if last is not None and last.ordinal + last.count == event.ordinal:
            now = event.action, event.value, event.phase
            if (last.action, last.value, last.phase) == now:
                last.count += 1
                return
        self._last[event.api, event.scope] = event
        self._events.append(event)


def _scope(keys: Mapping[str, Any]) -> Scope:
    named = [(key, keys[key]) for key in _KEYS if key in keys]
    if any(key == "topic" for key, _ in named):
        named = [(key, value) for key, value in named if key != "topic_id"]
    return tuple(named)


def _requested(shape: items.Shape, body: Any, own: items.Keys) -> dict[Scope, None]:
    """Return the scopes of a request: the whole request, and its first item."""
    found = {_scope(own): None}
    for item in items.items(shape, body)[:1]:
        found[_scope(item.keys)] = None
    return found


def _response(exchange: Exchange) -> Any | None:
    """Return the response's body as the client got it: a rule may have changed the broker's."""
    sent = exchange.response_sent if exchange.faults else None
    if sent is None or sent == exchange.response_frame:
        return exchange.response
    try:
        return decode_response(sent, exchange.api_key or 0, exchange.api_version or 0).body
    except ProtocolError:
        return exchange.response


def _codes(
    exchange: Exchange, body: Any, shape: items.Shape, own: items.Keys
) -> Iterator[tuple[Scope, int, bool]]:
    """Yield scope and error code of each part of a response, and whether to count it."""
    places = errors.places(exchange.api_key or 0, exchange.api_version or 0)
    if places is None:
        return
    whole = _scope(own)
    top = places.codes[0]
    yield whole, getattr(body, top) if top else 0, True
    for depth, code in enumerate(places.codes[1:], 1):
        for keys, element in items.leaves(body, shape.response[:depth], own):
            error = getattr(element, code) if code else 0
            counted = shape.name != "Fetch" or bool(error or getattr(element, "records", True))
            if (scope := _scope(keys)) != whole:
                yield scope, error, counted
            elif error:
                yield whole, error, False
