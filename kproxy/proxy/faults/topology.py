"""Actions on the cluster that clients see: hide_node, stale_leader, move_coordinator.

Invariant: a response gets only values that a broker could send; it names only nodes that the broker
itself has named.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kproxy.proxy.faults.action import Hit, Plan
from kproxy.proxy.faults.items import Keys
from kproxy.proxy.faults.values import INT32_MAX, is_whole
from kproxy.wire.protocol import codes

Node = int | bool
"""A node id, or True: any other than the one that is named."""


def hide_node(hit: Hit) -> Plan:
    """The broker with this node id is not to be seen: as if it were down.

    It is left out of the brokers in Metadata and DescribeCluster; partitions that it leads have no
    leader (LEADER_NOT_AVAILABLE), and it is no coordinator (COORDINATOR_NOT_AVAILABLE).
    """
    return Plan(change=hit.edit_response(lambda response: _hide(hit, response.body)))


def stale_leader(hit: Hit) -> Plan:
    """Metadata names a broker as leader that is not: the node with this id, or true for another
    replica than the leader, with the leader epoch before.

    The client then meets NOT_LEADER_OR_FOLLOWER at that broker. For the topics and partitions that
    the rule means.
    """
    return Plan(change=hit.edit_response(lambda response: _mislead(hit, response.body)))


def move_coordinator(hit: Hit) -> Plan:
    """FindCoordinator names the node with this id, or true for another than the coordinator.

    That node answers NOT_COORDINATOR, and the client looks again. Clients look for a coordinator
    when they lose theirs: a second rule, error = "NOT_COORDINATOR" on Heartbeat or OffsetCommit,
    makes them.
    """
    return Plan(change=hit.edit_response(lambda response: _move(hit, response.body)))


def parse_node(value: Any) -> int:
    """Read a node id.

    Raises:
        ValueError: it is none.
    """
    if not is_whole(value, 0, INT32_MAX):
        raise ValueError(f"{value!r} is not the id of a node")
    return value


def parse_node_or_any(value: Any) -> Node:
    """Read a node id, or true for any other.

    Raises:
        ValueError: it is neither.
    """
    if value is True:
        return True
    if not is_whole(value, 0, INT32_MAX):
        raise ValueError(f"{value!r} is not the id of a node, nor true for any other")
    return value


# ── responses ────────────────────────────────────────────────────────────────────────────────


def _partitions(body: Any) -> Iterator[tuple[Keys, Any]]:
    """Yield the partitions of a Metadata or DescribeTopicPartitions response, with their keys."""
    for topic in getattr(body, "topics", ()):
        keys: Keys = {"topic": topic.name, "topic_id": topic.topic_id}
        for partition in topic.partitions:
            yield keys | {"partition": partition.partition_index}, partition


def _coordinators(hit: Hit, body: Any) -> Iterator[Any]:
    """Yield the coordinators in a FindCoordinator response that the rule matches."""
    if not hasattr(body, "coordinators"):
        return
    asked = {item.keys["key"] for item in hit.items if "key" in item.keys}
    for found in body.coordinators or [body]:
        if found.error_code == 0 and (found is body or found.key in asked):
            yield found


def _hide(hit: Hit, body: Any) -> bool:
    node: int = hit.value
    changed = False
    if getattr(body, "brokers", None):
        kept = [one for one in body.brokers if _node_id(one) != node]
        changed = len(kept) < len(body.brokers)
        body.brokers = kept
    if getattr(body, "controller_id", -1) == node:
        body.controller_id, changed = -1, True
    for keys, partition in _partitions(body):
        if partition.leader_id == node and hit.matches(keys):
            partition.leader_id, partition.error_code = -1, codes.LEADER_NOT_AVAILABLE
            changed = True
    for found in _coordinators(hit, body):
        if found.node_id == node:
            found.node_id, found.host, found.port = -1, "", -1
            found.error_code, changed = codes.COORDINATOR_NOT_AVAILABLE, True
    return changed


def _node_id(broker: Any) -> int:
    return broker.node_id if hasattr(broker, "node_id") else broker.broker_id


def _mislead(hit: Hit, body: Any) -> bool:
    known = [broker.node_id for broker in getattr(body, "brokers", ())]
    known = known or list(hit.view.context.brokers())
    changed = False
    for keys, partition in _partitions(body):
        if partition.leader_id < 0 or not hit.matches(keys):
            continue
        replicas = [node for node in partition.replica_nodes if node in known]
        node = _choose_node(hit, partition.leader_id, replicas) or _choose_node(
            hit, partition.leader_id, known
        )
        if node is not None:
            partition.leader_id = node[0]
            partition.leader_epoch = max(-1, partition.leader_epoch - 1)
            changed = True
    return changed


def _move(hit: Hit, body: Any) -> bool:
    brokers = hit.view.context.brokers()
    changed = False
    for found in _coordinators(hit, body):
        node = _choose_node(hit, found.node_id, list(brokers))
        if node is not None:
            found.node_id = node[0]
            found.host, found.port = brokers[node[0]]
            changed = True
    return changed


def _choose_node(hit: Hit, present: int, nodes: list[int]) -> tuple[int] | None:
    """Return the node that the rule names, or any but the present one; None if there is none."""
    if hit.value is True:
        others = sorted(set(nodes) - {present})
        return (others[int(len(others) * hit.draw(1))],) if others else None
    return (hit.value,) if hit.value in nodes and hit.value != present else None
