"""A rule checked and compiled, ready to decide.

Invariant: this is the only place where a rule is checked, wherever it comes from. A mistake is a
`RuleError` that names the key and what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from kproxy.exchange.filter import Filter, Need
from kproxy.exchange.filter import parse as parse_filter
from kproxy.protocol import error_name, schema
from kproxy.protocol.schema import api_name
from kproxy.proxy.faults import damage, failing, legal
from kproxy.proxy.faults.actions import ACTIONS, PHASES, Action
from kproxy.proxy.faults.apis import meant, parse_apis
from kproxy.proxy.faults.errors import LEVELS
from kproxy.proxy.faults.items import shape
from kproxy.proxy.faults.match import ITEM_KEYS, Accepts, Matcher, names, numbers
from kproxy.proxy.faults.rule import Rule, RuleError
from kproxy.proxy.faults.timing import ReadDelays, duration_ns, positive_ns
from kproxy.proxy.faults.trigger import Trigger

_ARRIVING = (Need.CONNECTION, Need.HEADER, Need.REQUEST)
"""What a filter can look at before there is a response."""


@attrs.frozen
class Prepared:
    """A rule, checked and ready to decide."""

    rule: Rule
    name: str
    key: str
    """The action's."""
    action: Action
    value: Any
    phase: str | None
    level: str | None
    api_keys: frozenset[int] | None
    """The APIs that it means; None: all for which its action works."""
    versions: Accepts | None
    client_ids: Accepts | None
    node_ids: Accepts | None
    where: Filter | None
    matcher: Matcher
    trigger: Trigger
    warnings: tuple[str, ...]

    def phase_of(self, api_key: int) -> str:
        """When it acts on an API."""
        if self.key == "corrupt":
            return damage.corrupt_phase(api_key)
        return self.phase or self.action.phases[0]

    def level_of(self, api_key: int) -> str | None:
        """Where it puts an error in an API; None: where that API usually has them."""
        if self.level is None and self.key == "error":
            return failing.level_of(api_key, self.value)
        return "request" if self.key == "rebootstrap" else self.level

    def can_mean(self, api_key: int, api_version: int) -> bool:
        """Whether requests of this kind can be meant at all."""
        if self.api_keys is not None and api_key not in self.api_keys:
            return False
        if self.versions is not None and not self.versions(api_version):
            return False
        if self.matcher.terms or self.action.known_only:
            known = shape(api_key, api_version)
            if known is None or not self.matcher.keys <= known.asked | known.open_keys:
                return False
        return self.action.can(api_key, api_version, self.level_of(api_key), self.matcher.keys)


def no_recordings(name: str) -> Sequence[int]:
    """Read no recording: where there are no files.

    Raises:
        ValueError: always.
    """
    raise ValueError(f"the latencies of {name} cannot be read here")


def prepare(rule: Rule, read_delays: ReadDelays = no_recordings) -> Prepared:
    """Check a rule and compile it.

    Raises:
        RuleError: it cannot be.
    """
    key, value = _action(rule, read_delays)
    action = ACTIONS[key]
    found = {name: _parsed(rule, name, names) for name in ("topic", "group", "transactional_id")}
    found["partition"] = _parsed(rule, "partition", numbers)
    phase = _one_of(rule, "phase", PHASES)
    if phase is not None and (phase not in action.phases or key == "corrupt"):
        works = "the way of the records" if key == "corrupt" else repr(action.phases[0])
        raise RuleError(f"{key} has no phase {phase!r}, only {works}", "phase")
    level = _one_of(rule, "level", LEVELS)
    if level is not None and not action.has_levels:
        raise RuleError(f"{key} has no levels, only error has", "level")
    prepared = Prepared(
        rule=rule,
        name=_name(rule),
        key=key,
        action=action,
        value=value,
        phase=phase,
        level=level,
        api_keys=_api_keys(rule, key, value),
        versions=_parsed(rule, "api_version", numbers),
        client_ids=_parsed(rule, "client_id", names),
        node_ids=_parsed(rule, "node_id", numbers),
        where=_parsed(rule, "where", _parse_filter),
        matcher=Matcher(tuple((k, found[k]) for k in ITEM_KEYS if found[k] is not None)),
        trigger=_trigger(rule),
        warnings=(),
    )
    _check_reach(prepared)
    return attrs.evolve(prepared, warnings=_warnings(prepared))


def _name(rule: Rule) -> str:
    for key, value in rule.words.items():
        if any("\ud800" <= character <= "\udfff" for character in str(value)):
            raise RuleError("it has half a surrogate pair, which is no character", key)
    if rule.name is None:
        return str(rule)
    if not isinstance(rule.name, str) or not rule.name:
        raise RuleError(f"{rule.name!r} is not a name", "name")
    return rule.name


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


