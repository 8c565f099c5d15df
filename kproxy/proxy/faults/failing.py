"""Actions that make Kafka report an error: error, rebootstrap.

The response is our own or the broker's with changes::

    before   the whole request fails          our response; the broker sees nothing
             parts of a write fail            they are cut out of the request; their errors are
                                              added to the broker's response
             parts of a read fail             the broker's response, changed
    after    the broker has done its work     its response, changed

The errors that Kafka sends in each API, and their levels, are in `kafka_errors.txt`. The table only
advises: other errors can be injected all the same.
"""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable
from typing import Any

from kproxy.proxy.faults import errors
from kproxy.proxy.faults.action import BEFORE, Change, Hit, Plan
from kproxy.proxy.faults.apis import suggest
from kproxy.proxy.faults.errors import InjectedError
from kproxy.proxy.faults.items import Item, Keys, without
from kproxy.proxy.faults.match import Match
from kproxy.proxy.verdicts import Ending, Verdict
from kproxy.wire.protocol import codec, codes, error_code, error_name, schema
from kproxy.wire.protocol.codec import Request, Response
from kproxy.wire.protocol.errors import CODES, ERRORS

EVERYWHERE = frozenset(("UNKNOWN_SERVER_ERROR", "UNSUPPORTED_VERSION", "INVALID_REQUEST"))
"""Errors that every API may report."""


@functools.cache
def _table() -> dict[int, dict[int, str | None]]:
    """Return API key → error code → its level, None for the API's usual one."""
    path = os.path.join(os.path.dirname(__file__), "kafka_errors.txt")
    loader: Any = __spec__.loader
    text = loader.get_data(path).decode("utf-8")
    found: dict[int, dict[int, str | None]] = {}
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    for line in "\n".join(lines).replace("\n ", "").splitlines():
        head, _, names = line.partition(":")
        api, _, level = head.partition(" ")
        key = schema.api_key(api)
        assert key is not None, f"kafka_errors.txt: {api} is no API"
        codes = found.setdefault(key, {})
        codes.update((CODES[name], level or None) for name in names.split())
    return found


def is_usual(api_key: int, code: int) -> bool:
    """Return whether Kafka sends this error in the API; True for an unknown API."""
    known = _table().get(api_key)
    return known is None or code in known or error_name(code) in EVERYWHERE


def usual_level(api_key: int, code: int) -> str | None:
    """Return the level at which Kafka sends this error; None for the API's usual level."""
    return _table().get(api_key, {}).get(code)


def apis_with(code: int) -> frozenset[int]:
    """Return the keys of the APIs in which Kafka sends this error; none if all may send it."""
    return frozenset(key for key, codes in _table().items() if code in codes)


def usual_errors(api_key: int) -> list[str]:
    """Return the names of the errors that Kafka sends in an API, in the order of their codes."""
    return [error_name(code) for code in sorted(_table().get(api_key, {}))]


def suggestions() -> list[str]:
    """Return the names of all errors that can be injected."""
    return [name for name in CODES if error_code(name)]


REBOOTSTRAP_REQUIRED = codes.REBOOTSTRAP_REQUIRED
FETCH = 1
FETCHES = (FETCH, 78)
"""Fetch and ShareFetch: their responses leave out partitions without news."""

_BROKER_NEEDED = frozenset(("Metadata", "DescribeLogDirs"))
"""APIs whose response has facts that only the broker knows, even where every item fails."""


def error(hit: Hit) -> Plan | None:
    """Kafka reports this error, by name or by number: NOT_LEADER_OR_FOLLOWER, 6.

    Only for what the rule means: of a Produce to two topics one may fail and the other be written.
    The level (request, topic, partition) is by default the one at which Kafka sends that error.
    Phase before (the default): the broker never sees what fails. Phase after: it does all that was
    asked, and the client is told otherwise. Where no response is expected (acks=0) the connection
    is closed, as brokers do. An error before a write of an idempotent producer leaves the broker
    without sequence numbers that the client has used. Many clients ask again at once: without
    `times` they do so in a loop, and the table at the end says how often.
    """
    return plan_error(hit, hit.value, hit.level)


def rebootstrap(hit: Hit) -> Plan | None:
    """The client shall begin anew from its bootstrap addresses (REBOOTSTRAP_REQUIRED, KIP-1102).

    In responses to Metadata, from version 13 on, and to ApiVersions, from version 5 on.
    """
    return plan_error(hit, REBOOTSTRAP_REQUIRED, errors.REQUEST)


def plan_error(hit: Hit, code: int, level: str | None) -> Plan | None:
    """Plan an error, at a level, for the items of a request that a rule matches."""
    view = hit.view
    if view.no_response:
        whole = len(view.frame)
        sent = 0 if hit.phase == BEFORE else whole
        return Plan(Verdict(ending=Ending.DISCONNECT, ending_bytes=sent))
    depth = errors.depth(view.api_key, view.api_version, level, hit.matcher.keys)
    if depth is None or view.request is None or view.shape is None:
        return None
    text = f"{error_name(code)} made by kproxy, fault rule {hit.name!r}"
    failure = InjectedError(view.api_key, view.api_version, code, text, depth)
    if depth == 0:
        return _plan_all(hit, failure)
    return _plan_items(hit, failure) if hit.items else None  # no item could fail


