"""Actions that make Kafka report an error: error, rebootstrap.

Which responses are made by us and which are the broker's, changed::

    before   all that was asked fails         our response; the broker sees nothing
             parts of a write fail            they are cut out of the request; their errors are
                                              added to the broker's response
             parts of a read fail             the broker's response, changed
    after    the broker has done it all       its response, changed
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from kproxy.protocol import codec, error_name, schema
from kproxy.protocol.codec import Request
from kproxy.protocol.errors import CODES, ERRORS
from kproxy.proxy.faults import errors, legal
from kproxy.proxy.faults.action import BEFORE, Hit, Plan
from kproxy.proxy.faults.apis import meant
from kproxy.proxy.faults.errors import Failure
from kproxy.proxy.faults.items import Item, Keys, without
from kproxy.proxy.faults.match import Match
from kproxy.proxy.verdicts import Ending, Verdict

REBOOTSTRAP_REQUIRED = CODES["REBOOTSTRAP_REQUIRED"]
FETCH = 1
FETCHES = (FETCH, 78)
"""Fetch and ShareFetch: a response says nothing of a partition that has nothing new."""

_BROKER_NEEDED = frozenset(("Metadata", "DescribeLogDirs"))
"""APIs whose response says what only the broker knows even where every item of it fails."""


def error(hit: Hit) -> Plan | None:
    """Kafka reports this error, by name or by number: NOT_LEADER_OR_FOLLOWER, 6.

    Only for what the rule means: of a Produce to two topics one may fail and the other be written.
    The level (request, topic, partition) is by default the one at which Kafka sends that error.
    Phase before (the default): the broker never sees what fails. Phase after: it does all that was
    asked, and the client is told otherwise. Where no response is expected (acks=0) the connection
    is closed, as brokers do. An error before a write of an idempotent producer leaves the broker
    without sequence numbers that the client has used.
    """
    return failed(hit, hit.value, hit.level)


def rebootstrap(hit: Hit) -> Plan | None:
    """The client shall begin anew from its bootstrap addresses (REBOOTSTRAP_REQUIRED, KIP-1102).

    In responses to Metadata, from version 13 on, and to ApiVersions, from version 5 on.
    """
    return failed(hit, REBOOTSTRAP_REQUIRED, errors.REQUEST)


def failed(hit: Hit, code: int, level: str | None) -> Plan | None:
    """Plan an error, at a level, for what a rule means of a request."""
    view = hit.view
    if view.no_response:
        whole = len(view.frame)
        sent = 0 if hit.phase == BEFORE else whole
        return Plan(Verdict(ending=Ending.DISCONNECT, ending_bytes=sent))
    depth = errors.depth(view.api_key, view.api_version, level, hit.matcher.keys)
    if depth is None or view.request is None or view.shape is None:
        return None
    text = f"{error_name(code)} made by kproxy, fault rule {hit.name!r}"
    failure = Failure(view.api_key, view.api_version, code, text, depth)
    if depth == 0:
        return _whole(hit, failure)
    return _parts(hit, failure) if hit.items else None  # nothing is asked that could fail


def _whole(hit: Hit, failure: Failure) -> Plan:
    """Respond in the broker's place, or replace its response."""
    view = hit.view
    assert view.request is not None
    ours = errors.answer(failure, view.request, view.own_items)
    if hit.phase == BEFORE:
        return Plan(Verdict(frames=(), response=Verdict(frames=(ours,))))
    return Plan(change=lambda frame: ours)


def _parts(hit: Hit, failure: Failure) -> Plan | None:
    """Have the items fail that the rule means."""
    view, items = hit.view, hit.items
    assert view.request is not None
    assert view.shape is not None
    closed = all(_is_placed(hit, failure, item) for item in items)
    if hit.phase == BEFORE:
        everything = closed and len(items) == len(view.items)
        needs_broker = view.shape.name in _BROKER_NEEDED or _in_session(view.request)
        if everything and not needs_broker:
            return _whole(hit, failure)
        if not view.shape.reads:
            return _cut(hit, failure, items) if closed else None
    verdict = Verdict()
    if hit.phase == BEFORE and view.api_key == FETCH:
        verdict = Verdict(frames=(_at_once(view.request),))
    complete = closed and view.api_key in FETCHES
    return Plan(verdict, _changed(hit, failure, items if complete else None))


