"""The story of an exchange: its time, what failed and why, and what came of it.

The recording is read once, after the exchange was found; what came of it is looked for then.

::

    number ─▶ the exchange ─┬─ times ───▶ where its time went
                            ├─ rules ───▶ what fault rules did to it
                            ├─ failures ▶ causes: what the error means, its cause here, the remedy
                            └─ aftermath ▶ the same asked again; what the client did meanwhile
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import attrs

from kproxy.exchange.derived import JOINS, PENDING_REQUESTS_MAX, UNKNOWN
from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.entries import EVENTS, UNKNOWN_NS, WITHHELD, Note
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import Filter, matching
from kproxy.exchange.filter.terms import grouped
from kproxy.exchange.histogram import PERCENTILES, Histogram
from kproxy.exchange.words import faults
from kproxy.exchange.words.failures import WHOLE, failures
from kproxy.exchange.words.wording import age, count, quoted
from kproxy.history.clients import muted_ms
from kproxy.history.history import History
from kproxy.history.items import Gap, Item
from kproxy.look.why.aftermath import aftermath
from kproxy.look.why.case import Case
from kproxy.look.why.causes.table import causes_before, explained
from kproxy.look.why.sentences import NOT_RECORDED, client, ended_by, leads_to, named
from kproxy.look.why.source import StorySource

_LONG_MS = 1.0
"""Parts of an exchange's time from this on have a sentence."""
_UNREADABLE_TOLD = 3
_OTHERS_MIN = 20
"""With fewer others to compare with, no exchange is called slow."""


@attrs.define(eq=False)
class _Surroundings:
    """An exchange and the others that its story refers to."""

    found: Exchange
    fired: list[Mapping[str, Any]] = attrs.Factory(list)
    """The notes on fault rules that fired on it."""
    slow_ms: dict[str, float] = attrs.Factory(dict)
    """"broker", "client" → for how long it did not take what was sent to it meanwhile."""
    ahead: Exchange | None = None
    """The request before it on its connection."""
    pending: int = 0
    """Those before it that had no answer yet when it came."""
    last_to_join: Exchange | None = None
    end: ConnectionEnd | None = None
    times: Histogram = attrs.Factory(Histogram)
    """The broker's time for other exchanges of the same API, without waits."""
    causes: list[tuple[Case, list[str]]] = attrs.Factory(list)
    """Its failures, and what the history shows of their causes until then."""

    def note(self, note: Note) -> None:
        """Take a note of the recording."""
        if is_hit(note, self.found.number) and note.body not in self.fired:
            self.fired.append(note.body)
        match note.body:
            case {"event": "slow_peer", "connection": number, "side": str(side), **rest}:
                row, until_ns = self.found.row, rest.get("until_ns", 0)
                due_ns = row.request_sent_ns if side == "broker" else row.response_sent_ns
                ended_ns = row.response_received_ns if side == "broker" else until_ns
                from_ns = max(due_ns, rest.get("from_ns", 0))
                slow_ms = (min(until_ns, ended_ns) - from_ns) / 1e6
                if number == self.found.connection and due_ns and slow_ms > 0:
                    self.slow_ms[side] = slow_ms

    def add(self, item: Item, is_later: bool) -> None:
        """Take another item of the recording; `is_later` if it is behind the exchange."""
        if isinstance(item, ConnectionEnd):
            if is_later and item.connection == self.found.connection:
                self.end = self.end or item
        elif not isinstance(item, Gap):
            _add_other(item, self, self.found)


def number_story(source: StorySource, value: str) -> Iterator[str]:
    """Yield the story of the exchange with a number."""
    found = next(source.exchanges(matching("number", value)), None)
    if found is None:
        return
    around = _surroundings(source, found)
    yield found.text
    yield f"It came from {client(found)}, which leads to {leads_to(found.node_id)}."
    if copied := faults.copied(found):
        yield copied + ("; the broker answered." if found.response_bytes else ".")
    if found.unanswered is not None:
        yield from _unanswered(found, around)
    elif found.one_way:
        kept = faults.silence(found)
        whether = f"and it was {kept}" if kept else f"so whether it worked {NOT_RECORDED}"
        yield f"The client wanted no response (acks=0), {whether}."
    elif found.injected and not found.is_copy:
        yield "kproxy made the response itself; the broker did not."
    elif not found.is_copy:
        yield from _times(found, around)
    yield from _unreadable(found)
    yield from _rules(found, around.fired)
    yield from _failures(source, found, around)


