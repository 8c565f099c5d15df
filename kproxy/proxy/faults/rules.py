"""The owner of all fault rules: it shows requests to them, and changes them.

::

    on_request ─▶ the rules that can match this API and version ─▶ Decision ─▶ verdict
    add, change, remove, enable, reset ─▶ generation

Invariants: rules change only here, and `wants` with them; a rule sees only requests that it can
match. The rules know no clock, file or chance: time comes as an argument, and random numbers are
hashes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs

from kproxy.exchange import notes
from kproxy.proxy.faults import sessions
from kproxy.proxy.faults.actions import ACTIONS
from kproxy.proxy.faults.active import Active
from kproxy.proxy.faults.decision import Decision
from kproxy.proxy.faults.parse import rule_from_words
from kproxy.proxy.faults.prepare import Actions, prepare
from kproxy.proxy.faults.rule import Rule, RuleError
from kproxy.proxy.faults.values import ReadDelays, no_recordings
from kproxy.proxy.faults.view import RequestView
from kproxy.proxy.verdicts import RequestContext, Verdict
from kproxy.wire.protocol import codec


@attrs.frozen
class _Candidates:
    """The rules that can match one kind of request."""

    rules: tuple[Active, ...]
    need_sessions: bool
    """Fetch sessions must be followed for them."""


class Rules:
    """All fault rules, and the decisions that connections ask for: a `verdicts.Decider`."""

    def __init__(
        self,
        rules: Iterable[Rule | Mapping[str, Any]] = (),
        *,
        seed: int = 0,
        read_delays: ReadDelays = no_recordings,
        now: int | None = None,
        actions: Actions = ACTIONS,
    ) -> None:
        self.actions = actions
        """The actions that rules may have."""
        self.seed = seed
        self.generation = 0
        """Counts changes of the rules."""
        self.read_delays = read_delays
        self._ids = itertools.count(1)
        self._active: list[Active] = []
        self._candidates: dict[tuple[int, int], _Candidates] = {}
        self._sessions = sessions.FetchSessions()
        self._provisional: dict[int, list[Active]] = {}
        """Connection → rules that count as fired, which a response still has to confirm."""
        for rule in rules:
            self.add(rule, now)

    # ── decisions, for connections

    def wants(self, api_key: int, api_version: int) -> bool:
        """Return whether requests of this kind must be shown to `on_request`, whole."""
        return bool(self._candidates_for(api_key, api_version).rules)

    def on_request(self, context: RequestContext, frame: bytes, now: int) -> Verdict | None:
        """Decide on a request; None leaves it and its response alone."""
        view = RequestView(context, frame, now)
        candidates = self._candidates_for(view.api_key, view.api_version)
        followed = self._sessions.follow(view) if candidates.need_sessions else sessions.Followed()
        view.session_items = followed.items
        on_response = partial(self._sessions.opened, view) if followed.opens else None
        provisional = self._provisional.setdefault(context.connection, [])
        decision = Decision(view, self.seed, provisional, on_response)
        matching = [rule for rule in candidates.rules if rule.matches_header(view)]
        need_sessions = [rule for rule in matching if rule.needs_sessions(view.api_key)]
        if followed.unknown and need_sessions:
            # Before any of them decides: its decision would be counted, and not be carried out.
            return _refuse_session(view, need_sessions[0])
        for rule in matching:
            decision.consider(rule)
        return decision.verdict()

    def closed(self, connection: int) -> None:
        """Forget a connection, which has ended."""
        self._sessions.closed(connection)
        for rule in self._active:
            rule.forget(connection)
        for rule in self._provisional.pop(connection, ()):
            rule.take_back()

    def _candidates_for(self, api_key: int, api_version: int) -> _Candidates:
        kind = api_key, api_version
        found = self._candidates.get(kind)
        if found is None:
            rules = tuple(r for r in self._active if r.enabled and r.can_match(*kind))
            found = _Candidates(rules, any(rule.needs_sessions(api_key) for rule in rules))
            if codec.is_known(*kind):  # a peer may make up any number of others
                self._candidates[kind] = found
        return found

    # ── changing the rules

    @property
    def rules(self) -> Sequence[Active]:
        """The rules in the order in which they decide."""
        return tuple(self._active)

    @property
    def warnings(self) -> list[str]:
        """Likely mistakes in the rules, one line each."""
        return [text for rule in self._active for text in rule.warnings]

    def add(self, rule: Rule | Mapping[str, Any], now: int | None = None) -> Active:
        """Add a rule behind the others; its time runs from now.

        Raises:
            RuleError: the rule is wrong, or its name is taken.
        """
        active = self._prepare(rule, self._active)
        active.begin(next(self._ids), now)
        self._active.append(active)
        self._changed()
        return active

    def change(self, name: str | int, words: Mapping[str, Any]) -> Active:
        """Give a rule other words (None takes one away); its counters stay.

        Raises:
            RuleError: there is no such rule, or the changed one is wrong.
        """
        active = self.find(name)
        others = [each for each in self._active if each is not active]
        active.become(self._prepare({**active.rule.words, **words}, others))
        self._changed()
        return active

    def remove(self, name: str | int) -> None:
        """Take a rule away.

        Raises:
            RuleError: there is no such rule.
        """
        self._active.remove(self.find(name))
        self._changed()

    def clear(self) -> None:
        """Take all rules away."""
        self._active.clear()
        self._changed()

    def replace(self, rules: Iterable[Rule], now: int | None = None) -> None:
        """Have these rules and no others. One that has the name of a former rule is that rule, with
        its counters.

        Raises:
            RuleError: one is wrong; the rules stay as they were.
        """
        settings = {"read_delays": self.read_delays, "actions": self.actions}
        new = Rules(rules, **settings).rules
        before = {active.name: active for active in self._active}
        for active in new:
            if active.name in before:
                before[active.name].become(active)
            else:
                active.begin(next(self._ids), now)
        self._active = [before.get(active.name, active) for active in new]
        self._changed()

    def enable(self, name: str | int, enabled: bool = True, now: int | None = None) -> None:
        """Enable or disable a rule; its time begins again when it is enabled.

        Raises:
            RuleError: there is no such rule.
        """
        self.find(name).enable(enabled, now)
        self._changed()

    def reset(self, now: int | None = None) -> None:
        """Set all counters to 0: the same decisions begin again."""
        for active in self._active:
            active.reset(now)
        for provisional in self._provisional.values():
            provisional.clear()

    def find(self, name: str | int) -> Active:
        """Return the rule of that name or fault id.

        Raises:
            RuleError: there is none.
        """
        for active in self._active:
            if name in (active.name, active.fault_id):
                return active
        there = ", ".join(repr(active.name) for active in self._active) or "none"
        raise RuleError(f"there is no rule {name!r}; the rules are {there}")

    def _prepare(self, rule: Rule | Mapping[str, Any], others: Sequence[Active]) -> Active:
        rule = rule if isinstance(rule, Rule) else rule_from_words(rule, self.actions)
        active = prepare(rule, self.read_delays, self.actions)
        taken = {other.name for other in others}
        if active.name not in taken:
            return active
        if "name" in rule.words:
            raise RuleError(f"there is already a rule {active.name!r}", "name")
        numbered = (f"{active.name} #{number}" for number in itertools.count(2))
        return attrs.evolve(active, name=next(name for name in numbered if name not in taken))

    def _changed(self) -> None:
        self.generation += 1
        self._candidates.clear()
        for api_key in sessions.FETCHES:
            if not any(rule.enabled and rule.needs_sessions(api_key) for rule in self._active):
                self._sessions.forget(api_key)


def _refuse_session(view: RequestView, rule: Active) -> Verdict:
    """Have the client begin a new fetch session, because a rule must know the partitions in it, and
    this one began before the rule. The rule has not fired, but a note in the recording names it."""
    context, ids = view.context, (rule.fault_id,)
    about = rule.name, rule.fault_id, context.number, context.connection
    note = notes.session_refused(view.now, *about)
    refusal = sessions.not_found_response(view)
    ours = None if refusal is None else Verdict(frames=(refusal,), fault_ids=ids)
    return Verdict(frames=(), response=ours, fault_ids=ids, notes=(note,))
