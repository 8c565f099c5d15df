"""The fault rules that touched an exchange, and what each did to it.

fault notes ─▶ "Fault rule eat dropped the response: the client was never told."
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kproxy.exchange.entries import EVENTS, UNKNOWN_NS, WITHHELD, Note
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.words.wording import age

_CONNECTION_ENDS = {
    "disconnect": "closed the connection",
    "reset": "reset the connection",
    "blackhole": "let nothing more through on the connection",
    "slow_close": "let nothing more through on the connection, and closed it later",
}
_BEFORE = {
    "drop": "dropped the request: the broker never got it",
    "truncate": "cut the request off and closed the connection",
    "corrupt": "damaged records in the request",
    "duplicate": "sent the request to the broker twice; the client gets the first response only",
    "bandwidth": "slowed the request down",
    **{key: f"{what} in place of the request" for key, what in _CONNECTION_ENDS.items()},
}
_AFTER = {
    "drop": "dropped the response: the client was never told",
    "truncate": "cut the response off and closed the connection",
    "corrupt": "damaged records in the response",
    "bandwidth": "slowed the response down",
    "throttle": "told the client that a quota is exceeded, and that it has to wait",
    "hide_node": "took a broker out of the response",
    "stale_leader": "changed leaders in the response",
    "move_coordinator": "changed the coordinator in the response",
    "max_version": "lowered versions in the response",
    "hide_api": "took APIs out of the response",
    **{key: f"{what} in place of the response" for key, what in _CONNECTION_ENDS.items()},
}
_DONE = {"before": _BEFORE, "after": _AFTER}
"""Phase → action → what it does."""
_ERRORS = ("error", "rebootstrap")
_KEEPS_RESPONSE_BACK = frozenset({"drop", *_CONNECTION_ENDS})


def is_hit(note: Note, number: int) -> bool:
    """Return whether a note says that a rule fired on an exchange."""
    body = note.body
    fired = note.channel == EVENTS and body.get("event") == "fault"
    return fired and body.get("number") == number


def keeps_response_back(fired: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a rule kept a response from the client."""
    return any(
        each.get("phase") == "after" and each.get("action") in _KEEPS_RESPONSE_BACK
        for each in fired
    )


def what_rules_did(exchange: Exchange, fired: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what each rule did to an exchange."""
    named: set[str] = set()
    for each in fired:
        rule = each.get("rule") or str(each.get("fault_id"))
        named.add(rule)
        yield f"Fault rule {rule} {_done(each, exchange)}."
    for rule in () if exchange.is_copy else exchange.faults:
        if rule not in named:
            yield f"Fault rule {rule} touched it; what it did is not in the recording."


def _done(note: Mapping[str, Any], exchange: Exchange) -> str:
    action, phase = note.get("action") or "", note.get("phase") or ""
    if action == "latency":
        what = "request" if phase == "before" else "response"
        delay_ms = note.get("delay_ms")
        return f"was to hold the {what}" + ("" if delay_ms is None else f" for {age(delay_ms)}")
    if action in _ERRORS:
        return _failed(exchange)
    if action == "truncate" and not is_cut(exchange, phase):
        what = "request" if phase == "before" else "response"
        return f"closed the connection after the {what}, which is whole"
    return _DONE.get(phase, {}).get(action, f"acted on it ({action or 'action unknown'})")


def is_cut(exchange: Exchange, phase: str) -> bool:
    """Return whether a frame left in part; True where the recording is too old to tell."""
    row = exchange.row
    flags = row.request_flags if phase == "before" else row.response_flags
    return bool(flags & WITHHELD) or row.fault_ns == UNKNOWN_NS


def _failed(exchange: Exchange) -> str:
    if exchange.one_way:
        return "closed the connection, as brokers do on an error that has no response"
    if exchange.injected:
        return "made the error in the broker's place, which did not get the request"
    return "put the error into the response"
