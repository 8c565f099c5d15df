"""What a replay could not do, or was not given: the values behind its exit code."""

from __future__ import annotations

from collections.abc import Callable

import attrs

FINDINGS_MAX = 100
"""A client that does something else altogether would make millions."""


@attrs.frozen
class Finding:
    """Something that the client under test did otherwise than the recording has it."""

    kind: str
    """"not recorded" (a record, a topic), "not produced" (a record), "not served" (a request),
    "differs" (a frame, in strict mode)."""
    text: str
    """What, where, what was closest, which field differs."""
    advice: str
    """What to do about it."""

    def __str__(self) -> str:
        return f"{self.text}; {self.advice}" if self.advice else self.text


@attrs.define(eq=False)
class Report:
    """Collects findings; each is told at once through `tell`, the first `FINDINGS_MAX` of them."""

    tell: Callable[[Finding], object] = lambda finding: None
    count: int = 0
    """How many there are, also of those that are not kept."""
    _kept: dict[Finding, None] = attrs.field(factory=dict, init=False)

    @property
    def findings(self) -> list[Finding]:
        """The first of them, in order; the same one again is not kept twice."""
        return list(self._kept)

    @property
    def full(self) -> bool:
        """Whether no more are kept: then it is enough to count them."""
        return len(self._kept) >= FINDINGS_MAX

    def add(self, kind: str, text: str, advice: str = "") -> None:
        """Take a finding."""
        self.count += 1
        finding = Finding(kind, text, advice)
        if not self.full and finding not in self._kept:
            self._kept[finding] = None
            self.tell(finding)
