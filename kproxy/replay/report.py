"""The findings of a replay: the differences between the clients and the recording."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs

_NAMED = ("json:", "key-json:", "header:")
FINDINGS_MAX = 100
"""At most this many findings are kept: a very different client would cause millions."""


@attrs.frozen
class ClientDifference:
    """A difference of the client under test from the recording."""

    kind: str
    """"not recorded" (a record, a topic), "not produced" (a record), "not served" (a request),
    "differs" (a frame, in strict mode)."""
    text: str
    """What happened, where, the closest recorded value, the field that differs."""
    advice: str = ""
    """The next step for the user."""
    like: str = ""
    """The same for differences of one kind, which are counted; "" for one that is like no other."""
    ignore: tuple[str, ...] = ()
    """The words (`ignored`) for what of it looks like ids or times; each names its topic."""
    only_varies: bool = False
    """True if that is all of it: to record again would not help."""

    def __str__(self) -> str:
        return f"{self.text}; {self.advice}" if self.advice else self.text


def varying_text(words: Iterable[str], ignoring: Callable[[Sequence[str]], str]) -> str:
    """Return in a sentence what is to be typed, as `ignoring` has it, so that what looks like ids
    or times may differ; "" if nothing does."""
    by_part: dict[str, list[str]] = {}
    for word in dict.fromkeys(words):
        by_part.setdefault(word.partition("/")[2], []).append(word)
    # What varies in one topic may be data in another, and a whole key or value has no name in
    # common with others. A field that varies in several is one word: a name means one thing.
    words = []
    for part, each in by_part.items():
        words += [part] if len(each) > 1 and part.startswith(_NAMED) else each
    return f"what looks like ids and times is new in each run: {ignoring(words)}" if words else ""


@attrs.define(eq=False)
class Report:
    """Collects findings; calls `on_finding` with each of the first `FINDINGS_MAX` at once."""

    on_finding: Callable[[ClientDifference], object] = lambda finding: None
    count: int = 0
    """Number of all findings, kept or not."""
    _kept: dict[ClientDifference, None] = attrs.field(factory=dict, init=False)

    @property
    def findings(self) -> list[ClientDifference]:
        """The kept findings, in order and without duplicates."""
        return list(self._kept)

    @property
    def full(self) -> bool:
        """True when no more are kept: then they need no text."""
        return len(self._kept) >= FINDINGS_MAX

    def add(self, kind: str, text: str, advice: str = "") -> None:
        """Add a finding."""
        self.take(ClientDifference(kind, text, advice))

    def take(self, finding: ClientDifference) -> None:
        """Add a finding."""
        self.count += 1
        if not self.full and finding not in self._kept:
            self._kept[finding] = None
            self.on_finding(finding)

    def retell(self, told: Mapping[ClientDifference, ClientDifference]) -> None:
        """Put others in the places of findings, now that more is known."""
        self._kept = {told.get(each, each): None for each in self._kept}