def _plan_all(hit: Hit, failure: InjectedError) -> Plan:
    """Respond in the broker's place, or replace its response."""
    view = hit.view
    assert view.request is not None
    ours = errors.answer(failure, view.request, view.own_items)
    if hit.phase == BEFORE:
        return Plan(Verdict(frames=(), response=Verdict(frames=(ours,))))
    return Plan(change=lambda frame: ours)


def _plan_items(hit: Hit, failure: InjectedError) -> Plan | None:
    """Fail the items that the rule matches."""
    view, items = hit.view, hit.items
    assert view.request is not None
    assert view.shape is not None
    closed = all(_is_placed(hit, failure, item) for item in items)
    if hit.phase == BEFORE:
        everything = closed and len(items) == len(view.items)
        needs_broker = view.shape.name in _BROKER_NEEDED or _in_session(view.request)
        if everything and not needs_broker:
            return _plan_all(hit, failure)
        if not view.shape.reads:
            return _cut(hit, failure, items) if closed else None
    verdict = Verdict()
    if hit.phase == BEFORE and view.api_key == FETCH:
        verdict = Verdict(frames=(_without_wait(view.request),))
    complete = closed and view.api_key in FETCHES
    return Plan(verdict, _error_change(hit, failure, items if complete else None))


def _is_placed(hit: Hit, failure: InjectedError, item: Item) -> bool:
    """Return whether the request alone tells that an item matches, and where its error belongs."""
    levels = failure.places.shape.response[: failure.depth]
    named = all(
        not level.keys or any(key in item.keys for key, _ in level.keys) for level in levels
    )
    sure = hit.matcher.match(item, hit.view.context.topic_names) is Match.YES
    return named and sure


def _in_session(request: Request) -> bool:
    """Return whether a request continues a session: the broker must see it to keep its count."""
    body = request.body
    if request.header.api_key == FETCH:
        return body.session_id != 0 and body.session_epoch > 0
    return getattr(body, "share_session_epoch", 0) > 0


def _without_wait(request: Request) -> bytes:
    """Return the Fetch without a wait for data, as brokers answer where a part fails."""
    body = copy.copy(request.body)
    body.max_wait_ms = 0
    return codec.encode_request(Request(request.header, body, request.trailing))


def _cut(hit: Hit, failure: InjectedError, items: list[Item]) -> Plan:
    """Take the items out of the request, and put their errors into the broker's response."""
    view = hit.view
    assert view.request is not None
    assert view.shape is not None
    kept = without(view.shape, view.request.body, _picker(failure, items))
    request = Request(view.request.header, kept, view.request.trailing)
    verdict = Verdict(frames=(codec.encode_request(request),))
    return Plan(verdict, _error_change(hit, failure, items))


def _picker(failure: InjectedError, items: list[Item]) -> Callable[[Keys], bool]:
    """Return a test of keys: whether an item shares its response element with one of these."""
    levels = failure.places.shape.response[: failure.depth]
    named = [key for level in levels for key, _ in level.keys]

    def element(keys: Keys) -> tuple[Any, ...]:
        return tuple(keys.get(key) for key in named)

    picked = {element(item.keys) for item in items}
    return lambda keys: element(keys) in picked


def _error_change(hit: Hit, failure: InjectedError, items: list[Item] | None) -> Change:
    """Return the change that puts the error into the broker's response: for these items, which are
    added where they are missing, or for each element that the rule matches."""
    view = hit.view

    def put(response: Response) -> bool:
        if response.body_version != view.api_version or errors.fails_whole(failure, response.body):
            return False
        if items:
            errors.fail_items(failure, response.body, items, failure.depth)
            return True
        return errors.fail_matching(failure, response.body, view.own, hit.matches) > 0

    return hit.edit_response(put)


def parse_error(value: Any) -> int:
    """Read an error's name or number.

    Raises:
        ValueError: Kafka has no such error; the text suggests one.
    """
    if isinstance(value, str) and value != "NONE" and value in CODES:
        return CODES[value]
    if isinstance(value, int) and not isinstance(value, bool) and value in ERRORS and value != 0:
        return value
    raise ValueError(f"{value!r} is no error of Kafka{suggest(value, suggestions())}")


def can_fail(api_key: int, api_version: int, level: str | None, keys: frozenset[str]) -> bool:
    """Return whether the responses of a version can carry an error at that level."""
    return errors.depth(api_key, api_version, level, keys) is not None


def can_rebootstrap(api_key: int, api_version: int) -> bool:
    """Return whether clients of that version know REBOOTSTRAP_REQUIRED."""
    first_version = {3: 13, codec.API_VERSIONS: 5}
    return api_version >= first_version.get(api_key, 1 << 15)


def no_place(api: str, code: int, level: str) -> str:
    """Return the text that the responses of an API cannot carry an error at a level."""
    return f"{api} has no place for {error_name(code)} at the level {level!r}"


def carriers(code: int) -> frozenset[int]:
    """Return the APIs in which Kafka sends an error: the default of a rule that names none.

    Raises:
        ValueError: any may send it.
    """
    found = frozenset(key for key in apis_with(code) if schema.message(key, schema.RESPONSE))
    if not found:
        raise ValueError(f"any API may report {error_name(code)}: say which")
    return found


def unusual(api_key: int, code: int) -> str | None:
    """Return a warning if Kafka does not send an error in an API; else None."""
    if is_usual(api_key, code):
        return None
    api, usual = schema.api_name(api_key), ", ".join(usual_errors(api_key))
    return f"Kafka does not send {error_name(code)} in {api}; it sends {usual}"
