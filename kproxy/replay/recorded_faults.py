"""The faults in a recording, as fault rules that repeat them.

::

    Exchange …, notes ─▶ RecordedFaults ─▶ rules(): arguments of `proxy.faults.Rule`, in order
       what a rule did                        its action and phase
       an error code, a throttle time         error=…, throttle=…
       a delay by a rule                      latency=…
       a request without a response           disconnect=true, if the broker hung up

A fault is repeated at the same request of its kind: the third OffsetCommit of a group, the second
Produce to a partition, counted as the requests arrived. Only Fetches that found records are
counted: the number of empty ones is random.

Errors that the rebuilt state reports by itself (a rebalance, an offset out of range) are left out,
unless a rule had caused them. What cannot be repeated is in `left_out`.
"""

from __future__ import annotations

import uuid
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

from kproxy.exchange import endings
from kproxy.exchange.entries import CONNECTIONS, INJECTED, Note
from kproxy.exchange.exchange import Exchange
from kproxy.proxy.faults import RuleError, Rules, errors, items
from kproxy.proxy.faults.action import BEFORE, PhaseByApi
from kproxy.proxy.faults.actions import ACTIONS
from kproxy.wire.protocol import ProtocolError, codes, decode_response, error_name
from kproxy.wire.protocol.errors import CODES

RULES_MAX = 1000
_LATENCY_MS_MIN = 5
"""A shorter delay is not the effect of a latency rule."""
_LEFT_OUT = frozenset({"ApiVersions", "SaslHandshake", "SaslAuthenticate"})
"""APIs whose errors by the cluster are not repeated: they depend on versions and passwords."""
_NUMBER_BITS = 44
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
_UNKNOWN_TOPIC = (codes.UNKNOWN_TOPIC_OR_PARTITION, codes.UNKNOWN_TOPIC_ID)

Scope = tuple[tuple[str, Any], ...]
"""The requests that a rule matches: (key, value) pairs, with the keys of `items`."""
_KEYS = ("topic", "topic_id", "partition", "group", "transactional_id")


@attrs.frozen
class _RecordedFault:
    """A fault at one request."""

    api: str
    scope: Scope
    action: str
    value: Any
    position: int
    """The place of the request among all requests."""
    code: int = 0
    phase: str | None = None
    level: str | None = None


@attrs.frozen
class _Fired:
    """What a rule did to an exchange."""

    action: str
    phase: str
    words: Mapping[str, Any]
    """The words of the rule."""


@attrs.frozen
class _RecordedHit:
    """An exchange to which rules did something."""

    api: str
    served: bool
    scope: Scope
    codes: list[tuple[Scope, int]]
    """The error codes in the response that the client got."""
    codes_of_broker: list[tuple[Scope, int]]
    delay_ms: float


