"""An action: its input (`Hit`), its output (`Plan`), and its line in the table (`Action`).

::

    a rule that hits an exchange ─▶ Hit ─▶ Action.do ─▶ Plan ─▶ the verdict on the exchange

The defaults of `Action` are those of a plain action; `actions` has the table of all, and explains
how to add one.
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
from kproxy.wire.protocol import codec
from kproxy.wire.protocol.codec import Response

BEFORE = "before"
AFTER = "after"
PHASES = (BEFORE, AFTER)

Change = Callable[[bytes], bytes | None]
"""The broker's response → the client's in its place; None: there was nothing to change."""


@attrs.frozen
class Hit:
    """One exchange that a rule hits, with the facts for its action."""

    view: RequestView
    name: str
    """The name of the rule."""
    value: Any
    """The parsed value of the action's key in the rule."""
    phase: str
    level: str | None
    matcher: Matcher
    draw: Callable[[int], float]
    """Numbers from 0 up to 1 that belong to this hit: `draw(1)`, `draw(2)` …"""

    @functools.cached_property
    def items(self) -> list[Item]:
        """The items that the rule matches."""
        return self.view.matching_items(self.matcher)

    def edit_response(self, put: Callable[[Response], bool]) -> Change:
        """Return a change of the response by `put`, which returns whether it has changed it; what
        cannot be decoded stays as it is."""
        view = self.view

        def change(frame: bytes) -> bytes | None:
            response = view.decode_response(frame)
            if response is None or not put(response):
                return None
            return codec.encode_response(response, view.api_key)

        return change

    def matches(self, keys: Keys) -> bool:
        """Return whether the rule matches an element of the response that has these keys."""
        return self.matcher.matches(self.view.own | keys, self.view.context.topic_names)


@attrs.frozen
class Plan:
    """The effects of an action on one exchange; by default none."""

    verdict: Verdict = attrs.field(factory=Verdict)
    """The verdict on the request, still without fault ids and notes."""
    change: Change | None = None
    """The change of the response, for an action that needs to see it."""
    about: Mapping[str, Any] = attrs.field(factory=dict)
    """Facts for the note in the recording, besides the action and its phase."""

    @property
    def is_certain(self) -> bool:
        """True if it takes effect with the request; else the response decides whether it does."""
        return self.change is None or self.verdict.frames is not None


@attrs.frozen
class PhaseByApi:
    """The phase of an action that follows from the API, and not from the rule."""

    of: Callable[[int], str]
    """API key → phase."""
    named: str
    """The name of that phase in errors."""


@attrs.frozen
class Levels:
    """The level of a response at which an action puts its code: the rule's, or the usual one."""

    usual: Callable[[int, Any], str | None]
    """API key, value → the default level; None: the level at which the API has its codes."""
    has_place: Callable[[int, int, str | None, frozenset[str]], bool]
    """API key, version, level, the rule's keys of items → True if there is a place for the code."""
    no_place: Callable[[str, Any, str], str]
    """API, value, level → the text of the error that there is none."""


def every_version(api_key: int, api_version: int) -> bool:
    """Work for all versions of all APIs."""
    return True


@attrs.frozen
class Action:
    """An action as the table has it."""

    do: Callable[[Hit], Plan | None]
    """The plan of the action for one exchange; None: there is nothing to do. Its docstring is the
    help."""
    parse: Callable[..., Any]
    """The parser of the value behind its key; its ValueError says what is allowed."""
    example: str
    """A rule with this action."""
    phases: tuple[str, ...] | PhaseByApi = PHASES
    """The phases in which it works, the default first."""
    apis: frozenset[int] | None = None
    """The APIs for which it works, also the default of a rule that names none; None: all."""
    apis_of: Callable[[Any], frozenset[int]] | None = None
    """The value → the APIs of a rule that names none; ValueError: the rule must name some."""
    can: Callable[[int, int], bool] = every_version
    """API key, version → True if it works for that version."""
    known_only: bool = False
    """It works only for messages that kproxy can read."""
    levels: Levels | None = None
    """The levels of an action that puts codes into responses."""
    adds_up: bool = False
    """It acts in addition to other rules, and its plan may only delay. Of other actions only the
    first that hits acts."""
    waits_on_reads: bool = False
    """In phase before, it may wait for the response to a request that changes nothing."""
    reads_recordings: bool = False
    """`parse` takes, behind the value, the function that reads the latencies of a recording."""
    warn: Callable[[int, Any], str | None] | None = None
    """API key, value → a warning about a rule that names that API; None: none."""

    @property
    def help(self) -> str:
        """The help text."""
        return inspect.getdoc(self.do) or ""
