"""The story of a fault rule: what it hit, what clients did then, what it cost.

::

    fault_rules, fault (notes) ─▶ the rule's text, the times of hits
    exchanges that it touched ─▶ FaultHit, counts
    then the recording, once ──▶ History · of their clients' exchanges, what follows each FaultHit

Two things are told apart. The same is asked again (`history.attempts`). And the next request of the
same API succeeds, which may ask something else: no rule touched it, and it succeeded within
`_AFTER_MS`. An exchange that succeeded itself, if late, needs no successor.

Invariant: memory is bounded: `_HITS_MAX` hits are followed, the others are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from kproxy.exchange.entries import Note
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import matching
from kproxy.exchange.histogram import PERCENTILES, Histogram
from kproxy.exchange.words import faults as fault_words
from kproxy.exchange.words.failures import delivered_response
from kproxy.exchange.words.wording import age, count, listed
from kproxy.history import identities
from kproxy.history.attempts import (
    COMPLETE,
    FAULT_SECONDS,
    SUCCEEDED,
    Attempts,
    outcome,
    own_success,
    works_again,
)
from kproxy.history.connections import Connections
from kproxy.history.history import History
from kproxy.history.identities import Asked
from kproxy.history.ref import Client, Ref, client_of
from kproxy.look.lines.stream import Stream
from kproxy.look.why.duplicate_findings import duplicate_findings
from kproxy.look.why.finding import told
from kproxy.look.why.sentences import (
    NOT_RECORDED,
    Abridged,
    clock,
    count_in,
    ended_by,
    in_order,
    named,
    who,
)
from kproxy.look.why.source import StorySource

_AFTER_MS = 1000.0 * FAULT_SECONDS
_HITS_MAX = 100
_HITS_TOLD = 5
_NAMED_MAX = 5
_AT_ONCE_NS = 100_000_000
"""A client that a fault makes end its connection does so in less; it may have more under way."""


@attrs.define(eq=False)
class FaultHit:
    """An exchange that the rule hit, and what its client did after it."""

    exchange: Exchange
    attempts: Attempts
    time_ns: int
    """When the rule fired; else when the request arrived."""
    did: str
    """What the rule did to it."""
    succeeded: str
    """What it is called if it succeeded itself; "" if it did not, or is not the same any more."""
    is_held: bool
    """True if the rule itself held it."""
    stays: bool = False
    """True if its connection was in use for a while after it: what ends that later, the rule did
    not."""
    connected: tuple[int, int] | None = None
    """Time and number of the first connection that the client opened after it."""
    metadata: Ref | None = None
    """The next request for metadata."""
    success: Ref | None = None
    """The next success of the same API, whatever it asks …"""
    asks_other: bool = False
    """… and whether that is known to be something else."""
    elsewhere: Ref | None = None
    """The next success on a connection that was open before."""
    is_unproved: bool = False
    """True if a later request of the same API has no answer that says whether it worked."""
    others: int = 0
    """Requests of the client afterwards."""

    @property
    def is_lost(self) -> bool:
        """True if it is a Produce of which the client was never told, and that it did not retry."""
        found = self.exchange
        silent = found.got_no_response and not (found.one_way or found.left_open)
        return silent and self.is_not_retried

    @property
    def is_not_retried(self) -> bool:
        """True if it is a Produce that ended without success, and no later one has a part of it."""
        if self.exchange.api != "Produce" or self.succeeded or self.exchange.left_open:
            return False
        return self.attempts.is_none

    def ms_until(self, time_ns: int) -> float:
        """Return the time from the arrival of the request until another time."""
        return (time_ns - self.exchange.time_ns) / 1e6

    def until(self, time_ns: int) -> str:
        """Return the same in words."""
        return age(self.ms_until(time_ns))


@attrs.define(eq=False)
class _Story:
    rule: str
    texts: dict[str, int] = attrs.Factory(dict)
    """Text of the rule → the time from which it was in force."""
    fired: dict[int, Note] = attrs.Factory(dict)
    """Exchange → the note that the rule fired on it."""
    hits: dict[int, FaultHit] = attrs.Factory(dict)
    hit_count: int = 0
    apis: Counter[str] = attrs.Factory(Counter)
    clients: Counter[str] = attrs.Factory(Counter)
    partitions: Counter[str] = attrs.Factory(Counter)
    held_ms: float = 0.0
    copies: dict[tuple[int, int | None], int] = attrs.Factory(dict)
    """Connection and correlation id of a request → the copy of it that kproxy sent."""
    behind: set[int] = attrs.Factory(set)
    """Exchanges that waited behind those that it held."""

    def note(self, note: Note) -> None:
        """Take a note: of rules, of a hit."""
        body = note.body
        if body.get("event") == "fault_rules":
            for name, words in _rules(body):
                if name == self.rule:
                    self.texts.setdefault(words, note.time_ns)
        elif body.get("event") == "fault" and body.get("rule") == self.rule:
            number = body.get("number")
            if number is not None and len(self.fired) < _HITS_MAX:
                self.fired.setdefault(number, note)

    def hit(self, exchange: Exchange) -> None:
        """Take an exchange that the rule touched."""
        if exchange.is_copy:
            if len(self.copies) < _HITS_MAX:
                self.copies[exchange.connection, exchange.correlation_id] = exchange.number
            return
        self.hit_count += 1
        self.apis[exchange.api or "?"] += 1
        count_in(self.clients, who(exchange))
        for topic, partition in exchange.partitions:
            count_in(self.partitions, f"{topic}[{partition}]")
        note = self.fired.pop(exchange.number, None)
        held_ms = _held_ms(exchange, note)
        self.held_ms += held_ms
        if len(self.hits) >= _HITS_MAX:
            return
        time_ns, action = exchange.time_ns if note is None else note.time_ns, _action(note)
        self.hits[exchange.number] = FaultHit(
            exchange, Attempts(exchange, identities.wanted(exchange)), time_ns,
            _done(exchange, action), own_success(exchange, action), held_ms >= 1,
        )  # fmt: skip


def _rules(body: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield names and texts of the rules in a note."""
    for rule in body.get("rules") or ():
        if rule.get("name") is not None:
            given = {key: value for key, value in (rule.get("rule") or {}).items() if key != "name"}
            yield rule["name"], " ".join(f"{key}={_word(value)}" for key, value in given.items())


