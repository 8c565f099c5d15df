"""The comparison of two runs by their facts: of a recording with a replay, or with another one.

::

    before ─▶ facts of an aspect ─┐
                                  ├─▶ Difference …
    after ──▶ facts of an aspect ─┘

A replay compares the aspects of `FACTS`, besides single records (`replay.produced`); `look.diff`
compares more of them. What the second run says nothing of was not repeated: whether that fails a
replay is a question of its own (`Expect`).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator

import attrs

from kproxy.exchange.words.wording import count
from kproxy.history.behaviour import Behaviour
from kproxy.history.transactions import UNKNOWN
from kproxy.replay.differences import cut_to_difference, short
from kproxy.replay.facts import AFTER, BEFORE, FACTS, Fact, without_repeats
from kproxy.replay.ignored import Ignored
from kproxy.replay.settings import Expect

RECORDS = "records"
"""The aspect that is compared while the client works: topic, partition and content of records."""

STRICT_SUMMARY = "checked: each request of each connection, in order"
"""What strict mode checks."""

Sequences = dict[Hashable, list[str]]
"""The texts of one subject by name."""


@attrs.frozen
class Difference:
    """Something of which the second run says something else than the first."""

    aspect: str
    subject: str
    before: str | None
    """None: the first run says nothing of it."""
    after: str | None
    """None: nor does the second."""
    which: str = ""
    """The part of the subject: `number 2`, or a field of a record."""
    said: str = ""
    """The whole difference as text, where it is no pair."""
    numbers: dict[str, float] = attrs.Factory(dict)
    """What was measured of it, by name."""
    ignore: tuple[str, ...] = ()
    """The words (`ignored`) for what of it looks like ids or times."""

    @property
    def missing(self) -> bool:
        """True if the second run lacks what the first has."""
        return self.after is None

    @property
    def text(self) -> str:
        """The difference of a replay from its recording."""
        which = f"{self.which}: " if self.which else ""
        then, now = self.shown
        found = f"{which}{now or 'none'} (recorded: {then or 'none'})"
        return f"{self.subject}: {self.said or found}"

    @property
    def shown(self) -> tuple[str | None, str | None]:
        """What each says, cut to where they differ."""
        if self.before is not None and self.after is not None:
            return cut_to_difference(self.before, self.after)
        return self.before and short(self.before), self.after and short(self.after)


Found = Iterator[Difference]
"""Differences that lack aspect and subject."""


# ---- comparing


def _difference(before: str | None, after: str | None, which: str = "", said: str = "") -> Found:
    yield Difference("", "", before, after, which, said)


def _as_ordered(now: list[str], then: list[str]) -> Found:
    """Yield the first place in which two sequences differ."""
    if not now and then:
        what = then[0] if len(then) == 1 else count(len(then), "time")
        yield from _difference(what, None, said=f"not repeated (recorded: {short(what)})")
        return
    for place in range(max(len(now), len(then))):
        this, recorded = (each[place] if place < len(each) else None for each in (now, then))
        if this != recorded:
            which = f"number {place + 1}" if max(len(now), len(then)) > 1 else ""
            yield from _difference(recorded, this, which)
            return


def _as_ends(now: list[str], then: list[str]) -> Found:
    """Yield the first place in which ends of transactions differ; an unknown one may be any."""
    found = list(now)
    for place, pair in enumerate(zip(now, then, strict=False)):
        ends, offsets = zip(*(text.partition(" ")[::2] for text in pair), strict=True)
        if UNKNOWN in ends and offsets[0] == offsets[1]:
            found[place] = then[place]
    yield from _as_ordered(without_repeats(found), without_repeats(then))


def _as_acknowledged(now: list[str], then: list[str]) -> Found:
    """Yield that something is committed before its work is done; the other way round is as good."""
    if (now, then) == ([BEFORE], [AFTER]):
        yield from _difference(AFTER, BEFORE)


def _as_common_ordered(now: list[str], then: list[str]) -> Found:
    """Yield the first place in which what is in both comes in another order."""
    common = Counter(now) & Counter(then)
    yield from _as_ordered(_only(now, common), _only(then, common))


def _only(texts: Iterable[str], wanted: Counter[str]) -> list[str]:
    left = Counter(wanted)
    found: list[str] = []
    for text in texts:
        if left[text] > 0:
            left[text] -= 1
            found.append(text)
    return found


def _as_sets(now: list[str], then: list[str]) -> Found:
    """Yield how many elements only one of both has, with the first."""
    here, recorded = Counter(now), Counter(then)
    for found, missing, what in (
        (recorded - here, True, "not given out, but in the recording"),
        (here - recorded, False, "given out, but not in the recording"),
    ):
        if found:
            total = count(found.total(), "record")
            said = f"{total} {what}; the first: {short(next(iter(found)))}"
            yield from _difference(*((said, None) if missing else (None, said)), said=said)


_COMPARE: dict[str, Callable[[list[str], list[str]], Found]] = {
    "order": _as_common_ordered,
    "transactions": _as_ends,
    "consumed": _as_sets,
    "acknowledged": _as_acknowledged,
}
"""Aspect → yields the differences between texts now, and in the recording; else `_as_ordered`."""

ASPECTS = (RECORDS, *FACTS)
"""What `--compare` takes."""


def parse_aspects(words: Collection[str], known: Collection[str] = ASPECTS) -> frozenset[str]:
    """Return aspects by their names; "all" is all of them.

    Raises:
        ValueError: a word is none of them.
    """
    if "all" in words:
        return frozenset(known)
    wrong = [word for word in words if word not in known]
    if wrong or not words:
        what = f"not {wrong[0]!r}" if wrong else "not nothing"
        raise ValueError(f"compare takes {', '.join(known)}, or all, {what}")
    return frozenset(words)


@attrs.frozen
class Compared:
    """What decides whether a replay fails."""

    aspects: frozenset[str] = frozenset({RECORDS})
    """A difference in these fails."""
    expect: Expect = Expect.PRODUCED
    """What of the recording must be repeated."""

    @property
    def needs_behaviour(self) -> bool:
        """True if more than single records is looked at."""
        return self.expect is Expect.ALL or bool(self.aspects - {RECORDS})

    def must_be_repeated(self, aspect: str) -> bool:
        """Return whether it fails that something of this aspect is missing."""
        if self.expect is Expect.PRODUCED:
            return aspect == RECORDS or aspect in self.aspects
        return self.expect is Expect.ALL

    def fails(self, difference: Difference) -> bool:
        """Return whether a difference makes the replay fail."""
        if difference.missing:
            return self.must_be_repeated(difference.aspect)
        return difference.aspect in self.aspects

    def summary(self) -> str:
        """Return in a line what was checked, and what was not."""
        checked = [name for name in ASPECTS if name in self.aspects]
        others = [name for name in ASPECTS if name not in self.aspects]
        text = f"checked: {', '.join(checked)}"
        if self.expect is Expect.NONE:
            text += ", but not whether all was repeated (--expect)"
        elif self.expect is Expect.ALL:
            text += ", and that all was repeated"
        return f"{text}; not checked: {', '.join(others)} (--compare)" if others else text


def differences(now: Behaviour, then: Behaviour, ignored: Ignored) -> Iterator[Difference]:
    """Yield all differences of this run from the recording, aspect by aspect."""
    for aspect, facts in FACTS.items():
        if aspect not in ignored.aspects:
            yield from changes(aspect, facts(now, ignored), facts(then, ignored))


def changes(aspect: str, now: Iterable[Fact], then: Iterable[Fact]) -> Iterator[Difference]:
    """Yield the differences between the facts of an aspect, now and in the recording."""
    these, recorded = _collected(now), _collected(then)
    for subject in dict.fromkeys([*recorded, *these]):
        for here, before in _paired(these.get(subject, {}), recorded.get(subject, {})):
            for each in _COMPARE.get(aspect, _as_ordered)(here, before):
                yield attrs.evolve(each, aspect=aspect, subject=subject)


def _paired(now: Sequences, then: Sequences) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the texts that may differ and belong together: those of one name; of the others, whose
    names may have random ids, those without an equal, in order."""
    yield from ((now[name], then[name]) for name in then if name in now)
    here = Counter(tuple(texts) for name, texts in now.items() if name not in then)
    before = Counter(tuple(texts) for name, texts in then.items() if name not in now)
    left, recorded = (here - before).elements(), (before - here).elements()
    for this, that in itertools.zip_longest(left, recorded, fillvalue=()):
        yield list(this), list(that)


def _collected(facts: Iterable[Fact]) -> dict[str, Sequences]:
    found: dict[str, Sequences] = {}
    for subject, name, text in facts:
        found.setdefault(subject, {}).setdefault(name, []).append(text)
    return found
