"""What a replay could not do, or was not given: the values behind its exit code."""

from __future__ import annotations

from collections.abc import Callable

import attrs


@attrs.frozen
class Finding:
    """Something that the client under test did otherwise than the recording has it."""

    kind: str
    """"not recorded" (a record), "not produced" (a record), "not served" (a request), "differs"
    (a frame, in strict mode)."""
    text: str
    """What, where, what was closest, which field differs."""
    advice: str
    """What to do about it."""

    def __str__(self) -> str:
        return f"{self.text}; {self.advice}" if self.advice else self.text


@attrs.define(eq=False)
class Report:
    """Collects findings; each is told at once through `tell`."""

    tell: Callable[[Finding], object] = lambda finding: None
    findings: list[Finding] = attrs.Factory(list)

    def add(self, kind: str, text: str, advice: str = "") -> None:
        """Take a finding; the same one again counts no more."""
        finding = Finding(kind, text, advice)
        if finding not in self.findings:
            self.findings.append(finding)
            self.tell(finding)
