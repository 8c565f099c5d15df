"""The README and the pages of the manual, taken apart: commands, programs, rules, names.

README.md, kproxy/manual/*.md ─▶ Page ─▶ shell_lines, blocks("python"), options, links
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import attrs

from tests.bed import needs

MANUAL = needs.REPOSITORY / "kproxy" / "manual"


@attrs.frozen
class Page:
    """One page."""

    path: Path

    @property
    def name(self) -> str:
        """The page's name in test ids."""
        return self.path.stem

    @property
    def text(self) -> str:
        """All of it."""
        return self.path.read_text()

    @property
    def prose(self) -> str:
        """All but its blocks of code."""
        return re.sub(r"^```.*?^```$", "", self.text, flags=re.MULTILINE | re.DOTALL)

    def blocks(self, language: str) -> list[str]:
        """Return its blocks in a language; "" is plain text."""
        found = re.findall(r"^```(\w*)\n(.*?)^```$", self.text, re.MULTILINE | re.DOTALL)
        return [code for each, code in found if each == language]

    def shell_lines(self) -> list[str]:
        """Return the commands in its shell blocks, without comments."""
        blocks = (block.replace("\\\n", " ") for block in self.blocks("sh"))
        lines = (shell_command(line) for block in blocks for line in block.splitlines())
        return [line for line in lines if line]

    def options(self) -> set[str]:
        """Return the options that it names, in commands and in prose."""
        prose = re.findall(r"`[^`]*`", self.prose)
        return set(
            re.findall(r"(?<![\w-])--[a-z][a-z-]*", "\n".join([*prose, *self.shell_lines()]))
        )


def shell_command(line: str) -> str:
    """Return a line of a shell block without its comment."""
    return re.sub(r"(^|\s+)#\s.*$", "", re.sub(r"\s+", " ", line)).strip()


def kproxy_arguments(line: str) -> list[str] | None:
    """Return what a line types behind `kproxy`, up to a pipe or a file; None if it is another
    command."""
    words = shlex.split(line.partition("|")[0].partition(" > ")[0])
    return words[1:] if words[:1] == ["kproxy"] else None


README = Page(needs.REPOSITORY / "README.md")
MANUAL_PAGES = [Page(path) for path in sorted(MANUAL.glob("*.md"))]
PAGES = [README, *MANUAL_PAGES]
