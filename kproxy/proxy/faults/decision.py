"""The decision of the rules on one exchange, and the verdicts that follow from it.

::

    each rule that matches the header ─▶ consider ─▶ ordinal ─▶ hit? ─▶ action
                                          delays add up, the first other action wins
    verdict ──▶ Verdict
    _respond ─▶ the winner's change, rules that match by the response ─▶ Verdict

Invariants: a rule counts each match, whether or not another has won, so that its decisions are its
own. It has fired, and a note says so, when it has an effect: at once, or when the response comes,
where only that shows the effect; until then it has fired provisionally (`provisional`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from kproxy.exchange import notes
from kproxy.exchange.entries import Note
from kproxy.proxy.faults.action import AFTER, BEFORE, Hit, Plan
from kproxy.proxy.faults.active import Active, chance
from kproxy.proxy.faults.items import elements
from kproxy.proxy.faults.match import Match
from kproxy.proxy.faults.view import RequestView
from kproxy.proxy.verdicts import NOTHING, Verdict


@attrs.define(eq=False)
class Decision:
    """The decision on one exchange, in the making."""

    view: RequestView
    seed: int
    provisional: list[Active]
    """The connection's rules that count as fired, which a response still has to confirm."""
    on_response: Callable[[bytes], None] | None = None
    """A callback for the response, whatever the decision."""

    _before_ns: int = attrs.field(default=0, init=False)
    _after_ns: int = attrs.field(default=0, init=False)
    _winner: Active | None = attrs.field(default=None, init=False)
    _plan: Plan = attrs.field(factory=Plan, init=False)
    """The winner's plan."""
    _phase: str = attrs.field(default=BEFORE, init=False)
    """The phase in which the winner acts."""
    _deferred: list[Active] = attrs.field(factory=list, init=False)
    """The rules that match, or not, by the response."""
    _fault_ids: list[int] = attrs.field(factory=list, init=False)
    _notes: list[Note] = attrs.field(factory=list, init=False)

    # ── rules

    def consider(self, rule: Active) -> None:
        """Have a rule decide that matches the request's header."""
        found = self.view.match(rule.matcher)
        if found is Match.YES:
            self._decide(rule, rule.phase_of(self.view.api_key))
        elif found is Match.MAYBE and self._can_wait(rule):
            self._deferred.append(rule)

    def _can_wait(self, rule: Active) -> bool:
        """Return whether a rule can still act when the response has come."""
        if rule.phase_of(self.view.api_key) == AFTER:
            return True
        shape = self.view.shape
        return rule.action.waits_on_reads and shape is not None and shape.reads

    def _decide(self, rule: Active, phase: str) -> None:
        """Count a match of a rule; if it hits, plan its action."""
        view, action = self.view, rule.action
        ordinal = rule.count_match(view.now)
        if not rule.hits(self.seed, ordinal, view.now):
            return
        if self._winner is not None and not action.adds_up:
            return
        hit = Hit(
            view,
            rule.name,
            rule.value,
            phase,
            rule.level_of(view.api_key),
            rule.matcher,
            lambda draw: chance(self.seed, rule.name, ordinal, draw),
        )
        plan = action.do(hit)
        if plan is None:
            return
        rule.fire()
        if action.adds_up:
            self._add_delays(plan.verdict)
        else:
            self._winner, self._plan, self._phase = rule, plan, phase
        if action.adds_up or plan.is_certain:
            self._note_fired(rule, phase, plan)
        else:
            self.provisional.append(rule)

    def _add_delays(self, verdict: Verdict) -> None:
        """Add the delays of a verdict to those of the winner."""
        self._before_ns += verdict.delay_ns
        if isinstance(verdict.response, Verdict):
            self._after_ns += verdict.response.delay_ns

    def _note_fired(self, rule: Active, phase: str, plan: Plan) -> None:
        """Add the note that a rule has fired."""
        context = self.view.context
        rule.count_again(self.view)
        self._fault_ids.append(rule.fault_id)
        about = rule.name, rule.fault_id, context.number, context.connection
        what = {"action": rule.key, "phase": phase, **plan.about}
        self._notes.append(notes.fault(self.view.now, *about, **what))

    # ── verdicts

    def verdict(self) -> Verdict | None:
        """Return the verdict when all rules were considered; None: leave the exchange alone."""
        verdict, ids = self._plan.verdict, tuple(self._fault_ids)
        changes: dict[str, Any] = {"fault_ids": ids, "notes": tuple(self._notes)}
        if (ours := verdict.own_response) is not None:
            # The request goes nowhere: all delays are the response's.
            late_ns = self._before_ns + self._after_ns
            late_ns += ours.delay_ns
            changes["response"] = attrs.evolve(ours, delay_ns=late_ns, fault_ids=ids)
            return attrs.evolve(verdict, **changes)
        changes["delay_ns"] = verdict.delay_ns + self._before_ns
        if not self.view.no_response and verdict.ending is None and verdict.frames != ():
            if self._plan.change is not None or self._deferred or self.on_response is not None:
                changes["response"] = self._respond
            elif verdict.response is not None or self._after_ns:
                changes["response"] = self._response_verdict(fault_ids=ids)
        if not ids and "response" not in changes:
            return None
        return attrs.evolve(verdict, **changes)

    def _response_verdict(self, **changes: Any) -> Verdict:
        """Return the winner's verdict on the response, with the latencies of all rules added."""
        verdict = self._plan.verdict.response
        if not isinstance(verdict, Verdict):
            verdict = NOTHING
        return attrs.evolve(verdict, delay_ns=verdict.delay_ns + self._after_ns, **changes)

    # ── responses

    def _respond(self, frame: bytes, now: int) -> Verdict | None:
        """Change the broker's response, and have the deferred rules decide."""
        self.view.now = now
        self._notes.clear()  # the request's notes are in its verdict
        if self.on_response is not None:
            self.on_response(frame)
        changed = None
        if self._plan.change is not None:
            changed = self._change(frame)
        elif self._deferred and self._winner is None:
            changed = self._consider_deferred(frame)
        if changed is None and self._response_verdict() == NOTHING:
            return None
        ids, made = tuple(self._fault_ids), tuple(self._notes)
        changes: dict[str, Any] = {"fault_ids": ids, "notes": made}
        if changed is not None:
            changes["frames"] = (changed,)
        return self._response_verdict(**changes)

    def _change(self, frame: bytes) -> bytes | None:
        """Apply the winner's change; if there is nothing to change, it has not fired."""
        rule, change = self._winner, self._plan.change
        assert rule is not None
        assert change is not None
        changed = change(frame)
        if self._plan.is_certain:
            return changed
        held = rule in self.provisional  # else the counters were reset meanwhile
        if held:
            self.provisional.remove(rule)
        if changed is None:
            if held:
                rule.take_back()
            self._plan = Plan()
            return None
        if not held:
            rule.fire()
        self._note_fired(rule, self._phase, self._plan)
        return changed

    def _consider_deferred(self, frame: bytes) -> bytes | None:
        """Have the rules decide that match by the response."""
        view = self.view
        response = view.decode_response(frame)
        if response is None or view.shape is None:
            return None
        found = list(elements(response.body, view.shape.response, view.own))
        names = view.context.topic_names
        for rule in self._deferred:
            if any(rule.matcher.match(item, names) is Match.YES for item in found):
                self._decide(rule, AFTER)
        return None if self._plan.change is None else self._change(frame)
