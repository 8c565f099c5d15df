"""What a transaction wrote, and how it ended, in words."""

from __future__ import annotations

from kproxy.exchange.words.wording import age, count, listed
from kproxy.history.transactions import OPEN, Span, Transaction
from kproxy.why.sentences import NOT_RECORDED, named, offsets

_PARTITIONS_NAMED = 6


def ended(found: Transaction) -> str:
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
