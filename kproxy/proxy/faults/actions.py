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
from typing import Any

from kproxy.proxy.faults import damage, failing, timing, topology
from kproxy.proxy.faults.action import AFTER, BEFORE, Action, Hit, Levels, PhaseByApi, Plan
from kproxy.proxy.faults.apis import api_keys, parse_apis
from kproxy.proxy.faults.values import (
    INT16_MAX,
    is_whole,
    parse_frame_bytes,
    parse_size,
    parse_yes,
    positive_ns,
)
from kproxy.proxy.verdicts import Ending, Verdict
from kproxy.wire.protocol import schema
from kproxy.wire.protocol.codec import Response


def max_version(hit: Hit) -> Plan:
    """ApiVersions names no version above these: {Produce = 7, Fetch = 11}.

    Clients then speak as to an older broker. No API is capped below the broker's oldest version.
    """
    caps: Mapping[int, int] = hit.value

    def cap(response: Response) -> bool:
        changed = False
        for entry in response.body.api_keys:
            version = max(entry.min_version, caps.get(entry.api_key, entry.max_version))
            if version < entry.max_version:
                entry.max_version, changed = version, True
        return changed

    return Plan(change=hit.edit_response(cap))


def hide_api(hit: Hit) -> Plan:
    """ApiVersions does not name these APIs, one or a list: "DescribeCluster".

    Clients then do without them, or say that the broker is too old.
    """
    hidden: frozenset[int] = hit.value

    def hide(response: Response) -> bool:
        body = response.body
        kept = [entry for entry in body.api_keys if entry.api_key not in hidden]
        changed = len(kept) < len(body.api_keys)
        body.api_keys = kept
        return changed

    return Plan(change=hit.edit_response(hide))


def parse_caps(value: Any) -> dict[int, int]:
    """Read {Produce = 7, …}.

    Raises:
        ValueError: it is not such a table; the text says what is allowed.
    """
    if not isinstance(value, dict) or not value:
        raise ValueError(f"{value!r} is not a table such as {{Produce = 7, Fetch = 11}}")
    found: dict[int, int] = {}
    for name, version in value.items():
        (key,) = parse_apis(name)
        if not is_whole(version, 0, INT16_MAX):
            raise ValueError(f"{version!r} is not a version of {schema.api_name(key)}")
        found[key] = version
    return found


def end_connection(hit: Hit, ending: Ending, delay_ns: int = 0) -> Plan:
    """Plan the end of the connection in place of the request, or of its response."""
    if hit.phase == BEFORE:
        return Plan(Verdict(ending=ending, ending_delay_ns=delay_ns))
    if hit.view.no_response:
        whole = len(hit.view.frame)
        return Plan(Verdict(ending=ending, ending_bytes=whole, ending_delay_ns=delay_ns))
    response = Verdict(ending=ending, ending_delay_ns=delay_ns)
    return Plan(Verdict(response=response))


def drop(hit: Hit) -> Plan | None:
    """The response (after, the default) or the request (before) is lost; the connection goes on.

    Clients match responses to requests by their order: most close a connection on which one is
    missing as soon as the next response comes. A client that waits shows its own timeout.
    """
    if hit.phase == BEFORE:
        return Plan(Verdict(frames=()))
    if hit.view.no_response:
        return None
    return Plan(Verdict(response=Verdict(frames=())))


def disconnect(hit: Hit) -> Plan:
    """The connection is closed in place of the request (before, the default) or of its response."""
    return end_connection(hit, Ending.DISCONNECT)


def reset(hit: Hit) -> Plan:
    """The connection is reset in place of the request (before, the default) or of its response."""
    return end_connection(hit, Ending.RESET)


def blackhole(hit: Hit) -> Plan:
    """The connection stays open and nothing passes any more, from the request (before, the default)
    or from its response on: what a client sees of a broker that hangs.
    """
    return end_connection(hit, Ending.BLACKHOLE)


def slow_close(hit: Hit) -> Plan:
    """The connection falls silent, as with blackhole, and is closed so much later."""
    return end_connection(hit, Ending.DISCONNECT, hit.value)


def truncate(hit: Hit) -> Plan | None:
    """So many bytes of the response (after, the default) or of the request (before) leave; then the
    connection is closed.
    """
    if hit.phase == BEFORE:
        cut = min(hit.value, len(hit.view.frame))
        return Plan(Verdict(ending=Ending.DISCONNECT, ending_bytes=cut))
    if hit.view.no_response:
        return None
    response = Verdict(ending=Ending.DISCONNECT, ending_bytes=hit.value)
    return Plan(Verdict(response=response))


def duplicate(hit: Hit) -> Plan:
    """The broker gets the request twice; the client gets the first response only.

    What a retry does whose first attempt has arrived after all.
    """
    return Plan(Verdict(frames=(hit.view.frame, hit.view.frame)))


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
    "drop": Action(drop, parse_yes, "api=EndTxn times=1 drop=true", _AFTER_FIRST),
    "disconnect": Action(disconnect, parse_yes, "api=Produce phase=after times=1 disconnect=true"),
    "reset": Action(reset, parse_yes, "api=Fetch probability=0.01 reset=true"),
    "blackhole": Action(blackhole, parse_yes, "node_id=1 start_after=30s blackhole=true"),
    "slow_close": Action(slow_close, positive_ns, "api=Heartbeat times=1 slow_close=20s"),
    "truncate": Action(
        truncate,
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
        duplicate,
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
        max_version,
        parse_caps,
        "max_version={Produce = 7}",
        (AFTER,),
        apis=_API_VERSIONS,
        known_only=True,
    ),
    "hide_api": Action(
        hide_api,
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
