"""The rules at work: which of them decide on a request, what they decide, what they have done.

::

    on_request ─▶ for each rule that can mean the API: match ─▶ ordinal ─▶ trigger ─▶ action
                                                                     latencies add up │
                                       the first other action wins ◀──────────────────┘
    respond ────▶ the winner's change; rules whose match only the response can tell

Invariants: a rule counts every match, whether or not another has won, so that what it decides is
its own; it counts as fired when it has had an effect, and then there is a note of it. Rules change
only here. The rules know no clock, file or chance: time comes as an argument, and what is drawn is
a hash.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from kproxy.exchange import notes
from kproxy.exchange.entries import Note
from kproxy.protocol import codec
from kproxy.proxy.faults import sessions
from kproxy.proxy.faults.errors import PARTITION, TOPIC
from kproxy.proxy.faults.items import elements
from kproxy.proxy.faults.match import Match
from kproxy.proxy.faults.parse import rule_from_words
from kproxy.proxy.faults.prepare import Prepared, no_recordings, prepare
from kproxy.proxy.faults.rule import Rule, RuleError
from kproxy.proxy.faults.timing import AFTER, BEFORE, ReadDelays
from kproxy.proxy.faults.trigger import chance
from kproxy.proxy.faults.view import Hit, Plan, RequestView
from kproxy.proxy.verdicts import RequestContext, RequestVerdict, ResponseVerdict

_SESSION_KEYS = frozenset((TOPIC, PARTITION))


@attrs.define(eq=False)
class Active:
    """A rule at work, and what it has done."""

    fault_id: int
    """Names it in recordings; never given to another."""
    prepared: Prepared
    enabled: bool = True
    matched: int = 0
    fired: int = 0
    since_ns: int | None = None
    """When its time began to run; None: with the first request that it means."""

    @property
    def name(self) -> str:
        """Its name, its own among the rules."""
        return self.prepared.name

    def follows(self, api_key: int) -> bool:
        """Whether it looks at the partitions of a Fetch, so that its session must be followed."""
        if api_key not in sessions.FETCHES:
            return False
        prepared = self.prepared
        return bool(prepared.matcher.keys & _SESSION_KEYS) or (
            prepared.key == "error" and prepared.level_of(api_key) in (TOPIC, PARTITION)
        )

    def means(self, view: RequestView) -> bool:
        """Whether it means the connection and the client of a request, and its filter the rest."""
        prepared, context = self.prepared, view.context
        if prepared.node_ids is not None:
            if context.node_id is None or not prepared.node_ids(context.node_id):
                return False
        if prepared.client_ids is not None:
            client_id = view.arriving.client_id
            if client_id is None or not prepared.client_ids(client_id):
                return False
        return prepared.where is None or prepared.where.matches(view.arriving)


@attrs.frozen
class _Candidates:
    """The rules that can mean one kind of request."""

    rules: tuple[Active, ...]
    follows: bool
    """Whether fetch sessions must be followed for them."""


@attrs.define(eq=False)
class _Decision:
    """What is decided on one exchange."""

    view: RequestView
    before_ns: int = 0
    after_ns: int = 0
    winner: Active | None = None
    plan: Plan | None = None
    deferred: list[Active] = attrs.field(factory=list)
    """The rules whose match the response will tell."""
    fault_ids: list[int] = attrs.field(factory=list)
    notes: list[Note] = attrs.field(factory=list)


class Rules:
    """All fault rules, and the one who asks them: `verdicts.Rules`."""

    def __init__(
        self,
        rules: Iterable[Rule | Mapping[str, Any]] = (),
        *,
        seed: int = 0,
        read_delays: ReadDelays = no_recordings,
        now: int | None = None,
    ) -> None:
        self.seed = seed
        self.generation = 0
        """Counts changes of the rules."""
        self._read_delays = read_delays
        self._ids = itertools.count(1)
        self._active: list[Active] = []
        self._candidates: dict[tuple[int, int], _Candidates] = {}
        self._sessions = sessions.FetchSessions()
        self._unsure: dict[int, list[Active]] = {}
        """Connection → rules that have fired if the response to come has something to change."""
        for rule in rules:
            self.add(rule, now)

    # ── what a connection asks

    def wants(self, api_key: int, api_version: int) -> bool:
        """Whether requests of this kind must be shown to `on_request`, whole."""
        return bool(self._for(api_key, api_version).rules)

    def on_request(self, context: RequestContext, frame: bytes, now: int) -> RequestVerdict | None:
        """Decide on a request; None leaves it and its response alone."""
        view = RequestView(context, frame, now)
        candidates = self._for(view.api_key, view.api_version)
        followed = self._sessions.follow(view) if candidates.follows else sessions.Followed()
        view.session_items = followed.items
        decision = _Decision(view)
        for rule in candidates.rules:
            if not rule.means(view):
                continue
            if followed.unknown and rule.follows(view.api_key):
                answer = ResponseVerdict(frame=sessions.not_found(view))
                return RequestVerdict(frames=(), answer=answer)
            found = view.match(rule.prepared.matcher)
            if found is Match.YES:
                self._decide(decision, rule, rule.prepared.phase_of(view.api_key))
            elif found is Match.MAYBE and _can_wait(rule.prepared, view):
                decision.deferred.append(rule)
        return self._verdict(decision, followed.opens)

    def closed(self, connection: int) -> None:
        """A connection has ended: forget it."""
        self._sessions.closed(connection)
        for rule in self._unsure.pop(connection, ()):
            rule.fired -= 1

    # ── deciding

    def _for(self, api_key: int, api_version: int) -> _Candidates:
        kind = api_key, api_version
        found = self._candidates.get(kind)
        if found is None:
            rules = tuple(r for r in self._active if r.enabled and r.prepared.can_mean(*kind))
            found = _Candidates(rules, any(rule.follows(api_key) for rule in rules))
            if codec.is_known(*kind):  # a peer may make up any number of others
                self._candidates[kind] = found
        return found

    def _decide(self, decision: _Decision, rule: Active, phase: str) -> None:
        """Count a match, and do what follows from it."""
        rule.matched += 1
        prepared, trigger, view = rule.prepared, rule.prepared.trigger, decision.view
        if rule.since_ns is None:
            rule.since_ns = view.now
        if trigger.times is not None and rule.fired >= trigger.times:
            return
        ordinal = rule.matched
        if not trigger.hits(self.seed, rule.name, ordinal):
            return
        if not trigger.is_time(view.now - rule.since_ns):
            return
        hit = Hit(
            view,
            rule.name,
            prepared.value,
            phase,
            prepared.level_of(view.api_key),
            prepared.matcher,
            lambda draw: chance(self.seed, rule.name, ordinal, draw),
        )
        if prepared.key == "latency":
            self._delay(decision, rule, hit)
        elif decision.winner is None:
            plan = prepared.action.do(hit)
            if plan is not None:
                decision.winner, decision.plan = rule, plan
                rule.fired += 1
                if plan.change is None:
                    _account(decision, rule, phase)

    def _delay(self, decision: _Decision, rule: Active, hit: Hit) -> None:
        delay_ns: int = rule.prepared.action.do(hit)
        if hit.phase == BEFORE:
            decision.before_ns += delay_ns
        elif hit.view.no_response:
            return
        else:
            decision.after_ns += delay_ns
        rule.fired += 1
        _account(decision, rule, hit.phase, delay_ms=round(delay_ns / 1e6, 3))

    def _verdict(self, decision: _Decision, opens: bool) -> RequestVerdict | None:
        """Put together what was decided."""
        plan = decision.plan or Plan()
        verdict = plan.verdict
        if verdict.answer is not None:  # the request goes nowhere: all delays are the answer's
            late_ns = decision.before_ns + decision.after_ns
            answer = attrs.evolve(verdict.answer, delay_ns=late_ns)
            verdict = attrs.evolve(verdict, answer=answer)
        else:
            verdict = attrs.evolve(verdict, delay_ns=decision.before_ns)
            if not decision.view.no_response and verdict.ending is None and verdict.frames != ():
                verdict = self._with_response(verdict, decision, opens)
        if verdict.respond is None and not decision.fault_ids:
            return None
        ids, made = tuple(decision.fault_ids), tuple(decision.notes)
        return attrs.evolve(verdict, fault_ids=ids, notes=made)

    def _with_response(
        self, verdict: RequestVerdict, decision: _Decision, opens: bool
    ) -> RequestVerdict:
        """Say what becomes of the broker's response."""
        known = verdict.response or ResponseVerdict()
        known = attrs.evolve(known, delay_ns=known.delay_ns + decision.after_ns)
        change = decision.plan.change if decision.plan is not None else None
        if change is None and not decision.deferred and not opens:
            if known == ResponseVerdict():
                return verdict
            known = attrs.evolve(known, fault_ids=tuple(decision.fault_ids))
            return attrs.evolve(verdict, response=known, respond=lambda frame, now: known)
        if change is not None and decision.winner is not None:
            self._unsure.setdefault(decision.view.context.connection, []).append(decision.winner)

        def respond(frame: bytes, now: int) -> ResponseVerdict | None:
            if opens:
                self._sessions.opened(decision.view, frame)
            return self._respond(decision, known, frame, now)

        return attrs.evolve(verdict, response=None, respond=respond)

    # ── responses

    def _respond(
        self, decision: _Decision, known: ResponseVerdict, frame: bytes, now: int
    ) -> ResponseVerdict | None:
        """Change the broker's response, and have the rules decide that could not before."""
        view = decision.view
        view.now = now
        decision.notes.clear()  # those of the request are in its verdict
        changed = frame
        if decision.winner is not None and decision.plan is not None and decision.plan.change:
            changed, known = self._change(decision, known, frame)
        if decision.deferred:
            changed, known = self._decide_deferred(decision, known, changed)
        if changed is frame and known == ResponseVerdict():
            return None
        return attrs.evolve(
            known,
            frame=None if changed is frame else changed,
            fault_ids=tuple(decision.fault_ids),
            notes=tuple(decision.notes),
        )

    def _change(
        self, decision: _Decision, known: ResponseVerdict, frame: bytes
    ) -> tuple[bytes, ResponseVerdict]:
        """Apply the winner's change; if there is nothing to change, it has not fired."""
        rule, plan, view = decision.winner, decision.plan, decision.view
        assert rule is not None
        assert plan is not None
        assert plan.change is not None
        unsure = self._unsure.get(view.context.connection, [])
        if rule in unsure:
            unsure.remove(rule)
        changed = plan.change(frame)
        if changed is None:
            rule.fired -= 1
            late_ns = decision.after_ns
            return frame, ResponseVerdict(delay_ns=late_ns)
        _account(decision, rule, rule.prepared.phase_of(view.api_key))
        return changed, known

    def _decide_deferred(
        self, decision: _Decision, known: ResponseVerdict, frame: bytes
    ) -> tuple[bytes, ResponseVerdict]:
        """Have the rules decide whose match the response tells."""
        view = decision.view
        response = view.decode_response(frame)
        if response is None or view.shape is None:
            return frame, known
        found = list(elements(response.body, view.shape.response, view.own))
        names = view.context.topic_names
        had_winner = decision.winner is not None
        before_ns = decision.after_ns
        for rule in decision.deferred:
            if any(rule.prepared.matcher.match(item, names) is Match.YES for item in found):
                self._decide(decision, rule, AFTER)
        late_ns = decision.after_ns - before_ns
        if decision.winner is None or had_winner or decision.plan is None:
            return frame, attrs.evolve(known, delay_ns=known.delay_ns + late_ns)
        if decision.plan.verdict.response is not None:
            known = attrs.evolve(
                decision.plan.verdict.response,
                delay_ns=known.delay_ns + decision.plan.verdict.response.delay_ns,
            )
        if decision.plan.change is not None:
            frame, known = self._change(decision, known, frame)
        return frame, attrs.evolve(known, delay_ns=known.delay_ns + late_ns)

    # ── changing the rules

    @property
    def rules(self) -> Sequence[Active]:
        """The rules in their order, which is that in which they decide."""
        return tuple(self._active)

    @property
    def warnings(self) -> list[str]:
        """What seems wrong about the rules, one line each."""
        return [text for rule in self._active for text in rule.prepared.warnings]

    def add(self, rule: Rule | Mapping[str, Any], now: int | None = None) -> Active:
        """Add a rule behind the others; its time runs from now.

        Raises:
            RuleError: it cannot be, or its name is taken.
        """
        prepared = self._prepared(rule, self._active)
        active = Active(next(self._ids), prepared, since_ns=now)
        self._active.append(active)
        self._changed()
        return active

    def change(self, name: str | int, words: Mapping[str, Any]) -> Active:
        """Give a rule other words (None takes one away); its counters go on.

        Raises:
            RuleError: there is no such rule, or the changed one cannot be.
        """
        active = self.find(name)
        said = active.prepared.rule.words | dict(words)
        rule = rule_from_words({key: value for key, value in said.items() if value is not None})
        others = [each for each in self._active if each is not active]
        active.prepared = self._prepared(rule, others)
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

    def enable(self, name: str | int, enabled: bool = True, now: int | None = None) -> None:
        """Let a rule decide, or no longer; its time begins again when it is enabled.

        Raises:
            RuleError: there is no such rule.
        """
        active = self.find(name)
        if enabled and not active.enabled:
            active.since_ns = now
        active.enabled = enabled
        self._changed()

    def reset(self, now: int | None = None) -> None:
        """Set all counters to 0: everything begins again, as decided for the seed."""
        for active in self._active:
            active.matched = active.fired = 0
            active.since_ns = now
        self._unsure.clear()

    def find(self, name: str | int) -> Active:
        """The rule of that name or fault id.

        Raises:
            RuleError: there is none.
        """
        for active in self._active:
            if name in (active.name, active.fault_id):
                return active
        there = ", ".join(repr(active.name) for active in self._active) or "none"
        raise RuleError(f"there is no rule {name!r}; the rules are {there}")

    def _prepared(self, rule: Rule | Mapping[str, Any], others: Sequence[Active]) -> Prepared:
        rule = rule if isinstance(rule, Rule) else rule_from_words(rule)
        prepared = prepare(rule, self._read_delays)
        taken = {active.name for active in others}
        if prepared.name not in taken:
            return prepared
        if rule.name is not None:
            raise RuleError(f"there is already a rule {rule.name!r}", "name")
        numbered = (f"{prepared.name} #{number}" for number in itertools.count(2))
        return attrs.evolve(prepared, name=next(name for name in numbered if name not in taken))

    def _changed(self) -> None:
        self.generation += 1
        self._candidates.clear()
        for api_key in sessions.FETCHES:
            if not any(rule.enabled and rule.follows(api_key) for rule in self._active):
                self._sessions.forget(api_key)


def _can_wait(prepared: Prepared, view: RequestView) -> bool:
    """Whether a rule can still do its work when the response has come."""
    if prepared.phase_of(view.api_key) == AFTER:
        return True
    return prepared.key == "error" and view.shape is not None and view.shape.reads


def _account(decision: _Decision, rule: Active, phase: str, **what: Any) -> None:
    """Note that a rule has fired."""
    context = decision.view.context
    decision.fault_ids.append(rule.fault_id)
    decision.notes.append(
        notes.fault(
            decision.view.now,
            rule.name,
            rule.fault_id,
            context.number,
            context.connection,
            action=rule.prepared.key,
            phase=phase,
            **what,
        )
    )