def _action(note: Note | None) -> str:
    return "" if note is None else str(note.body.get("action") or "")


def _held_ms(exchange: Exchange, note: Note | None) -> float:
    """Return for how long this rule held an exchange: others may have held it as well."""
    held_ms, action = exchange.fault_ms or 0.0, _action(note)
    delay_ms = None if note is None else note.body.get("delay_ms")
    if delay_ms is not None:
        return min(delay_ms, held_ms)
    is_alone = len(exchange.faults) == 1 and exchange.held_behind is None
    return held_ms if is_alone and action in ("", *COMPLETE) else 0.0


def _word(value: Any) -> str:
    """Return a value as it is typed."""
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}={_word(each)}' for key, each in value.items())}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_word, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _done(exchange: Exchange, action: str) -> str:
    """Return what rules did to an exchange; all of them, for it does not always say which."""
    found = [*fault_words.marks(exchange)]
    if silence := fault_words.silence(exchange):
        found.append(silence)
    if exchange.injected:
        found.append(f"kproxy answered {listed(exchange.errors) or 'itself'}")
    elif exchange.broker_errors is not None:
        errors = listed(exchange.broker_errors)
        broker = f", not {errors}" if errors else ", though the broker answered without an error"
        found.append(f"the client was told {listed(exchange.errors) or 'no error'}{broker}")
    if exchange.left_open:
        is_held = exchange.response_bytes is not None and action in ("latency", "bandwidth")
        what = "while it is held" if is_held else "before it is answered"
        found.append(f"the recording ends {what}")
    if action == "throttle":
        wait_ms = getattr(delivered_response(exchange), "throttle_time_ms", 0)
        found.append(f"the client was told to wait {age(wait_ms)}")
    return ", ".join(found)


