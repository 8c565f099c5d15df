"""The story of a transactional id: its producers, and what each transaction wrote and came to.

::

    History ─▶ TransactionalId ─┬─ Grant, RefusedRequest, UnansweredRequest ─┐
                                └─ Transaction ────────────────┴─▶ sentences, in order of time

A producer is said to be fenced by another only if the grant of the higher epoch is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator

from kproxy.exchange.words.wording import age, count, listed
from kproxy.history.history import History
from kproxy.history.ref import Ref
from kproxy.history.transactions import (
    ABORTED,
    UNKNOWN,
    Event,
    Grant,
    RefusedRequest,
    Transaction,
    TransactionalId,
    Transactions,
    UnansweredRequest,
)
from kproxy.look.why.finding import Finding, Harm, Subject, told
from kproxy.look.why.sentences import (
    NOT_RECORDED,
    Abridged,
    clock,
    in_order,
    named,
    transaction_ended,
    who,
)
from kproxy.look.why.source import StorySource
from kproxy.look.why.standing import stood_still

_ABORTS_MIN = 5
"""So many, and at least half of all, are more than chance."""


def transactional_id_story(source: StorySource, value: str) -> Iterator[str]:
    """Yield the story of a transactional id."""
    history = History(transactions=Transactions(about=value))
    for item in source.read(None):  # what others wrote tells where the logs end
        source.watch(history, item, history.add(item))
    found = history.transactions.ids.get(value)
    if found is not None:
        shown = Subject("transactional_id", value)  # a fenced producer stands in what happened
        yield from told([each for each in aborting(history) if each.about == shown])
        yield from stood_still(history, transactional_id=value)
        yield from _story(found)


def fenced(history: History) -> Iterator[Finding]:
    """Yield the transactional ids whose producers another one fenced."""
    for name, each in sorted(history.transactions.ids.items()):
        if each.fenced is not None:
            text = f"Transactional id {name}: {refusal(each.fenced)}."
            if each.fenced_count > 1:
                text += f" {count(each.fenced_count - 1, 'more request')} of it was refused so."
            yield Finding(Harm.DATA, "fenced producer", text, (each.fenced.ref.number,),
                          Subject("transactional_id", name))  # fmt: skip


def aborting(history: History) -> Iterator[Finding]:
    """Yield the transactional ids whose transactions end again and again with an abort."""
    for name, each in sorted(history.transactions.ids.items()):
        total, aborted = sum(each.ends.values()), each.ends[ABORTED]
        last = next((t for t in reversed(each.recent) if t.end == ABORTED), None)
        if aborted < _ABORTS_MIN or aborted * 2 < total or last is None or last.ended is None:
            continue
        yield Finding(
            Harm.LATENCY, "aborted transactions",
            f"{aborted} of {count(total, 'transaction')} of {name} were aborted.",
            (last.began.number, last.ended.number), Subject("transactional_id", name),
            evidence=(f"The last of {who(last.began)}: {transaction_ended(last)}.",),
        )  # fmt: skip


def _story(found: TransactionalId) -> Iterator[str]:
    total = sum(found.ends.values()) + (found.open is not None)
    unknown = f"whose end {NOT_RECORDED}"
    ends = [
        f"{times} {unknown if how == UNKNOWN else how}"
        for how, times in found.ends.items()
        if times
    ]
    if found.open is not None:
        how, by = found.open.shown or ("", None)
        shown = f"1 {how}, as {named(by)} shows" if by is not None else ""
        ends.append(shown or "1 without an end in the recording")
    text = f"Transactional id {found.name}: {count(found.producers, 'producer')}"
    text += f" in the recording; {count(total, 'transaction')}"
    text += f" ({listed(ends, 4)})" if ends else ""
    longest = found.longest
    if longest is not None and longest.ended is not None:
        text += f"; the longest took {age(longest.took_ms)} (until {named(longest.ended)})"
    yield f"{text}."
    commits = found.committed.map(lambda each: (each.began.time_ns, f"{transaction_ended(each)}."))
    events = found.events.map(_said)
    yield from in_order(
        Abridged("committed transaction", kept=commits), Abridged("event", kept=events)
    )
    if found.open is not None:
        yield f"{clock(found.open.began.time_ns)} {transaction_ended(found.open)}."
    for (api, error), (first, times) in found.retriable.items():
        again = f"{times} times, first" if times > 1 else "once,"
        yield f"{api} was answered {error} {again} {named(first)}; clients try again after it."


def _said(event: Event) -> tuple[int, str]:
    """Return the time of an event, and its sentence."""
    match event:
        case Grant():
            return event.ref.time_ns, f"{_granted(event)}."
        case RefusedRequest():
            return event.ref.time_ns, f"{refusal(event)}."
        case UnansweredRequest(ref, wish):
            wish = f", to {wish}" if wish else ""
            return ref.time_ns, f"{named(ref)} of {who(ref)}{wish}{_silence(ref)}."
        case Transaction():
            return event.began.time_ns, f"{transaction_ended(event)}."


# ── producers ────────────────────────────────────────────────────────────────────────────────


def _granted(given: Grant) -> str:
    verb = "initializes it" if given.is_fresh else "raises its own epoch"
    producer_id, epoch = given.producer
    text = (
        f"{who(given.ref)} {verb}: producer id {producer_id}, epoch {epoch}, transaction"
        f" timeout {age(given.timeout_ms)} ({named(given.ref)})"
    )
    if given.before is not None and given.is_fresh:
        before, by = given.before
        text += (
            f"; requests with an earlier epoch, such as epoch {before} of {who(by)} ({named(by)}),"
            " are refused from now on"
        )
        text += " at the latest" if given.found_aborting else ""
    return text


def refusal(found: RefusedRequest) -> str:
    """Return that a request was refused and, if it was for its epoch, who took the id."""
    made = f", {found.ref.fate.made}" if found.ref.fate.made else ""
    text = f"{named(found.ref)} of {who(found.ref)} is refused: {found.error}{made}"
    return text + _fencing(found) if found.is_fenced else text


def _fencing(found: RefusedRequest) -> str:
    own, taker, since = found.own, found.taker, found.open_since
    if found.producer is None:
        return f"; its epoch {NOT_RECORDED}"
    producer_id, epoch = found.producer
    text = f". It has epoch {epoch}"
    if own is not None:
        text += f" (given by {named(own.ref)})"
    if taker is not None:
        other_id, taken = taker.producer
        other = f" with producer id {other_id}" if other_id != producer_id else ""
        return (
            f"{text}; {who(taker.ref)} took the transactional id at {clock(taker.ref.time_ns)} with"
            f" {named(taker.ref)} and got epoch {taken}{other}"
        )
    open_ms = 0.0 if since is None else (found.ref.time_ns - since.time_ns) / 1e6
    if own is not None and open_ms > own.timeout_ms > 0:
        return (
            f"{text}; its transaction had been open for {age(open_ms)}, and brokers abort one that"
            f" is open for longer than transaction.timeout.ms ({age(own.timeout_ms)})"
        )
    return f"{text}; who took the transactional id {NOT_RECORDED}"


def _silence(ref: Ref) -> str:
    never = ", has no answer before the recording ends" if ref.fate.open_at_end else (
        ", was never answered"
    )  # fmt: skip
    if by_rule := ref.fate.silence:
        return f"{never}: {by_rule}"
    return never if ref.fate.open_at_end else f"{never}: whether it worked {NOT_RECORDED}"
