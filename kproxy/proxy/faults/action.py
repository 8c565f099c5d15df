"""An action: what it gets (`Hit`), what it gives (`Plan`), what the table says of it (`Action`).

::

    a rule that hits an exchange ─▶ Hit ─▶ Action.do ─▶ Plan ─▶ the verdict on the exchange

The defaults of `Action` are those of a plain action; `actions` is the table of all, and says how to
add one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from kproxy.proxy.faults.items import Item, Keys
from kproxy.proxy.faults.match import Matcher
from kproxy.proxy.faults.view import RequestView
from kproxy.proxy.verdicts import Verdict

BEFORE = "before"
AFTER = "after"
PHASES = (BEFORE, AFTER)

Change = Callable[[bytes], bytes | None]
"""The broker's response → what the client gets in its place; None: nothing was to be changed."""


@attrs.frozen
class Hit:
    """One exchange that a rule hits: all that its action has to know."""

    view: RequestView
    name: str
    """The rule's."""
    value: Any
    """What the rule says behind the action's key, parsed."""
    phase: str
    level: str | None
    matcher: Matcher
    draw: Callable[[int], float]
    """Numbers from 0 up to 1 that belong to this hit: `draw(1)`, `draw(2)` …"""

    @functools.cached_property
    def items(self) -> list[Item]:
        """The items that the rule means."""
        return self.view.matched(self.matcher)

    def means(self, keys: Keys) -> bool:
        """Whether the rule means an element of the response that has these keys."""
        return self.matcher.means(self.view.own | keys, self.view.context.topic_names)


@attrs.frozen
class Plan:
    """What an action does to one exchange; by default nothing."""

    verdict: Verdict = attrs.field(factory=Verdict)
    """Without fault ids and notes."""
    change: Change | None = None
    """What it makes of the response, where it needs to see it."""
    about: Mapping[str, Any] = attrs.field(factory=dict)
    """What the note in the recording says beside the action and its phase."""

    @property
    def is_certain(self) -> bool:
        """Whether it is done with the request; else only if the response has what it changes."""
        return self.change is None or self.verdict.frames is not None


@attrs.frozen
class PhaseByApi:
    """The phase of an action for which the API decides it, and no rule."""

    of: Callable[[int], str]
    """API key → phase."""
    named: str
    """As an error calls it."""


@attrs.frozen
class Levels:
    """Where in a response an action puts its code: at the level of the rule, or the usual one."""

    usual: Callable[[int, Any], str | None]
    """API key, value → the level where the rule names none; None: where the API has its codes."""
    has_place: Callable[[int, int, str | None, frozenset[str]], bool]
    """API key, version, level, the rule's keys of items → whether there is a place for the code."""
    no_place: Callable[[str, Any, str], str]
    """API, value, level → an error says that there is none."""


def every_version(api_key: int, api_version: int) -> bool:
    """Work for all versions of all APIs."""
    return True


@attrs.frozen
class Action:
    """What the table says of an action."""

    do: Callable[[Hit], Plan | None]
    """Plans it for one exchange; None: there is nothing to do. Its docstring is the help."""
    parse: Callable[..., Any]
    """Reads the value behind its key; ValueError says what would be one."""
    example: str
    """Of a rule that has it."""
    phases: tuple[str, ...] | PhaseByApi = PHASES
    """Those in which it works, the default first."""
    apis: frozenset[int] | None = None
    """The APIs for which it works, and those of a rule that names none; None: all."""
    apis_of: Callable[[Any], frozenset[int]] | None = None
    """Its value → the APIs of a rule that names none; ValueError: the rule must name some."""
    can: Callable[[int, int], bool] = every_version
    """API key, version → whether it works for that version."""
    known_only: bool = False
    """Whether it must be able to read the messages."""
    levels: Levels | None = None
    """Of one that puts codes into responses."""
    adds_up: bool = False
    """Whether it acts beside others; else only the first rule that hits does. Its plan may delay,
    and nothing else."""
    waits_on_reads: bool = False
    """Whether, in phase before, it may wait for the response to a request that changes nothing."""
    reads_recordings: bool = False
    """Whether `parse` takes, behind the value, who reads the latencies of a recording."""
    warn: Callable[[int, Any], str | None] | None = None
    """API key, value → a warning, of a rule that names that API."""

    @property
    def help(self) -> str:
        """What it does, for people."""
        return inspect.getdoc(self.do) or ""