def fault_story(source: StorySource, value: str) -> Iterator[str]:
    """Yield the story of a fault rule."""
    story = _Story(value)
    for item in source.read(matching("fault", value), story.note):
        if isinstance(item, Exchange) and value in item.faults:
            story.hit(item)
    if story.fired:  # an exchange that the recording leaves open has no rules in its row
        for item in source.exchanges(matching("number", *map(str, story.fired))):
            if value not in item.faults:
                story.hit(item)
    if not (story.hit_count or story.texts or story.fired):
        return
    missing = listed([f"#{each}" for each in story.fired], _NAMED_MAX)
    not_recorded = (
        f"It hit {missing}, which {'is' if len(story.fired) == 1 else 'are'} not recorded."
    )
    if not story.hits:
        yield from _rule(story)
        yield not_recorded if story.fired else "It touched no exchange in the recording."
        return
    history, end_ns = _follow(source, story)
    yield from told([*duplicate_findings(history.duplicates, story.hits.keys() | story.behind)])
    yield from _rule(story)
    yield from _counts(story)
    if story.fired:
        yield not_recorded
    hits = Abridged("hit", _HITS_TOLD)
    for each in story.hits.values():
        hits.say(each.exchange.time_ns, _consequences(each, story, history.connections, end_ns))
    yield from in_order(hits)
    yield from _cost(story, end_ns)


def _follow(source: StorySource, story: _Story) -> tuple[History, int]:
    """Read what the clients of the hits did after them; return what happened besides, and the
    latest time in the recording."""
    history, end_ns = History(), 0
    by_client: dict[Client, list[FaultHit]] = {}
    for each in story.hits.values():
        by_client.setdefault(client_of(each.exchange), []).append(each)
    for item in source.read(None, history.connections.note):
        history.add(item)
        if not isinstance(item, Exchange):
            end_ns = max(end_ns, item.time_ns)
            continue
        end_ns = max(end_ns, item.time_ns, item.completed_ns)
        if item.is_copy:
            continue
        before = story.hits.get(item.held_behind or 0)
        if before is not None and before.is_held:
            story.behind.add(item.number)
        asked: Asked | None = None
        for hit in by_client.get(client_of(item), ()):
            if item.number <= hit.exchange.number or item.time_ns < hit.time_ns:
                continue
            if item.api == hit.exchange.api:
                asked = identities.asked(item) if asked is None else asked
            is_its_own = _is_its_own(hit, item, history.connections)
            if _names_sender(item) or is_its_own:
                hit.attempts.add(item, asked)
            if item.time_ns - hit.time_ns <= _AFTER_MS * 1e6:
                _add(hit, item, asked, is_its_own, history.connections.opened_ns(item.connection))
    return history, end_ns


def rules_in(paths: Sequence[Path | str], within: str) -> Iterator[str]:
    """Yield the names of the fault rules that recordings have."""
    names: list[str] = []

    def on_note(note: Note) -> None:
        names.extend(name for name, _ in _rules(note.body))

    for exchange in Stream(paths, matching("fault", "no rule"), on_note).exchanges():
        names.extend(exchange.faults)
    return iter(names)


def _add(
    hit: FaultHit, item: Exchange, asked: Asked | None, is_its_own: bool, opened_ns: int
) -> None:
    """Take a request after a hit, of the same client. On a connection that was open before the hit
    it may be of another process, unless it is the same request."""
    hit.others += 1
    last = hit.attempts.last
    is_its_own |= last is not None and last.number == item.number
    if item.connection == hit.exchange.connection:
        late = item.time_ns - hit.exchange.completed_ns > _AT_ONCE_NS
        hit.stays = hit.stays or (late and outcome(item) == SUCCEEDED)
    elif opened_ns > hit.time_ns and not hit.stays:
        found = opened_ns, item.connection
        hit.connected = min(hit.connected or found, found)
    if item.api == "Metadata" and is_its_own:
        hit.metadata = _earlier(hit.metadata, item)
    if item.api != hit.exchange.api:
        return
    hit.is_unproved |= item.one_way
    if not works_again(item):
        return
    if not is_its_own:
        hit.elsewhere = _earlier(hit.elsewhere, item)
    elif hit.success is None or item.time_ns < hit.success.time_ns:
        hit.success, hit.asks_other = Ref.of(item), hit.attempts.asks_other(item, asked)