def _is_placed(hit: Hit, failure: Failure, item: Item) -> bool:
    """Whether the request alone says that the rule means an item, and where its error belongs."""
    levels = failure.places.shape.response[: failure.depth]
    named = all(
        not level.keys or any(key in item.keys for key, _ in level.keys) for level in levels
    )
    sure = hit.matcher.match(item, hit.view.context.topic_names) is Match.YES
    return named and sure


def _in_session(request: Request) -> bool:
    """Whether a request continues a session: the broker has to see it, or it would lose count."""
    body = request.body
    if request.header.api_key == FETCH:
        return body.session_id != 0 and body.session_epoch > 0
    return getattr(body, "share_session_epoch", 0) > 0


def _at_once(request: Request) -> bytes:
    """A Fetch that the broker answers without waiting for data, as it does where a part fails."""
    body = copy.copy(request.body)
    body.max_wait_ms = 0
    return codec.encode_request(Request(request.header, body, request.trailing))


def _cut(hit: Hit, failure: Failure, items: list[Item]) -> Plan:
    """Take the items out of the request, and put their errors into the broker's response."""
    view = hit.view
    assert view.request is not None
    assert view.shape is not None
    kept = without(view.shape, view.request.body, _picker(failure, items))
    request = Request(view.request.header, kept, view.request.trailing)
    verdict = Verdict(frames=(codec.encode_request(request),))
    return Plan(verdict, _changed(hit, failure, items))


def _picker(failure: Failure, items: list[Item]) -> Callable[[Keys], bool]:
    """Whether an item shares its response element with one of these."""
    levels = failure.places.shape.response[: failure.depth]
    named = [key for level in levels for key, _ in level.keys]

    def element(keys: Keys) -> tuple[Any, ...]:
        return tuple(keys.get(key) for key in named)

    picked = {element(item.keys) for item in items}
    return lambda keys: element(keys) in picked


def _changed(hit: Hit, failure: Failure, items: list[Item] | None) -> Callable[[bytes], Any]:
    """Put the error into the broker's response: for these items, added where they are missing, or
    for whatever it says that the rule means."""
    view = hit.view

    def change(frame: bytes) -> bytes | None:
        response = view.decode_response(frame)
        if response is None or response.body_version != view.api_version:
            return None
        if errors.is_refusal(failure, response.body):
            return None
        if items:
            errors.fail_items(failure, response.body, items, failure.depth)
        elif not errors.fail_matching(failure, response.body, view.own, hit.means):
            return None
        return view.encode_response(response)

    return change


def parse_error(value: Any) -> int:
    """Read an error's name or number.

    Raises:
        ValueError: Kafka has no such error; the text says which is meant.
    """
    if isinstance(value, str) and value != "NONE" and value in CODES:
        return CODES[value]
    if isinstance(value, int) and not isinstance(value, bool) and value in ERRORS and value != 0:
        return value
    raise ValueError(f"{value!r} is no error of Kafka{meant(value, legal.suggestions())}")


def can_fail(api_key: int, api_version: int, level: str | None, keys: frozenset[str]) -> bool:
    """Whether the responses of a version can carry an error at that level."""
    return errors.depth(api_key, api_version, level, keys) is not None


def can_rebootstrap(api_key: int, api_version: int) -> bool:
    """Whether clients of that version know what REBOOTSTRAP_REQUIRED means."""
    known = {3: 13, codec.API_VERSIONS: 5}
    return api_version >= known.get(api_key, 1 << 15)


def no_place(api: str, code: int, level: str) -> str:
    """Say that the responses of an API cannot carry an error at a level."""
    return f"{api} has no place for {error_name(code)} at the level {level!r}"


def carriers(code: int) -> frozenset[int]:
    """The APIs in which Kafka sends an error: those of a rule that names none.

    Raises:
        ValueError: any may send it.
    """
    found = frozenset(key for key in legal.apis_with(code) if schema.message(key, schema.RESPONSE))
    if not found:
        raise ValueError(f"any API may report {error_name(code)}: say which")
    return found


def unusual(api_key: int, code: int) -> str | None:
    """Say that Kafka does not send an error in an API, if so."""
    if legal.is_usual(api_key, code):
        return None
    api, usual = schema.api_name(api_key), ", ".join(legal.usual_errors(api_key))
    return f"Kafka does not send {error_name(code)} in {api}; it sends {usual}"
