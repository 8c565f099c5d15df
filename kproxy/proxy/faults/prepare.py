"""Preparation: from the words of a rule to the rule at work, checked and compiled.

Invariant: this is the only place where a rule is checked, wherever it comes from. A mistake is a
`RuleError` that names the key and what is allowed. All differences between actions are in their
table.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kproxy.exchange.filter import Filter, Need
from kproxy.exchange.filter import parse as parse_filter
from kproxy.printable import printable
from kproxy.proxy.faults.action import PHASES, Action, PhaseByApi
from kproxy.proxy.faults.actions import ACTIONS
from kproxy.proxy.faults.active import Active
from kproxy.proxy.faults.apis import parse_apis, suggest
from kproxy.proxy.faults.errors import LEVELS, REQUEST
from kproxy.proxy.faults.items import shape
from kproxy.proxy.faults.match import Matcher, item_names, names, numbers
from kproxy.proxy.faults.rule import KEYS, Rule, RuleError
from kproxy.proxy.faults.values import (
    INT16_MAX,
    INT32_MAX,
    SPAN_MAX,
    ReadDelays,
    duration_ns,
    no_recordings,
    parse_count,
    parse_probability,
    positive_ns,
)
from kproxy.wire.protocol import schema
from kproxy.wire.protocol.schema import api_name

Actions = Mapping[str, Action]
"""Key in a rule → action."""

_ARRIVING = (Need.CONNECTION, Need.HEADER, Need.REQUEST)
"""The terms of a filter that need no response."""
_ITEMS = {
    "topic": item_names,
    "partition": functools.partial(numbers, most=INT32_MAX, least=~INT32_MAX),
    "group": item_names,
    "transactional_id": item_names,
}
"""The keys that look into bodies → the parser of the value."""
_WHEN: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "probability": ("probability", parse_probability),
    "skip": ("skip", functools.partial(parse_count, least=0)),
    "every": ("every", parse_count),
    "times": ("times", parse_count),
    "start_after": ("start_after_ns", functools.partial(duration_ns, most=SPAN_MAX)),
    "duration": ("duration_ns", functools.partial(positive_ns, most=SPAN_MAX)),
}
"""The keys that select the matches to hit → the field of `Active`, the parser of the value."""


def prepare(
    rule: Rule, read_delays: ReadDelays = no_recordings, actions: Actions = ACTIONS
) -> Active:
    """Check a rule and compile it.

    Raises:
        RuleError: the rule is wrong.
    """
    check_keys(rule.words, actions)
    name = _name(rule)
    key = _action_key(rule, actions)
    action = actions[key]
    more = (read_delays,) if action.reads_recordings else ()
    value = _parse(rule, key, lambda text: action.parse(text, *more))
    items = [(each, _parse(rule, each, parse)) for each, parse in _ITEMS.items()]
    when = {field: _parse(rule, each, parse) for each, (field, parse) in _WHEN.items()}
    api_keys = _api_keys(rule, key, action, value)
    active = Active(
        rule=rule,
        name=name,
        warnings=_warnings(rule, name, action, value, api_keys or ()),
        key=key,
        action=action,
        value=value,
        phase=_phase(rule, key, action),
        level=_level(rule, key, actions),
        api_keys=api_keys,
        versions=_parse(rule, "api_version", functools.partial(numbers, most=INT16_MAX)),
        client_ids=_parse(rule, "client_id", names),
        node_ids=_parse(rule, "node_id", functools.partial(numbers, most=INT32_MAX)),
        where=_parse(rule, "where", _parse_filter),
        matcher=Matcher(tuple((each, accepts) for each, accepts in items if accepts is not None)),
        **{field: read for field, read in when.items() if read is not None},
    )
    _check_reach(active)
    return active


def check_keys(words: Iterable[str], actions: Actions = ACTIONS) -> None:
    """Refuse words that are no keys of a rule.

    Raises:
        RuleError: one is none.
    """
    known = [*KEYS, *actions]
    for key in words:
        if key not in known:
            raise RuleError(f"this is no key of a rule{suggest(key, known)}", str(key))


def _name(rule: Rule) -> str:
    for key, value in rule.words.items():
        try:
            text = str(value)
        except (ValueError, RecursionError):
            raise RuleError("it is too large to be written", key) from None
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise RuleError("it has half a surrogate pair, which is no character", key)
    name = rule.words.get("name")
    if name is None:
        return str(rule)
    if not isinstance(name, str) or not name:
        raise RuleError(f"{name!r} is not a name", "name")
    return name


def _parse(rule: Rule, key: str, parse: Callable[[Any], Any]) -> Any:
    """Parse the value of a key; None where the rule lacks the key."""
    value = rule.words.get(key)
    if value is None:
        return None
    try:
        return parse(value)
    except ValueError as error:
        raise RuleError(str(error), key) from None


def _parse_filter(value: Any) -> Filter:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a filter")
    found = parse_filter(value)
    found.refuse_beyond(_ARRIVING, "a rule")
    if found.relative:
        raise ValueError(
            "no recording begins here: say start_after and duration instead of time:+…"
        )
    return found


# ── its action ───────────────────────────────────────────────────────────────────────────────


def _action_key(rule: Rule, actions: Actions) -> str:
    keys = [key for key in actions if key in rule.words]
    if not keys:
        raise RuleError(f"the rule has no action; one of {', '.join(actions)} says what happens")
    if len(keys) > 1:
        raise RuleError(f"a rule has one action, this one has {' and '.join(keys)}", keys[1])
    return keys[0]


def _phase(rule: Rule, key: str, action: Action) -> str | None:
    phase, phases = _one_of(rule, "phase", PHASES), action.phases
    if phase is None or (not isinstance(phases, PhaseByApi) and phase in phases):
        return phase
    works = phases.named if isinstance(phases, PhaseByApi) else repr(phases[0])
    raise RuleError(f"{key} has no phase {phase!r}, only {works}", "phase")


def _level(rule: Rule, key: str, actions: Actions) -> str | None:
    level = _one_of(rule, "level", LEVELS)
    if level is not None and actions[key].levels is None:
        having = [each for each, action in actions.items() if action.levels is not None]
        raise RuleError(f"{key} has no levels, only {' and '.join(having)} has", "level")
    return level


def _one_of(rule: Rule, key: str, allowed: Sequence[str]) -> str | None:
    value = rule.words.get(key)
    if value is not None and value not in allowed:
        raise RuleError(f"{value!r} is not one of {', '.join(allowed)}", key)
    return value


def _api_keys(rule: Rule, key: str, action: Action, value: Any) -> frozenset[int] | None:
    if "api" not in rule.words:
        try:
            return action.apis if action.apis_of is None else action.apis_of(value)
        except ValueError as error:
            raise RuleError(str(error), "api") from None
    found = _parse(rule, "api", parse_apis)
    if action.apis is not None and found - action.apis:
        wrong, right = sorted(found - action.apis), sorted(action.apis)
        raise RuleError(
            f"{key} does nothing to {_apis(wrong)}; it works for {_apis(right)}",
            "api",
        )
    return found


def _apis(keys: Sequence[int]) -> str:
    return ", ".join(map(api_name, keys))


def _warnings(
    rule: Rule, name: str, action: Action, value: Any, api_keys: Iterable[int]
) -> tuple[str, ...]:
    if action.warn is None or "api" not in rule.words:
        return ()
    found = (action.warn(api_key, value) for api_key in sorted(api_keys))
    return tuple(printable(f"{name}: {text}") for text in found if text is not None)


# ── what a rule can reach ────────────────────────────────────────────────────────────────────


def _check_reach(active: Active) -> None:
    """Refuse a rule that names an API on which it can never act.

    Raises:
        RuleError: it can reach nothing.
    """
    if "api" not in active.rule.words:
        _check_any_reach(active)
        return
    for api_key in sorted(active.api_keys or ()):
        versions = _versions(api_key)
        if not versions or any(active.can_match(api_key, version) for version in versions):
            if versions or not (active.matcher.terms or active.action.known_only):
                continue
            raise RuleError(f"kproxy cannot read API {api_key}, and the rule looks into it", "api")
        raise _out_of_reach(active, api_key, versions)


def _check_any_reach(active: Active) -> None:
    kinds = schema.known_versions()
    if any(active.can_match(*kind) for kind in kinds):
        return
    accepts = active.versions
    known = [version for key, version in kinds if active.api_keys is None or key in active.api_keys]
    if accepts is not None and not any(map(accepts, known)):
        text = f"no API that the rule means has such a version, they go from 0 to {max(known)}"
        raise RuleError(text, "api_version")
    raise RuleError(f"no API has what the rule names: {active.rule}")


def _versions(api_key: int) -> Sequence[int]:
    message = schema.message(api_key, schema.RESPONSE)
    return () if message is None else message.versions


def _out_of_reach(active: Active, api_key: int, versions: Sequence[int]) -> RuleError:
    name, accepts, levels = api_name(api_key), active.versions, active.action.levels
    if accepts is not None and not any(map(accepts, versions)):
        return RuleError(f"{name} has versions {versions[0]} to {versions[-1]}", "api_version")
    known = [found for version in versions if (found := shape(api_key, version)) is not None]
    for key in sorted(active.matcher.keys):
        if not any(key in found.request_keys | found.open_keys for found in known):
            return RuleError(f"{name} names no {key}", key)
    if levels is not None:
        text = levels.no_place(name, active.value, active.level or REQUEST)
        return RuleError(text, "level" if active.level else active.key)
    return RuleError(f"{name} has no version for which {active.key} works", active.key)