def _earlier(kept: Ref | None, item: Exchange) -> Ref:
    return kept if kept is not None and kept.time_ns <= item.time_ns else Ref.of(item)


def _is_its_own(hit: FaultHit, item: Exchange, connections: Connections) -> bool:
    """Return whether a request came on the connection of a hit, or on one opened after it."""
    own = item.connection == hit.exchange.connection
    return own or connections.opened_ns(item.connection) > hit.time_ns


def _names_sender(exchange: Exchange) -> bool:
    """Return whether what is the same in two requests is of one process only."""
    member = getattr(exchange.request, "member_id", None)
    return exchange.api == "Produce" or bool(member or exchange.transactional_ids)


# ---- sentences


def _rule(story: _Story) -> Iterator[str]:
    if not story.texts:
        yield f"The text of rule {story.rule} {NOT_RECORDED}."
    for text, time_ns in list(story.texts.items())[:_NAMED_MAX]:
        yield f"Rule {story.rule}, from {clock(time_ns)}: {text or 'without words'}."


def _counts(story: _Story) -> Iterator[str]:
    apis = [f"{api} {times}" for api, times in story.apis.most_common()]
    clients = [f"{name} {times}" for name, times in story.clients.most_common()]
    text = f"It touched {count(story.hit_count, 'exchange')}: {listed(apis, _NAMED_MAX)};"
    text += f" of {listed(clients, _NAMED_MAX)}"
    if story.partitions:
        found = [f"{name} {times}" for name, times in story.partitions.most_common()]
        text += f"; {listed(found, _NAMED_MAX)}"
    yield f"{text}."


def _consequences(hit: FaultHit, story: _Story, connections: Connections, end_ns: int) -> str:
    exchange, did = hit.exchange, f": {hit.did}" if hit.did else ""
    parts = [f"{named(exchange)} of {who(exchange)}{did}"]
    copy = story.copies.get((exchange.connection, exchange.correlation_id))
    if copy is not None:
        parts.append(f"kproxy sent a copy of it (#{copy})")
    own = connections.get(exchange.connection)
    if own is not None and own.end is not None and not hit.stays:
        parts.append(f"its connection {own.number} ended {ended_by(own.end)}")
    if hit.connected is not None:
        after, number = hit.until(hit.connected[0]), hit.connected[1]
        parts.append(f"the client connected again {after} later (connection {number})")
    if hit.metadata is not None:
        after = hit.until(hit.metadata.time_ns)
        parts.append(f"it asked for metadata {after} later ({named(hit.metadata)})")
    parts += _asked_again(hit)
    if hit.succeeded:
        parts.append(hit.succeeded)
    if hit.success is not None:
        parts += _next(hit, hit.success)
    elif not hit.succeeded:
        parts.append(_none_succeeded(hit, end_ns))
    return "; ".join(parts) + "."


def _asked_again(hit: FaultHit) -> Iterator[str]:
    """Yield whether the client asked the same again, and how that ended."""
    if hit.succeeded and hit.exchange.api != "Produce":
        return  # clients poll
    first, last = hit.attempts.first, hit.attempts.last
    if first is not None and last is not None:
        words = "sent a part of the same again" if first.is_part else "sent the same again"
        words += ", among others," if first.has_more else ""
        yield f"it {words} {hit.until(first.time_ns)} later ({first.name}), which {first.outcome}"
        if last is not first:
            after = hit.until(last.time_ns)
            yield f"the last time {after} later (#{last.number}), which {last.outcome}"
    elif hit.is_lost:
        yield "the client was never told, and the recording shows no retry"
    elif hit.is_not_retried:
        yield "the recording shows no retry"


