"""Phrases that several stories use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

import attrs

from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.words import faults
from kproxy.exchange.words.failures import made_by_rule
from kproxy.exchange.words.wording import age, count, listed, shortened
from kproxy.history.kept import Kept
from kproxy.history.ref import Ref, host_of
from kproxy.history.transactions import OPEN, Span, Transaction
from kproxy.units import moment, time_of_day

NOT_RECORDED = "is not in the recording"
_PARTITIONS_NAMED = 6


def at(exchange: Exchange | Ref) -> str:
    """Return the time of the request's arrival as text."""
    return clock(exchange.time_ns)


def clock(time_ns: int) -> str:
    """Return a time of day in UTC."""
    return time_of_day(moment(time_ns))


def named(exchange: Exchange | Ref) -> str:
    """Return the name of an exchange in a sentence: `Fetch #812`."""
    return f"{exchange.api or 'request'} #{exchange.number}"


def client(exchange: Exchange | Ref) -> str:
    """Return who sent a request: `billing (127.0.0.1:5001) on connection 6`."""
    name, address = exchange.client_id or "", exchange.client_address or ""
    who = f"{name} ({address})" if name and address else name or address
    return f"{who or 'a client without a name'}{_as(exchange)} on connection {exchange.connection}"


def leads_to(node_id: int | None) -> str:
    """Return to which broker a connection leads."""
    return "a bootstrap address" if node_id is None else f"broker {node_id}"


def software_of(exchange: Exchange) -> str:
    """Return the software and version of a client that ApiVersions tells; "" of other requests."""
    parts = (
        getattr(exchange.request, f"client_software_{each}", "") for each in ("name", "version")
    )
    return " ".join(filter(None, parts))


def ended_by(end: ConnectionEnd) -> str:
    """Return when a connection ended, who ended it first, and the reason."""
    first = end.first
    if first is None:
        return f"at {clock(end.time_ns)}; who ended it {NOT_RECORDED}"
    who = "kproxy" if first.side == "proxy" else f"the {first.side}"
    reason = end.reason or ("kproxy was stopped" if first.how == "stopped" else "")
    reason = f": {reason}" if reason else ""
    return f"at {clock(first.time_ns)}, first by {who} ({first.how}){reason}"


def no_answer(ref: Ref) -> str:
    """Return that a request has no answer, and for what it waited for how long."""
    fate = ref.fate
    never = "the recording ends before an answer" if fate.open_at_end else "it has no answer"
    if fate.silence:
        return f"{never}: {fate.silence}"
    waited = fate.unanswered
    if waited is None:
        return never
    places = {
        "proxy": "in kproxy",
        "earlier": f"behind #{waited.behind}",
        "broker": "for the broker",
    }
    how_long = f" {age(waited.waited_ms)}" if waited.waited_ms else ""
    return f"{never}: it waited{how_long} {places[waited.waited_for]}"


def short_id(member_id: str, whole: bool = False) -> str:
    """Return the end of a member id as `show` prints it, or both ends."""
    short = shortened(member_id)
    start, cut, end = short.partition("…")
    return short if whole else cut + end or start


def who(exchange: Exchange | Ref) -> str:
    """Return the client of an exchange with its host: `shop (10.0.0.7)`."""
    host = host_of(exchange)
    name = exchange.client_id or "a client without a name"
    return (f"{name} ({host})" if host else name) + _as(exchange)


def users(found: Collection[str]) -> Iterator[str]:
    """Yield as whom a client has logged in, if it is known."""
    if found:
        yield f"Its {'user is' if len(found) == 1 else 'users are'} {listed(found, 8)}."


def _as(exchange: Exchange | Ref) -> str:
    return f" as user {exchange.user}" if exchange.user else ""


def offsets(first: int, last: int) -> str:
    """Return a range of offsets as text: `@5..9`, `@5`."""
    return f"@{first}" if first == last else f"@{first}..{last}"


def transaction_ended(found: Transaction) -> str:
    """Return what a transaction wrote, and how it ended."""
    number = "" if found.end == OPEN else f" {found.number},"
    begun = f"{'begun' if found.is_whole else 'first seen'} with {named(found.began)}"
    return f"transaction{number} {begun}: {wrote(found)}; {how_it_ended(found)}"


def wrote(found: Transaction) -> str:
    """Return the records and offsets of a transaction."""
    parts = [_span(*each) for each in found.written.items()]
    text = listed(parts, _PARTITIONS_NAMED) or "no records"
    for group, held in found.offsets.items():
        sent = [f"{topic}[{n}@{each.offset}]" for (topic, n), each in held.items()]
        text += f"; offsets of group {group}: {listed(sent, _PARTITIONS_NAMED) or 'none'}"
    if found.unanswered:
        text += f"; without an answer: {listed(map(named, found.unanswered), _PARTITIONS_NAMED)}"
    return text


