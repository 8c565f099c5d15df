"""The table of all actions of rules, each one small unit whose docstring is its help.

How to add an action, here one that does nothing. Write it, in a module of its own or beside those
that are like it (`kproxy/proxy/faults/nothing.py`)::

    from kproxy.proxy.faults.action import Hit, Plan

    def nothing(hit: Hit) -> Plan | None:
        '''Nothing happens; the rule counts what it would have hit.'''
        return Plan()

The docstring is its help. A `Hit` has the exchange (`hit.view.frame` is the request's bytes,
`hit.view.request` the decoded message) and the value behind the key (`hit.value`). A `Plan` has the
effects: `Plan(Verdict(delay_ns=…))` on the request,
`Plan(Verdict(response=Verdict(delay_ns=…)))` on the response, `Plan(change=…)` on the response's
bytes. `Verdict` (`proxy.verdicts`) lists all that can be done to a frame. Import the module here,
and give the action a line in the table below; its own phases, APIs and versions are further
arguments, all of them explained at `Action`::

    "nothing": Action(nothing, parse_yes, "api=Produce nothing=true"),

Test it in `tests/faults/test_actions.py`, and add it to the table of actions in
`kproxy/manual/faults.md`. That is all: keys, help, checks, counts, notes and the control API follow
from the table.
"""

from __future__ import annotations

from collections.abc import Mapping

from kproxy.proxy.faults import capping, damage, endings, failing, timing, topology
from kproxy.proxy.faults.action import AFTER, BEFORE, Action, Levels, PhaseByApi
from kproxy.proxy.faults.apis import api_keys, parse_apis
from kproxy.proxy.faults.values import parse_frame_bytes, parse_size, parse_yes, positive_ns

_AFTER_FIRST = (AFTER, BEFORE)
_RECORDS = api_keys("Produce", "Fetch", "ShareFetch")
_METADATA = api_keys("Metadata", "DescribeTopicPartitions")
_API_VERSIONS = api_keys("ApiVersions")

ACTIONS: dict[str, Action] = {
    "latency": Action(
        timing.latency,
        timing.parse_latency,
        "node_id=2 latency=300ms",
        _AFTER_FIRST,
        adds_up=True,
        reads_recordings=True,
    ),
    "error": Action(
        failing.error,
        failing.parse_error,
        "api=Produce topic=orders error=NOT_LEADER_OR_FOLLOWER times=2",
        apis_of=failing.carriers,
        known_only=True,
        levels=Levels(failing.usual_level, failing.can_fail, failing.no_place),
        waits_on_reads=True,
        warn=failing.unusual,
    ),
    "throttle": Action(
        timing.throttle,
        positive_ns,
        "api=Produce client_id=batch-* throttle=2s",
        (AFTER,),
        known_only=True,
        can=timing.can_throttle,
    ),
    "drop": Action(endings.drop, parse_yes, "api=EndTxn times=1 drop=true", _AFTER_FIRST),
    "disconnect": Action(
        endings.disconnect, parse_yes, "api=Produce phase=after times=1 disconnect=true"
    ),
    "reset": Action(endings.reset, parse_yes, "api=Fetch probability=0.01 reset=true"),
    "blackhole": Action(endings.blackhole, parse_yes, "node_id=1 start_after=30s blackhole=true"),
    "slow_close": Action(endings.slow_close, positive_ns, "api=Heartbeat times=1 slow_close=20s"),
    "truncate": Action(
        endings.truncate,
        parse_frame_bytes,
        "api=Fetch every=10 truncate=100",
        _AFTER_FIRST,
    ),
    "corrupt": Action(
        damage.corrupt,
        damage.parse_damage,
        "api=Fetch topic=orders times=1 corrupt=1",
        PhaseByApi(damage.corrupt_phase, "the way of the records"),
        apis=_RECORDS,
        known_only=True,
    ),
    "duplicate": Action(
        endings.duplicate,
        parse_yes,
        "api=Produce probability=0.1 duplicate=true",
        (BEFORE,),
    ),
    "bandwidth": Action(timing.bandwidth, parse_size, "api=Fetch bandwidth=64KiB", _AFTER_FIRST),
    "hide_node": Action(
        topology.hide_node,
        topology.parse_node,
        "hide_node=2 duration=30s",
        (AFTER,),
        apis=_METADATA | api_keys("DescribeCluster", "FindCoordinator"),
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
        apis=api_keys("FindCoordinator"),
        known_only=True,
    ),
    "rebootstrap": Action(
        failing.rebootstrap,
        parse_yes,
        "times=1 rebootstrap=true",
        apis=api_keys("Metadata") | _API_VERSIONS,
        known_only=True,
        can=failing.can_rebootstrap,
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


def help_text(actions: Mapping[str, Action] = ACTIONS) -> str:
    """Return the help on all actions: key, example, text."""
    return "\n\n".join(
        f"{key}\n    {action.example}\n\n" + _indent(action.help) for key, action in actions.items()
    )


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.splitlines())