@attrs.define(eq=False)
class RecordedFaults:
    """Collects the faults of exchanges and notes, taken in any order; errors of the cluster only of
    the APIs in `served`."""

    served: frozenset[int]
    left_out: Counter[str] = attrs.field(factory=Counter, init=False)
    """What cannot be repeated, after `rules`, and how often it happened."""
    _recording: int = attrs.field(default=0, init=False)
    _seen: dict[tuple[str, Scope], array[int]] = attrs.field(factory=dict, init=False)
    """Positions of the requests, by API and scope."""
    _events: list[_RecordedFault] = attrs.field(factory=list, init=False)
    _words: dict[int | None, Mapping[str, Any]] = attrs.field(factory=dict, init=False)
    """The words of the rules of this recording, by fault id."""
    _fired: dict[int, list[_Fired]] = attrs.field(factory=dict, init=False)
    _hits: dict[int, _RecordedHit] = attrs.field(factory=dict, init=False)
    """Both by position."""
    _lost: dict[int, _RecordedFault | None] = attrs.field(factory=dict, init=False)
    """The first unanswered request of each connection; None: a rule had a part in it."""

    def add(self, exchange: Exchange) -> None:
        """Take the next exchange."""
        api, key, request = exchange.api, exchange.api_key, exchange.request
        shape = None if key is None else items.shape(key, exchange.api_version or 0)
        if api is None or key is None or request is None or shape is None:
            return
        if exchange.row.request_flags & INJECTED:
            return  # the second one of a duplicate, which no rule sees
        row, position = exchange.row, self._position(exchange.number)
        own = items.own_keys(shape, request)
        asked = [_scope(own), *(_scope(each.keys) for each in items.items(shape, request))]
        first = asked[1] if len(asked) > 1 else asked[0]
        # The broker responded, but a rule kept the response from the client.
        kept_back = bool(row.fault_ids and row.response_bytes and not row.response_sent_ns)
        lost = kept_back or (exchange.unanswered is not None and not exchange.one_way)
        if lost:
            fault = _RecordedFault(api, first, "disconnect", True, position)
            self._lost.setdefault(exchange.connection, None if row.fault_ids else fault)
        body = exchange.response if lost else _response(exchange)
        codes = [] if body is None else list(_codes(exchange, body, shape, own))
        if api == "Fetch":
            asked = [asked[0]] if any(counted for _, _, counted in codes) else []
        asked += [scope for scope, _, counted in codes if counted]
        for scope in dict.fromkeys(asked):
            self._seen.setdefault((api, scope), array("q")).append(position)
        seen = [] if lost else [(scope, code) for scope, code, _ in codes if code]
        if row.fault_ids:
            then = None if exchange.injected else exchange.response
            by_broker = [] if then is None else _codes(exchange, then, shape, own)
            by_broker = [(scope, code) for scope, code, _ in by_broker]
            times = 0.0 if lost else max(0, exchange.kept_ns) / 1e6
            self._hits[position] = _RecordedHit(
                api, key in self.served, first, seen, by_broker, times
            )
        else:
            for scope, code in seen:
                if code not in _OF_THE_STATE:
                    self._add_error(api, key in self.served, scope, code, position)
        throttle_ms = 0 if lost else getattr(body, "throttle_time_ms", 0)
        if throttle_ms > 0 and key in self.served:
            fault = _RecordedFault(api, _scope(own), "throttle", f"{throttle_ms}ms", position)
            self._events.append(fault)

    def note(self, note: Note) -> None:
        """Take a note: of rules, of what they did, of the end of a connection, which says which
        side lost its last request."""
        body, event = note.body, note.body.get("event")
        if event == "recording":
            self._recording += 1
            self._words.clear()
        elif event == "fault_rules":
            for each in body.get("rules") or ():
                self._words[each.get("fault_id")] = each.get("rule") or {}
        elif event == "fault" and (number := body.get("number")) is not None:
            words = self._words.get(body.get("fault_id"), {})
            fired = _Fired(str(body.get("action")), str(body.get("phase")), words)
            before = self._fired.setdefault(self._position(number), [])
            if all(each.action != fired.action for each in before):  # only delays add up
                before.append(fired)
        elif note.channel == CONNECTIONS and event == "closed":
            end = endings.connection_end(note)
            fault = self._lost.pop(end.connection, None)
            if fault and end.first and end.first.side == "broker":
                self._events.append(fault)

    def rules(self, names: Mapping[uuid.UUID, str], topics: Iterable[str]) -> Iterator[dict]:
        """Yield the rules as dicts; `names` are those of topic ids, `topics` all topic names."""
        known = set(topics)
        for positions in self._seen.values():
            positions[:] = array("q", sorted(positions))
        number = 0
        for event, ordinal, count in self._merged():
            scope = dict(event.scope)
            topic_id = scope.pop("topic_id", None)
            if topic_id is not None and "topic" not in scope:
                scope["topic"] = names.get(topic_id)
            if event.code in _UNKNOWN_TOPIC and scope.get("topic") not in known:
                continue  # it does not exist in the replay either
            if number == RULES_MAX or scope.get("topic", "") is None:
                self.left_out[f"{event.action} in {event.api}"] += count
                continue
            words = {"name": f"recorded-{number + 1}", "api": event.api, **scope}
            how = {"skip": ordinal - 1 or None, "times": count, "phase": event.phase}
            how |= {"level": event.level, event.action: event.value}
            words |= {name: value for name, value in how.items() if value is not None}
            try:
                Rules([words])
            except RuleError:  # another version of kproxy has written it
                self.left_out[f"{event.action} in {event.api}"] += count
                continue
            number += 1
            yield words

    def _merged(self) -> Iterator[tuple[_RecordedFault, int, int]]:
        """Yield the faults in the order of their requests, each with the ordinal of its request
        and the number of requests in a row that had it."""
        events = self._events + [
            event
            for position, fired in self._fired.items()
            for each in fired
            for event in self._of_rule(position, each)
        ]
        found: list[list[Any]] = []
        last: dict[tuple[str, Scope], list[Any]] = {}
        for event in sorted(events, key=lambda each: each.position):
            kind = event.api, event.scope
            ordinal = bisect_left(self._seen.get(kind, ()), event.position) + 1
            before = last.get(kind)
            if before is not None and before[1] + before[2] == ordinal:
                if attrs.evolve(before[0], position=0) == attrs.evolve(event, position=0):
                    before[2] += 1
                    continue
            last[kind] = [event, ordinal, 1]
            found.append(last[kind])
        return ((event, ordinal, count) for event, ordinal, count in found)

    def _of_rule(self, position: int, fired: _Fired) -> Iterator[_RecordedFault]:
        """Yield the faults that repeat what a rule did to an exchange."""
        hit, action = self._hits.get(position), ACTIONS.get(fired.action)
        if fired.action == "throttle" and hit is not None and hit.served:
            return  # the response has it
        if hit is None or action is None or fired.action not in fired.words:
            self.left_out[f"{fired.action} in {hit.api if hit else 'what cannot be read'}"] += 1
            return
        phase = None if isinstance(action.phases, PhaseByApi) else fired.phase
        if fired.action != "error":
            value = fired.words[fired.action]
            if fired.action == "latency" and hit.delay_ms >= _LATENCY_MS_MIN:
                value = f"{round(hit.delay_ms)}ms"  # that of the rule may be drawn by chance
            yield _RecordedFault(hit.api, hit.scope, fired.action, value, position, 0, phase)
            return
        if not hit.served and phase == BEFORE and hit.api not in _LEFT_OUT:
            return  # the recorded response has it
        if not hit.codes:
            self.left_out[f"{fired.action} in {hit.api}"] += 1
        for scope, code in hit.codes:
            level = fired.words.get("level")
            event = _RecordedFault(hit.api, scope, "error", error_name(code), position, code)
            if phase == BEFORE or (scope, code) not in hit.codes_of_broker:
                event = attrs.evolve(event, phase=phase, level=level)
            yield event

    def _position(self, number: int) -> int:
        return self._recording << _NUMBER_BITS | number

    def _add_error(self, api: str, served: bool, scope: Scope, code: int, position: int) -> None:
        """Add an error of the cluster. An API that the state does not serve has it in its recorded
        response."""
        if api in _LEFT_OUT:
            if error_name(code) != "UNSUPPORTED_VERSION":  # an old broker
                self.left_out[f"{error_name(code)} in {api}"] += 1
        elif served:
            fault = _RecordedFault(api, scope, "error", error_name(code), position, code)
            self._events.append(fault)


def _scope(keys: Mapping[str, Any]) -> Scope:
    named = [(key, keys[key]) for key in _KEYS if key in keys]
    if any(key == "topic" for key, _ in named):
        named = [(key, value) for key, value in named if key != "topic_id"]
    return tuple(named)


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