def _span(where: tuple[str, int], span: Span) -> str:
    topic, partition = where
    if not span.records:
        return f"{topic}[{partition}] added"
    text = f"{topic}[{partition}] {count(span.records, 'record')}"
    if span.first is None or span.last is None:
        return text
    return f"{text} {offsets(span.first, span.last)}"


def how_it_ended(found: Transaction) -> str:
    """Return how a transaction ended, as far as it is known."""
    if found.ended is None:
        shown = ""
        if found.shown is not None:
            how, by = found.shown
            shown = f"; it was {how}, as {named(by)} shows"
        if found.ending is not None:
            end, committed = found.ending
            wish = "commit" if committed else "abort"
            return f"{named(end)} was to {wish}; its answer {NOT_RECORDED}{shown}"
        return shown[2:] or f"whether it was committed or aborted {NOT_RECORDED}"
    lost = ", which its client was not told" if found.ended.fate.undelivered else ""
    after = f"after{'' if found.is_whole else ' at least'} {age(found.took_ms)}{lost}"
    by = f"{found.end} with {named(found.ended)}"
    if found.aborting is not None and found.taken is not None:
        by = (
            f"aborted since {named(found.aborting)} (answered CONCURRENT_TRANSACTIONS), taken over"
            f" with {named(found.taken)}"
        )
    return f"{by} {after}"


@attrs.define(eq=False)
class Abridged:
    """Sentences in order of time: the first and the last of many, and how many lie between."""

    noun: str
    """What a sentence is about, for their number: "transaction"."""
    kept_each_end: int = 10
    kept: Kept[tuple[int, str]] = attrs.field(
        default=attrs.Factory(lambda self: Kept(self.kept_each_end), takes_self=True)
    )

    def say(self, time_ns: int, text: str) -> None:
        """Add a sentence about something of this time."""
        self.kept.add((time_ns, text))

    def timed(self) -> list[tuple[int, str]]:
        """Return what is kept; what is left out has its number in the place of its time."""
        found, dropped = [*self.kept], self.kept.dropped
        if dropped:
            before_ns = self.kept.last[0][0] - 1
            left_out = f"… {count(dropped, f'more {self.noun}')} …"
            found.insert(len(self.kept.first), (before_ns, left_out))
        return found


def in_order(*parts: Abridged) -> Iterator[str]:
    """Yield the sentences of all parts in order of time, each with its time of day."""
    timed = [each for part in parts for each in part.timed()]
    for time_ns, text in sorted(timed, key=lambda each: each[0]):
        yield f"{clock(time_ns)} {text}"


# ---- Counts in sentences
#
# Invariant: at most `_COUNTED_MAX` of each are counted apart.


_NAMED_MAX = 10
_COUNTED_MAX = 1000


def count_in(counter: Counter[str], name: str) -> None:
    """Count a name; of too many, under "others"."""
    counter[name if name in counter or len(counter) < _COUNTED_MAX else "others"] += 1


@attrs.define(eq=False)
class ErrorCounts:
    """Errors of exchanges."""

    _routine: Counter[str] = attrs.field(factory=Counter, init=False)
    """Those by which clients and brokers come to terms."""
    _errors: Counter[tuple[str, str]] = attrs.field(factory=Counter, init=False)
    _first: dict[tuple[str, str], Ref] = attrs.field(factory=dict, init=False)

    def add(self, exchange: Exchange, errors: Sequence[str]) -> None:
        """Count errors of an exchange, each once."""
        for error in dict.fromkeys(errors):
            api = exchange.api or "?"
            if exchange.routine:
                self._routine[f"{error} of {api}"] += 1
                continue
            by_rule = f" ({faults.made(exchange)})" if made_by_rule(exchange, error) else ""
            key = f"{api}{by_rule}", error
            if key in self._errors or len(self._errors) < _COUNTED_MAX:
                self._errors[key] += 1
                self._first.setdefault(key, Ref.of(exchange))

    def lines(self, names_client: bool, only_routine: bool = False) -> Iterator[str]:
        """Yield sentences on them; `only_routine` if no other answer came than the routine ones."""
        if self._routine:
            found = [f"{error} ×{times}" for error, times in self._routine.most_common()]
            others = " It got no other answer." if only_routine else ""
            yield f"Routine answers, which are no failures: {listed(found, _NAMED_MAX)}.{others}"
        for (api, error), times in self._errors.most_common(_NAMED_MAX):
            first = self._first[api, error]
            again = f" ×{times}, first" if times > 1 else ","
            to = f" to {who(first)}" if names_client else ""
            yield f"{error} of {api}{again} #{first.number} of {at(first)}{to}."
        if (more := len(self._errors) - _NAMED_MAX) > 0:
            yield f"There {'is' if more == 1 else 'are'} {count(more, 'more kind')} of errors."