def _action(rule: Rule, read_delays: ReadDelays) -> tuple[str, Any]:
    keys = [key for key in ACTIONS if getattr(rule, key) is not None]
    if not keys:
        raise RuleError(f"the rule has no action; one of {', '.join(ACTIONS)} says what happens")
    if len(keys) > 1:
        raise RuleError(f"a rule has one action, this one has {' and '.join(keys)}", keys[1])
    (key,) = keys
    more = (read_delays,) if key == "latency" else ()
    return key, _parsed(rule, key, lambda value: ACTIONS[key].parse(value, *more))


def _parsed(rule: Rule, key: str, parse: Callable[[Any], Any]) -> Any:
    value = getattr(rule, key)
    if value is None:
        return None
    try:
        return parse(value)
    except ValueError as error:
        text = str(error)
        if key == "error":
            text += meant(value, legal.suggestions())
        raise RuleError(text, key) from None


def _one_of(rule: Rule, key: str, allowed: Sequence[str]) -> str | None:
    value = getattr(rule, key)
    if value is not None and value not in allowed:
        raise RuleError(f"{value!r} is not one of {', '.join(allowed)}", key)
    return value


def _api_keys(rule: Rule, key: str, value: Any) -> frozenset[int] | None:
    allowed = ACTIONS[key].apis
    if rule.api is None:
        if key == "error":
            carriers = failing.carriers(value)
            if not carriers:
                raise RuleError(f"any API may report {error_name(value)}: say which", "api")
            return carriers
        return allowed
    found = _parsed(rule, "api", parse_apis)
    if allowed is not None and found - allowed:
        wrong, right = sorted(found - allowed), sorted(allowed)
        raise RuleError(
            f"{key} does nothing to {_apis(wrong)}; it works for {_apis(right)}",
            "api",
        )
    return found


def _apis(keys: Sequence[int]) -> str:
    return ", ".join(map(api_name, keys))


def _trigger(rule: Rule) -> Trigger:
    probability = rule.probability
    if probability is None:
        probability = 1.0
    elif isinstance(probability, bool) or not isinstance(probability, int | float):
        raise RuleError(f"{probability!r} is not a number from 0 to 1", "probability")
    elif not 0 <= probability <= 1:
        raise RuleError(f"{probability!r} is not from 0 to 1", "probability")
    return Trigger(
        probability=probability,
        skip=_count(rule, "skip", 0) or 0,
        every=_count(rule, "every", 1) or 1,
        times=_count(rule, "times", 1),
        start_after_ns=_parsed(rule, "start_after", duration_ns) or 0,
        duration_ns=_parsed(rule, "duration", positive_ns),
    )


def _count(rule: Rule, key: str, least: int) -> int | None:
    value = getattr(rule, key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise RuleError(f"{value!r} is not a number from {least} up", key)
    return value


# ── what a rule can reach ────────────────────────────────────────────────────────────────────


def _check_reach(prepared: Prepared) -> None:
    """Refuse a rule that names an API to which it can never do anything.

    Raises:
        RuleError: it does.
    """
    if prepared.rule.api is None:
        if not any(prepared.can_mean(*kind) for kind in schema.known_versions()):
            raise RuleError(f"no API has what the rule names: {prepared.rule}")
        return
    for api_key in sorted(prepared.api_keys or ()):
        versions = _versions(api_key)
        if not versions or any(prepared.can_mean(api_key, version) for version in versions):
            if versions or not (prepared.matcher.terms or prepared.action.known_only):
                continue
            raise RuleError(f"kproxy cannot read API {api_key}, and the rule looks into it", "api")
        raise _out_of_reach(prepared, api_key, versions)


def _versions(api_key: int) -> Sequence[int]:
    message = schema.message(api_key, schema.RESPONSE)
    return () if message is None else message.versions


def _out_of_reach(prepared: Prepared, api_key: int, versions: Sequence[int]) -> RuleError:
    name, accepts = api_name(api_key), prepared.versions
    if accepts is not None and not any(map(accepts, versions)):
        return RuleError(f"{name} has versions {versions[0]} to {versions[-1]}", "api_version")
    known = [found for version in versions if (found := shape(api_key, version)) is not None]
    for key in sorted(prepared.matcher.keys):
        if not any(key in found.asked | found.open_keys for found in known):
            return RuleError(f"{name} names no {key}", key)
    if prepared.key == "error":
        level = prepared.level or "request"
        text = f"{name} has no place for {error_name(prepared.value)} at the level {level!r}"
        return RuleError(text, "level" if prepared.level else "error")
    return RuleError(f"{name} has no version for which {prepared.key} works", prepared.key)


def _warnings(prepared: Prepared) -> tuple[str, ...]:
    if prepared.key != "error" or prepared.rule.api is None:
        return ()
    code = prepared.value
    found: list[str] = []
    for api_key in sorted(prepared.api_keys or ()):
        if not legal.is_usual(api_key, code):
            usual = ", ".join(legal.usual_errors(api_key))
            text = (
                f"Kafka does not send {error_name(code)} in {api_name(api_key)}; it sends {usual}"
            )
            found.append(f"{prepared.name}: {text}")
    return tuple(found)
