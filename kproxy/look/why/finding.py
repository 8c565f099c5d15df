"""A finding: what a recording proves, with the exchanges that prove it."""

from __future__ import annotations

import enum
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from kproxy.exchange.filter import matching
from kproxy.exchange.words.wording import count


class Harm(enum.IntEnum):
    """What a finding harms; the worst is the smallest."""

    DATA = 0
    """Records lost, doubled, out of order, or maybe unprocessed."""
    LATENCY = 1
    """Records or answers come late."""
    CURIOSITY = 2
    """Good to know."""

    @property
    def heading(self) -> str:
        """What stands above findings of this harm."""
        return ("What harms data", "What fails or is slow", "Good to know")[self]


_NUMBERS_MAX = 100
"""Exchanges that a filter names."""
NUMBERED = frozenset({"number", "connection"})
"""Kinds of subjects that each recording counts anew."""
_FILES_MAX = 5
"""Files of one of several recordings that a command names; of more, what the user gave."""


@attrs.frozen
class Subject:
    """What something is about: the exchange, group, … of a kind that `stories.SUBJECTS` has."""

    kind: str
    name: str = attrs.field(converter=str)
    topic: str = ""
    """Of a key: the topic that it is in."""

    @property
    def words(self) -> tuple[str, ...]:
        """How `kproxy why` takes it: ("topic:orders", "key:big")."""
        own = f"{self.kind}:{self.name}"
        return (f"topic:{self.topic}", own) if self.topic else (own,)


def _name_of(kind: str) -> Any:
    """Return the default of a field: the name of the finding's subject, where it is of a kind."""

    def name(finding: Finding) -> str | None:
        about = finding.about
        return about.name if about is not None and about.kind == kind else None

    return attrs.Factory(name, takes_self=True)


@attrs.frozen
class Finding:
    """Something that the exchanges of a recording prove."""

    harm: Harm
    kind: str
    """What it is, for headings and for grouping: "key on two partitions"."""
    text: str
    """What is wrong, in whole sentences, with the numbers of exchanges as `#12`."""
    numbers: tuple[int, ...]
    """The exchanges that prove it."""
    about: Subject | None = None
    """What it is about, of which there are a story and a picture."""
    topic: str | None = _name_of("topic")
    files: tuple[str, ...] = ()
    """The files that have these exchanges, where several recordings are read together."""
    group: str | None = _name_of("group")
    """The group that it is about, where it is about one."""
    evidence: tuple[str, ...] = ()
    """Sentences that prove it, or say more of it; they stand below the text."""
    shown_by: tuple[str, ...] = ()
    """The command that shows it, if not the story, without files: ("show", "is:routine")."""
    at_end: bool = False
    """True if it is how things stand where the recording ends: one that goes on tells it anew."""

    @property
    def whole(self) -> str:
        """Text and evidence, one after the other."""
        return " ".join((self.text, *self.evidence))

    @property
    def story(self) -> Subject | None:
        """The subject whose story shows it; None: a command does, or nothing."""
        return None if self.shown_by else self.about

    @property
    def words(self) -> tuple[str, ...]:
        """The command that shows it, without the recording; none if nothing does."""
        return self.shown_by or (("why", *self.about.words) if self.about else ())

    def command(self, given: Sequence[Path | str], names: Mapping[str, str] | None = None) -> str:
        """Return the command, as a shell takes it, that shows it; "" for none. In place of many
        files it has what the user gave; `names` are those of the recordings, by file."""
        command, *terms = [*self.words] or [""]
        files = self.files or given
        found = sorted({(names or {}).get(str(each), "") for each in files} - {""})
        name = found[0] if len(found) == 1 else ""
        if len(files) > max(len(given), _FILES_MAX if name else 1):
            files = given
            terms = self._terms_in(name, terms) if name else terms
        return shlex.join(["kproxy", command, *map(str, files), *terms]) if command else ""

    def _terms_in(self, name: str, terms: list[str]) -> list[str]:
        """Return the terms of the command where it gets other recordings, too, that count alike."""
        if self.story is not None and self.story.kind in NUMBERED:
            return [f"{self.story.kind}:{name}#{self.story.name}"]
        if "--frame" in terms:
            return [*terms[:-1], f"{name}#{terms[-1]}"]
        return terms if self.story is not None else [*terms, f"number:{name}#1.."]

    def filter(self, recording: str = "") -> str:
        """Return the filter of the exchanges that it is about, "" for none: that of the command, or
        the exchanges that prove it; of one of several recordings."""
        kind, prefix = self.about.kind if self.about else "", f"{recording}#" if recording else ""
        if kind == "number":
            numbers = (f"{prefix}{each}" for each in self.numbers[:_NUMBERS_MAX])
            return str(matching("number", *numbers)) if self.numbers else ""
        if kind == "connection" and not self.numbers:
            return ""  # it had no exchange
        terms = [*self.words[1:]]
        if self.story is not None:
            terms = [str(matching(*term.split(":", 1))) for term in terms]
        if prefix and terms:
            terms.append(str(matching("number", f"{prefix}1..")))
        return " ".join(terms)


def told(found: Sequence[Finding], told_max: int = 20) -> Iterator[str]:
    """Yield findings as a story begins with them: what is wrong, and indented what proves it."""
    for each in found[:told_max]:
        yield each.text
        yield from (f"  {more}" for more in each.evidence)
    if (more := len(found) - told_max) > 0:
        yield f"There {'is' if more == 1 else 'are'} {count(more, 'more finding')}."


def numbered(numbers: Sequence[int], shown_max: int = 3) -> str:
    """Return numbers of exchanges as text, of many only some: `#12, #40 and 31 more`."""
    shown = [f"#{each}" for each in numbers[:shown_max]]
    if (more := len(numbers) - len(shown)) > 0:
        return f"{', '.join(shown)} and {more} more"
    return " and ".join(each for each in (", ".join(shown[:-1]), *shown[-1:]) if each)
