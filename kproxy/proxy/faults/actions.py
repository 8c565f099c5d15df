"""The table of all actions: what a rule can do, each one small unit whose docstring is its help.

An action is a function of a `Hit` that returns a `Plan` (or None where there is nothing to do), and
what the table says of it: how its value is read, in which phases it works, for which APIs.
`latency` alone gives a delay instead of a plan, because latencies add up.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import attrs

from kproxy.protocol import schema
from kproxy.proxy.faults import capping, damage, endings, failing, timing, topology
from kproxy.proxy.faults.apis import parse_apis
from kproxy.proxy.faults.timing import AFTER, BEFORE
from kproxy.proxy.faults.view import Hit

PHASES = (BEFORE, AFTER)
_ANY_PHASE = {BEFORE: (BEFORE, AFTER), AFTER: (AFTER, BEFORE)}


def _always(api_key: int, api_version: int, level: str | None, keys: frozenset[str]) -> bool:
    return True


def _keys(*names: str) -> frozenset[int]:
    return frozenset(key for key, name in schema.api_names().items() if name in names)


@attrs.frozen
class Action:
    """One action."""

    do: Callable[[Hit], Any]
    """Plans it; of `latency`: its delay in nanoseconds."""
    parse: Callable[..., Any]
    """Reads the value behind its key; ValueError says what would be one."""
    example: str
    """Of a rule that has it."""
    phases: tuple[str, ...] = _ANY_PHASE[BEFORE]
    """Those in which it works, the default first."""
    apis: frozenset[int] | None = None
    """The APIs for which it works, and those of a rule that names none; None: all."""
    known_only: bool = False
    """Whether it must be able to read the messages."""
    has_levels: bool = False
    can: Callable[[int, int, str | None, frozenset[str]], bool] = _always
    """Whether it works for a version, at a level, for a rule with these keys."""

    @property
    def help(self) -> str:
        """What it does, for people."""
        return inspect.getdoc(self.do) or ""


_RECORDS = _keys("Produce", "Fetch", "ShareFetch")
_METADATA = _keys("Metadata", "DescribeTopicPartitions")
_API_VERSIONS = _keys("ApiVersions")

ACTIONS: dict[str, Action] = {
    "latency": Action(
        timing.latency,
        timing.parse_latency,
        "node_id=2 latency=300ms",
        _ANY_PHASE[AFTER],
    ),
    "error": Action(
        failing.error,
        failing.parse_error,
        "api=Produce topic=orders error=NOT_LEADER_OR_FOLLOWER times=2",
        known_only=True,
        has_levels=True,
        can=failing.can_fail,
    ),
    "throttle": Action(
        timing.throttle,
        timing.positive_ns,
        "api=Produce client_id=batch-* throttle=2s",
        (AFTER,),
        known_only=True,
        can=lambda key, version, level, keys: timing.can_throttle(key, version),
    ),
    "drop": Action(
        endings.drop, endings.parse_yes, "api=EndTxn times=1 drop=true", _ANY_PHASE[AFTER]
    ),
    "disconnect": Action(
        endings.disconnect, endings.parse_yes, "api=Produce phase=after times=1 disconnect=true"
    ),
    "reset": Action(endings.reset, endings.parse_yes, "api=Fetch probability=0.01 reset=true"),
    "blackhole": Action(
        endings.blackhole, endings.parse_yes, "node_id=1 start_after=30s blackhole=true"
    ),
    "slow_close": Action(
        endings.slow_close, timing.positive_ns, "api=Heartbeat times=1 slow_close=20s"
    ),
    "truncate": Action(
        endings.truncate,
        endings.parse_count,
        "api=Fetch every=10 truncate=100",
        _ANY_PHASE[AFTER],
    ),
    "corrupt": Action(
        damage.corrupt,
        damage.parse_damage,
        "api=Fetch topic=orders times=1 corrupt=1",
        _ANY_PHASE[BEFORE],
        apis=_RECORDS,
        known_only=True,
    ),
    "duplicate": Action(
        endings.duplicate,
        endings.parse_yes,
        "api=Produce probability=0.1 duplicate=true",
        (BEFORE,),
    ),
    "bandwidth": Action(
        timing.bandwidth, timing.parse_bytes, "api=Fetch bandwidth=64KiB", _ANY_PHASE[AFTER]
    ),
    "hide_node": Action(
        topology.hide_node,
        topology.parse_node,
        "hide_node=2 duration=30s",
        (AFTER,),
        apis=_METADATA | _keys("DescribeCluster", "FindCoordinator"),
        known_only=True,
    ),
    "stale_leader": Action(
        topology.stale_leader,
        topology.parse_node_or_any,
        "topic=orders times=3 stale_leader=true",
        (AFTER,),
        apis=_METADATA,
        known_only=True,
    ),
    "move_coordinator": Action(
        topology.move_coordinator,
        topology.parse_node_or_any,
        "group=billing times=1 move_coordinator=2",
        (AFTER,),
        apis=_keys("FindCoordinator"),
        known_only=True,
    ),
    "rebootstrap": Action(
        failing.rebootstrap,
        endings.parse_yes,
        "times=1 rebootstrap=true",
        apis=_keys("Metadata") | _API_VERSIONS,
        known_only=True,
        can=lambda key, version, level, keys: failing.can_rebootstrap(key, version),
    ),
    "max_version": Action(
        capping.max_version,
        capping.parse_caps,
        "max_version={Produce = 7}",
        (AFTER,),
        apis=_API_VERSIONS,
        known_only=True,
    ),
    "hide_api": Action(
        capping.hide_api,
        parse_apis,
        "hide_api=DescribeCluster",
        (AFTER,),
        apis=_API_VERSIONS,
        known_only=True,
    ),
}
"""Key in a rule → action."""


def help_text() -> str:
    """All actions as a person reads them: key, an example, what it does."""
    return "\n\n".join(
        f"{key}\n    {action.example}\n\n" + _indented(action.help)
        for key, action in ACTIONS.items()
    )


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.splitlines())
