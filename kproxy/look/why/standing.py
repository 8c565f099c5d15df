"""Readers of committed records that stand still behind an open transaction, in sentences.

Stand … ─▶ those behind one transactional id, or of one topic ─▶ finding, sentence of a story
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.words.wording import age, count, listed
from kproxy.history.history import History
from kproxy.history.standing import Stand
from kproxy.history.transactions import ABORTED, OPEN
from kproxy.look.why.finding import Finding, Harm, Subject
from kproxy.look.why.sentences import NOT_RECORDED, at, how_it_ended, named, who, wrote

STANDING = "readers behind an open transaction"
"""The kind of a finding that a story need not repeat."""
_NAMED_MAX = 3


def standing(history: History) -> Iterator[Finding]:
    """Yield where readers of committed records stand still behind a transaction, or stood."""
    for stands in _together(history.standing):
        worst = stands[0]
        topic, opener = worst.where.topic, worst.opener
        about = Subject("topic", topic)
        if opener:
            about = Subject("transactional_id", opener.transactional_id)
        proof = [worst.first, worst.last or worst.first, *([opener.began] if opener else ())]
        groups = {reader.group for each in stands for reader in each.readers.values()}
        yield Finding(
            Harm.LATENCY,
            STANDING,
            f"{_what(stands)}.",
            tuple(sorted({each.number for each in proof})),
            about,
            topic=topic if all(each.where.topic == topic for each in stands) else None,
            group=next(iter(groups)) or None if len(groups) == 1 else None,
            evidence=(*_readers(worst), *_transaction(history, worst)),
            at_end=not worst.is_past,
        )


def stood_still(history: History, group: str = "", transactional_id: str = "") -> Iterator[str]:
    """Yield each time that readers of a group, or behind a transactional id, stood still, as
    findings are told."""
    for stands in _together(history.standing):
        opener = stands[0].opener
        if transactional_id and (opener is None or opener.transactional_id != transactional_id):
            continue
        if group and all(one.group != group for each in stands for one in each.readers.values()):
            continue
        yield f"{_what(stands)}."
        yield from (f"  {more}" for more in _readers(stands[0]))


def _together(stands: Iterable[Stand]) -> Iterator[list[Stand]]:
    """Yield the stands behind each transactional id, the longest first; those behind unknown ones
    by topic; those that are over apart."""
    found: dict[tuple[bool, str, bool], list[Stand]] = {}
    for each in stands:
        opener = each.opener
        name = each.where.topic if opener is None else opener.transactional_id
        found.setdefault((opener is None, name, each.is_past), []).append(each)
    for together in found.values():
        yield sorted(together, key=lambda each: -each.stood_ms)


def _what(stands: Sequence[Stand]) -> str:
    """Return where readers stand still, and behind what."""
    worst = stands[0]
    where = _at(worst.where, worst.offset)
    several = len({each.where for each in stands}) - 1
    more = f" and {count(several, 'more partition')}" if several else ""
    behind = _behind(worst)
    if not worst.is_past:
        return f"Readers of committed records stand still at {where}{more} behind {behind}"
    lasted = f"for {'at least ' if worst.passed is None else ''}{age(worst.stood_ms)}"
    again = sum(each.where == worst.where for each in stands)
    if again > 1:
        lasted = f"{again} times, {lasted} at the longest,"
    return f"Readers of committed records stood still at {where}{more} {lasted} behind {behind}"


def _behind(stand: Stand) -> str:
    opener = stand.opener
    if opener is None:
        return "a transaction whose producer is not recorded"
    if not stand.is_over and opener.end == OPEN:
        return f"the open transaction of {opener.transactional_id}"
    return f"a transaction of {opener.transactional_id}"


def _readers(stand: Stand) -> Iterator[str]:
    """Yield who asked in vain."""
    most = sorted(stand.readers.values(), key=lambda each: -each.times)
    for each in most[:_NAMED_MAX]:
        group = f" of group {each.group}" if each.group else ""
        text = f"{who(each.first)}{group} asked {count(each.times, 'time')} in vain"
        text += f", {at(each.first)} ({named(each.first)})"
        if each.last is not each.first:
            text += f" to {at(each.last)} (#{each.last.number})"
        yield f"{text}."
    if len(most) > _NAMED_MAX:
        yield f"So did {count(len(most) - _NAMED_MAX, 'more client')}."
    waiting = count(stand.high_watermark - stand.offset, "offset")
    if stand.passed is not None:
        yield f"{named(stand.passed)} of {at(stand.passed)} came past it; {waiting} had waited."
    else:
        until = "before a gap in the recording" if stand.is_cut else "when the recording ends"
        if stand.is_left:
            yield f"Then they asked for it no more; {waiting} had waited."
            return
        yield f"{waiting} {'waits' if waiting.startswith('1 ') else 'wait'} there {until}."


def _transaction(history: History, stand: Stand) -> Iterator[str]:
    """Yield which transaction it is behind, and what came of that."""
    opener = stand.opener
    if opener is None:
        yield from _unknown(history, stand)
        return
    grant = opener.grant
    text = f"{at(opener.began)} {who(opener.began)} began it with {named(opener.began)}"
    if grant is not None:
        producer_id, epoch = grant.producer
        text += f" as producer id {producer_id}, epoch {epoch}"
    yield f"{text}: {wrote(opener)}."
    if opener.end == OPEN and not stand.is_over:
        last_ns = stand.last.answered_ns if stand.last else stand.first.answered_ns
        open_for = age((last_ns - opener.began.time_ns) / 1e6)
        yield f"No request that ends it is in the recording; it was open for {open_for} at least."
    else:
        how = how_it_ended(opener)
        yield f"{'It was ' if opener.ended else ''}{how if opener.ended else _sentence(how)}."
    if grant is not None and grant.timeout_ms > 0 and opener.ended is None:
        timeout = f"Its timeout is {age(grant.timeout_ms)} ({named(grant.ref)})"
        yield f"{timeout}: the coordinator aborts it when it is open for longer."
    others = [*_open_there(history, stand)]
    if others:
        yield f"Behind it are open, too: {listed(others, _NAMED_MAX)}."


def _unknown(history: History, stand: Stand) -> Iterator[str]:
    where = _at(stand.where, stand.offset)
    yield (
        f"Which transaction begins at {where} {NOT_RECORDED}: it began before the recording, or its"
        " producer does not use kproxy."
    )
    if stand.outcome is not None and stand.passed is not None:
        how, producer_id = stand.outcome
        whose = f": it is that of producer id {producer_id}" if how == ABORTED else ""
        yield f"It was {how}, as {named(stand.passed)} shows{whose}."
    others = [*_open_there(history, stand)]
    if others:
        yield f"Open there, as far as is known: {listed(others, _NAMED_MAX)}."


def _open_there(history: History, stand: Stand) -> Iterator[str]:
    """Yield the other transactions that are open at a partition when the recording ends."""
    for each in () if stand.is_over else history.transactions.latest():
        span = each.written.get(stand.where)
        if each is not stand.opener and each.end == OPEN and span is not None:
            since = "" if span.first is None else f" from {_at(stand.where, span.first)} on"
            yield f"{each.transactional_id}{since} ({named(each.began)})"


def _at(where: TopicPartition, offset: int) -> str:
    return f"{where.topic}[{where.partition}]@{offset}"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]