def _unreadable(found: Exchange) -> Iterator[str]:
    """Yield which of its records cannot be read."""
    unreadable = found.records.unreadable
    for each in unreadable[:_UNREADABLE_TOLD]:
        yield f"It carries {each.text}."
    if len(unreadable) > _UNREADABLE_TOLD:
        more = count(len(unreadable) - _UNREADABLE_TOLD, "more batch")
        yield f"It carries {more} that cannot be read."


def _rules(found: Exchange, fired: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what fault rules did to an exchange, or to what was before it on its connection."""
    yield from what_rules_did(found, fired)
    if held := faults.held(found):
        yield f"It was {held}."
    if not keeps_response_back(fired) and (unlearned := faults.unlearned(found)):
        yield f"Its response was {unlearned}."


def _failures(source: StorySource, found: Exchange, around: _Surroundings) -> Iterator[str]:
    failed = [case.failure for case, _ in around.causes]
    for case, before in around.causes:
        yield from explained(case, before)
    says = "The response" if any(each.by_rule for each in failed) else "The broker"
    for message in quoted(found.error_messages, f" (kproxy show --frame {found.number})"):
        yield f"{says} says: {message}"
    places = [place for each in failed for place in each.places]
    if found.unanswered is not None or faults.unlearned(found) or keeps_response_back(around.fired):
        places = [WHOLE]
    if places:
        yield from aftermath(source, found, places)


def _surroundings(source: StorySource, found: Exchange) -> _Surroundings:
    """Read what is around an exchange: where it failed all, else its connection and its API."""
    around, history = _Surroundings(found), History()
    failed, is_later = failures(found), False
    near = [matching("connection", str(found.connection)).node]
    if found.api is not None:
        near.append(matching("api", found.api).node)
    wanted = None if failed else Filter(grouped(near, one=True))
    for each in source.read(wanted, around.note):
        if not isinstance(each, Exchange) or each.number != found.number:
            around.add(each, is_later)
        else:
            is_later = True
            cases = [Case(history, found, failure) for failure in failed]
            around.causes = [(case, causes_before(case)) for case in cases]
            history.close(found.completed_ns)
        if failed:
            history.add(each)
    return around


def _add_other(each: Exchange, around: _Surroundings, found: Exchange) -> None:
    """Take another exchange than `found`."""
    if each.connection == found.connection and each.number < found.number:
        around.pending += each.row.response_received_ns > found.time_ns
        if around.ahead is None or each.number > around.ahead.number:
            around.ahead = each
    if each.api_key != found.api_key:
        return
    served_us = each.durations.served_us
    if served_us != UNKNOWN:
        around.times.add(served_us)
    finished = found.time + timedelta(milliseconds=found.broker_ms or 0)
    if found.api in JOINS and each.groups == found.groups and each.time <= finished:
        if around.last_to_join is None or each.time > around.last_to_join.time:
            around.last_to_join = each


def _times(found: Exchange, around: _Surroundings) -> Iterator[str]:
    if found.broker_ms is None:
        yield f"How long the broker took {NOT_RECORDED}."
        return
    queued_ms, waiting_ms = found.queued_ms or 0.0, found.waiting_ms or 0.0
    service_ms = found.service_ms or 0.0
    if queued_ms >= _LONG_MS:
        ahead = named(around.ahead) if around.ahead else "an earlier request"
        yield (
            f"It waited {age(queued_ms)} behind {ahead}: brokers answer the requests of a"
            " connection one after the other."
        )
    if found.api in JOINS and not found.errors:
        yield from _joined(found, waiting_ms, around.last_to_join)
    elif found.api in JOINS:
        yield f"The broker answered after {age(waiting_ms)}."
    elif waiting_ms:
        limit = age(getattr(found.request, "max_wait_ms", 0))
        yield (
            f"It let the broker wait up to {limit} for records (max_wait_ms);"
            f" {age(waiting_ms)} of its time may be that wait."
        )
    throttled_ms = min(service_ms, _throttled_ms(found, around.ahead))
    if throttled_ms and around.ahead is not None:
        yield (
            f"{age(throttled_ms)} of its time is the throttling that the response to"
            f" {named(around.ahead)} announced: a quota is exceeded, and the broker reads nothing"
            " of the connection meanwhile."
        )
        service_ms -= throttled_ms
    if service_ms >= _LONG_MS or not (waiting_ms or throttled_ms):
        yield f"The broker itself took {age(service_ms)}{_compared(service_ms, around.times)}."
    if told_ms := getattr(found.response, "throttle_time_ms", 0):
        yield f"The broker throttles this client for {age(told_ms)}: a quota is exceeded."
    for side, slow_ms in around.slow_ms.items():
        what = "a request, or those before it" if side == "broker" else "the response"
        yield f"The {side} read slowly: {age(slow_ms)} passed until it had taken {what}."
    if found.proxy_ms is not None:
        yield f"kproxy added {age(found.proxy_ms)}{_by_limit(found, around)}."


def _throttled_ms(found: Exchange, ahead: Exchange | None) -> float:
    """Return for how long the broker left a request lying, for what it had told before."""
    throttle_ms = getattr(ahead and ahead.response, "throttle_time_ms", 0)
    if ahead is None or not throttle_ms:
        return 0.0
    told_ns, row = ahead.row.response_received_ns, found.row
    return muted_ms(throttle_ms, told_ns, row.request_sent_ns, row.response_received_ns)


def _by_limit(found: Exchange, around: _Surroundings) -> str:
    """Return why kproxy held a request, where so many before it had no answer when it came."""
    if around.pending < PENDING_REQUESTS_MAX:
        return ""
    return (
        f": {around.pending} requests of its connection had no answer when it came, and kproxy"
        f" takes no more while there are {PENDING_REQUESTS_MAX}"
    )


def _joined(found: Exchange, waiting_ms: float, last: Exchange | None) -> Iterator[str]:
    yield f"{found.api} is answered when the whole group is ready: that took {age(waiting_ms)}."
    if last is not None and last.time > found.time:
        who = last.client_id or f"connection {last.connection}"
        later = (last.time - found.time) / timedelta(milliseconds=1)
        yield f"The last one was {who} with {named(last)}, {age(later)} after it."


def _compared(service_ms: float, times: Histogram) -> str:
    median_ms, high_ms = (times.percentile(PERCENTILES[name]) for name in ("p50", "p99"))
    if median_ms is None or high_ms is None:
        return "; there is no other to compare it with"
    if times.count < _OTHERS_MIN:
        if times.count == 1:
            return f"; the only other took {age(median_ms)}"
        return f"; the median of the {times.count} others is {age(median_ms)}"
    text = f"; the median of the {times.count} others is {age(median_ms)}, p99 {age(high_ms)}"
    if service_ms > max(2 * high_ms, high_ms + _LONG_MS):
        text += f". Why it took so much longer {NOT_RECORDED}"
    return text


def _unanswered(found: Exchange, around: _Surroundings) -> Iterator[str]:
    waited, end = found.unanswered, around.end
    if waited is None:
        return
    how_long = f" for {age(waited.waited_ms)}" if waited.waited_ms else ""
    never = "not" if found.open_at_end else "never"
    reasons = {
        "proxy": f"It was {never} sent on: it waited in kproxy{how_long}.",
        "earlier": f"It was {never} answered: it waited{how_long} behind #{waited.behind}, which"
        " was not answered either.",
        "broker": f"It was {never} answered: it waited for the broker{how_long}.",
    }
    by_rule = faults.silence(found)
    yield f"It was {never} answered: {by_rule}." if by_rule else reasons[waited.waited_for]
    told_ms = getattr(around.ahead and around.ahead.response, "throttle_time_ms", 0)
    if around.ahead is not None and told_ms:
        yield (
            f"The response to {named(around.ahead)} had told its client to wait {age(told_ms)}: a"
            " quota is exceeded."
        )
    if end is None:
        yield f"The end of its connection {NOT_RECORDED}, nor what came until then."
    else:
        yield f"Its connection ended {ended_by(end)}."


# ---- What fault rules did to an exchange
#
# fault notes ─▶ "Fault rule eat dropped the response: the client was never told."


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
