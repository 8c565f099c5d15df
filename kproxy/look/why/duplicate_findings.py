"""Findings about records that were written twice, or maybe, and Produces whose client was not told.

Duplicates ─▶ by topic ─▶ Finding
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator

from kproxy.exchange.words.wording import count, listed
from kproxy.history.duplicates import NEVER_SENT, Duplicates, RefusedWrite, Unlearned
from kproxy.history.history import History
from kproxy.history.ref import Ref
from kproxy.history.rows import TRIED
from kproxy.look.why.finding import Finding, Harm, Subject
from kproxy.look.why.sentences import at, ended_by, named, offsets, who
from kproxy.wire.protocol import error_code, is_retriable

_TOLD_MAX = 5
_SILENCE_NS = 5_000_000_000
"""Clients send refused records again after a second at most."""


def duplicate_findings(
    duplicates: Duplicates, only: Container[int] | None = None
) -> Iterator[Finding]:
    """Yield the findings of each topic; of some exchanges, or of all."""
    by_kind = {_written: {}, _copied: {}, _maybe_written: {}, _never_told: {}}
    for each in duplicates.unlearned:
        if only is not None and each.ref.number not in only:
            continue
        if each.again:
            tell = _copied if each.copied_by else _written
            tell = _maybe_written if each.fate == NEVER_SENT else tell
        elif each.is_withheld and not each.is_again and duplicates.is_complete:
            tell = _never_told
        else:
            continue
        by_kind[tell].setdefault(each.write.where.topic, []).append(each)
    for tell, by_topic in by_kind.items():
        yield from (tell(topic, found) for topic, found in sorted(by_topic.items()))


def written_after(error: str) -> str:
    """Return the kind of the finding about what was written after an error."""
    return f"written after {error}"


def rewritten(history: History) -> Iterator[Finding]:
    """Yield, for each error, the Produces that were refused for good, and whose records a later
    request wrote."""
    found: dict[tuple[int, str], list[RefusedWrite]] = {}
    for each in history.duplicates.refused:
        found.setdefault((each.ref.number, each.write.error), []).append(each)
    by_error: dict[str, list[RefusedWrite]] = {}
    for (_, error), parts in found.items():
        if all(each.written_by for each in parts):
            by_error.setdefault(error, []).append(parts[-1])
    for error, written in by_error.items():
        first, by, where = written[0].ref, written[0].written_by, written[0].write.where
        assert by is not None
        produces = f"{count(len(written), 'Produce')} {_were(len(written))}"
        proof = (
            f"{named(first)} of {who(first)} at {at(first)} was refused; #{by.number} wrote what it"
            f" had for {where.topic}[{where.partition}]."
        )
        yield Finding(
            Harm.LATENCY,
            written_after(error),
            f"{produces} refused with {error}, and a later request wrote the same records.",
            tuple(each.ref.number for each in written),
            Subject("number", first.number),
            evidence=(proof,),
        )


def unwritten(history: History) -> Iterator[Finding]:
    """Yield the partitions of which a client's last Produce was refused, though it could have come
    again: lasting errors stand for themselves. Whether it gave up, or what follows was left out of
    the recording, nothing says."""
    for topic in history.logs.topics.values():
        for _, use in topic.did(TRIED):
            refused = [
                (partition, tried.refused, tried.latest)
                for partition, tried in sorted(use.partitions.items())
                if use.is_one
                and tried.refused
                and tried.latest
                and _is_refused(tried.latest)
                and _is_over(history, tried.latest)
            ]
            if refused:
                yield _unwritten(history, topic.name, refused)


def _is_over(history: History, last: Ref) -> bool:
    """Return whether a client would have come again by now: a recording may be read while it
    grows."""
    connection = history.connections.get(last.connection)
    has_ended = connection is not None and connection.end is not None
    return has_ended or history.connections.latest_ns - last.answered_ns >= _SILENCE_NS


def _is_refused(ref: Ref) -> bool:
    codes = [error_code(each) for each in ref.broker_errors]
    retriable = [code is not None and is_retriable(code) for code in codes]
    return ref.is_answered and bool(codes) and all(retriable) and not ref.fate.may_be_lost


def _unwritten(history: History, topic: str, found: list[tuple[int, Counter[str], Ref]]) -> Finding:
    partition, refused, last = max(found, key=lambda each: each[1].total())
    where = f"{topic}[{partition}]"
    more = f" and {count(len(found) - 1, 'more partition')}" if len(found) > 1 else ""
    errors = listed(
        f"{error} {count(times, 'time')}" if len(refused) > 1 else error
        for error, times in refused.most_common()
    )
    produces = "Produce" if refused.total() == 1 else f"{refused.total()} Produces"
    were = _were(refused.total())
    text = f"The last {produces} of {who(last)} to {where}{more} {were} refused: {errors}."
    evidence = [
        f"No later one of this client for it than {named(last)} of {at(last)} is in the recording."
    ]
    connection = history.connections.get(last.connection)
    if connection is not None and connection.end is not None:
        evidence.append(f"Connection {last.connection} ended {ended_by(connection.end)}.")
    return _finding("writes refused to the end", topic, text, evidence, (last.number,))


def _written(topic: str, found: list[Unlearned]) -> Finding:
    clients = dict.fromkeys(who(each.ref) for each in found)
    whose = f"{listed(clients, 2)}, which {'is' if len(clients) == 1 else 'are'} not idempotent"
    if any(each.write.sequences for each in found):
        whose = f"{listed(clients, 2)}: with another epoch, the broker does not know them again"
    return _twice(topic, found, whose, "the response to #{} was {}")


def _copied(topic: str, found: list[Unlearned]) -> Finding:
    rules = listed(dict.fromkeys(each.copied_by for each in found), 2)
    return _twice(topic, found, f"fault rule {rules}", "kproxy sent #{} twice")


def _twice(topic: str, found: list[Unlearned], by: str, why: str) -> Finding:
    example = max(found, key=lambda each: len(each.again))
    (first, span), *others = example.writes
    number = len(example.again[0].places)
    again = [f"#{ref.number} to {offsets(*to)}" for ref, to in others]
    more = number < example.again[0].write.records
    again[0] = again[0].replace(" ", " the same, among others, " if more else " the same ", 1)
    proof = (
        f"{named(first)} of {who(first)} wrote {count(number, 'record')} to"
        f" {_where(example)}{offsets(*span)}, {listed(again, _TOLD_MAX)};"
        f" {why.format(first.number, example.fate)}."
    )
    evidence = [proof]
    records = sum(len(each.places) for one in found for each in one.again)
    if len(found) > 1 or len(example.again) > 1:
        requests = {each.ref.number for one in found for each in one.again}
        so = f"So {count(records, 'record')} of {topic} were written again"
        evidence.append(f"{so}, by {count(len(requests), 'request')}.")
    evidence += _fetched(example)
    text, numbers = f"{_times(topic, found)} by {by}.", (first.number, example.again[0].ref.number)
    return _finding("records written twice", topic, text, evidence, numbers)


def _times(topic: str, found: list[Unlearned]) -> str:
    """Return how many records were written how often: `5 records of dup[0] were written twice`."""
    times = Counter[int]()
    for each in found:
        more = Counter(first for again in each.again for first, _ in again.places)
        times.update(1 + one for one in more.values())
    where = {_where(each) for each in found}
    of = where.pop() if len(where) == 1 else topic
    least, most = min(times), max(times)
    often = "twice" if most == 2 else f"{most} times" if least == most else f"up to {most} times"
    return f"{count(times.total(), 'record')} of {of} {_were(times.total())} written {often}"


def _fetched(example: Unlearned) -> Iterator[str]:
    """Yield who fetched which of the writes."""
    total = len(example.writes)
    whole = "both" if total == 2 else f"all {total}"
    readers = [
        f"{reader}: {whole if len(numbers) == total else f'{len(numbers)} of these {total}'}"
        f" writes (first with #{min(numbers.values())})"
        for reader, numbers in example.readers.items()
    ]
    if readers:
        yield f"Fetched by {listed(readers, _TOLD_MAX)}."


def _maybe_written(topic: str, found: list[Unlearned]) -> Finding:
    first, again = found[0].ref, found[0].again[0]
    number = len(again.places)
    them, they = ("it", "it is") if number == 1 else ("them", "they are")
    others = ", among others," if again.places[-1][1] - again.places[0][1] >= number else ""
    text = (
        f"{count(number, 'record')} of {_where(found[0])} may have been written twice:"
        f" {named(first)} was never answered."
    )
    came_again = (
        f"{named(first)} of {who(first)} at {at(first)} was never answered;"
        f" {count(number, 'record')} of it for {_where(found[0])} came again with"
        f" #{again.ref.number}, and the broker wrote {them}{others} to"
        f" {offsets(*again.offsets)}."
    )
    may_be = (
        f"If it had taken #{first.number}, too, {they} there twice: no answer says so, and"
        f" #{first.number} has no sequence numbers."
    )
    evidence = [came_again, may_be]
    if more := len({each.ref.number for each in found}) - 1:
        evidence.append(f"So it was with {count(more, 'more request')} for {topic}.")
    numbers = first.number, again.ref.number
    return _finding("records maybe written twice", topic, text, evidence, numbers)


def _never_told(topic: str, found: list[Unlearned]) -> Finding:
    first, write = found[0].ref, found[0].write
    said = write.error or "without an offset"
    if write.offset is not None:
        said = f"offset {write.offset}"
    number = count(write.records, "record")
    text = f"{who(first)} was never told what became of {number} for {_where(found[0])}."
    answer = (
        f"{named(first)} of {at(first)} had {number}; the broker's answer, {said}, was"
        f" {found[0].fate}, and the recording shows no retry."
    )
    evidence = [answer]
    if more := len(found) - 1:
        evidence.append(f"So it was with {count(more, 'more batch')} of {topic}.")
    return _finding("Produce without an answer", topic, text, evidence, (first.number,))


def _finding(
    kind: str, topic: str, text: str, evidence: list[str], numbers: tuple[int, ...]
) -> Finding:
    about = Subject("number", numbers[0])
    return Finding(Harm.DATA, kind, text, numbers, about, topic, evidence=tuple(evidence))


def _where(found: Unlearned) -> str:
    return "{}[{}]".format(*found.write.where)


def _were(number: int) -> str:
    return "was" if number == 1 else "were"