def _next(hit: FaultHit, success: Ref) -> Iterator[str]:
    """Yield which request of the same API succeeded next, unless that is told as its retry."""
    last = hit.attempts.last
    if not hit.succeeded and last is not None and success.number == last.number:
        return
    other = ", which asks something else" if hit.asks_other and not hit.succeeded else ""
    after = hit.until(success.time_ns)
    yield f"the next {success.api} that succeeded was {named(success)}, {after} later{other}"


def _none_succeeded(hit: FaultHit, end_ns: int) -> str:
    ends_before, api = end_ns - hit.time_ns < _AFTER_MS * 1e6, hit.exchange.api
    if (found := hit.elsewhere) is not None:
        text = f"{named(found)} succeeded {hit.until(found.time_ns)} later on connection"
        return (
            f"{text} {found.connection}, which was open before the hit: it may be another client's"
        )
    if hit.is_unproved:
        return f"whether a later {api} worked {NOT_RECORDED} (acks=0)"
    left = hit.until(end_ns)
    if not hit.others:
        until = f"which ends {left} later" if ends_before else f"for {age(_AFTER_MS)}"
        return f"no later request of the client is in the recording, {until}"
    limit = f"before the recording ends, {left} later" if ends_before else None
    limit = limit or f"within {age(_AFTER_MS)} of it"
    return f"no {api} of the client{_untouched([hit])} succeeded {limit}"


def _untouched(hits: list[FaultHit]) -> str:
    """Return what tells other successes from that of an attempt, which a rule touched again."""
    for hit in hits:
        last = hit.attempts.last
        if last and last.outcome == SUCCEEDED and hit.ms_until(last.time_ns) < _AFTER_MS:
            return " that no rule touched"
    return ""


def _cost(story: _Story, end_ns: int) -> Iterator[str]:
    if story.held_ms >= 1:
        behind = f"; {count(len(story.behind), 'exchange')} waited behind" if story.behind else ""
        yield f"It held exchanges for {age(story.held_ms)} in all{behind}."
    among = count(len(story.hits), "hit")
    if len(story.hits) < story.hit_count:
        among = f"the first {among} of {story.hit_count}"
    left = [each for each in story.hits.values() if not each.succeeded]
    if len(left) < len(story.hits):
        yield f"The request itself succeeded in {len(story.hits) - len(left)} of {among}."
        among = count(len(left), "other hit")
    if not left:
        return
    yield from _retried(left, among)
    succeeded = [
        (each.ms_until(each.success.time_ns), each.exchange.number)
        for each in left
        if each.success is not None
    ]
    if not succeeded and any(each.is_unproved or each.elsewhere for each in left):
        yield f"No request of the same client and API is known to have succeeded after {among}."
        return
    if not succeeded:
        cut_short = [end_ns - each.time_ns < _AFTER_MS * 1e6 for each in left]
        limits = [] if all(cut_short) else [f"within {age(_AFTER_MS)}"]
        limits += ["before the recording ends"] if any(cut_short) else []
        api = f"the same API{_untouched(left)}"
        yield f"No request of {api} succeeded {' or '.join(limits)} after {among}."
        return
    times = Histogram()
    for next_ms, _ in succeeded:
        times.add(round(next_ms * 1000))
    longest_ms, slowest = max(succeeded, key=lambda each: each[0])
    text = "The next request of the same API, whatever it asked, succeeded after"
    text += f" {len(succeeded)} of {among}"
    middle_ms = times.percentile(PERCENTILES["p50"])
    if len(succeeded) > 1 and middle_ms is not None:
        text += f", half of the time within {age(middle_ms)}"
    yield f"{text}; the longest took {age(longest_ms)} (after #{slowest})."


def _retried(hits: list[FaultHit], among: str) -> Iterator[str]:
    outcomes = [each.attempts.last.outcome for each in hits if each.attempts.last]
    if outcomes:
        text = f"The same was asked again after {len(outcomes)} of {among}"
        yield f"{text}, with success after {outcomes.count(SUCCEEDED)}."
    if lost := [each for each in hits if each.is_lost]:
        numbers = listed([f"#{each.exchange.number}" for each in lost], _NAMED_MAX)
        yield f"Never told to the client, and not asked again in the recording: {numbers}."
