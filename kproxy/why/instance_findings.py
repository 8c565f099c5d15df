"""Findings about static members: two clients that use one group.instance.id.

JoinGroup, ConsumerGroupHeartbeat ─▶ who has the id; a refusal because of it ─▶ Finding

Invariant: memory is bounded: at most `_INSTANCES_MAX` ids are remembered.
"""

from __future__ import annotations

import attrs

from kproxy.exchange.exchange import Exchange
from kproxy.exchange.words.wording import count, listed
from kproxy.history.items import Item
from kproxy.why.finding import Finding, Harm
from kproxy.why.sentences import client, named

INSTANCE_ERRORS = frozenset(("FENCED_INSTANCE_ID", "UNRELEASED_INSTANCE_ID"))
"""The errors by which a coordinator refuses one of two clients with one group.instance.id."""
_INSTANCES_MAX = 10_000


def instance_id(exchange: Exchange) -> str:
    """Return the group.instance.id that a request names; "" if it names none."""
    names = ("group_instance_id", "instance_id")
    found = (getattr(exchange.request, each, None) for each in names)
    return next(filter(None, found), "")


@attrs.define(eq=False)
class SharedInstances:
    """Finds static members whose group.instance.id another client has as well."""

    _joined: dict[tuple[str, str], tuple[str, str, int]] = attrs.field(
        factory=dict[tuple[str, str], tuple[str, str, int]], init=False
    )
    """Group and group.instance.id → member id, client and number of the last that joined."""
    _refused: dict[tuple[str, str], tuple[str, int, int]] = attrs.field(
        factory=dict[tuple[str, str], tuple[str, int, int]], init=False
    )
    """The same → its first refusal: the text, and the exchanges that prove it."""
    _times: dict[tuple[str, str], int] = attrs.field(factory=dict[tuple[str, str], int], init=False)

    def add(self, item: Item) -> None:
        """Take the next item."""
        if not isinstance(item, Exchange) or not item.groups:
            return
        refused = [] if item.injected else [e for e in item.errors if e in INSTANCE_ERRORS]
        if not refused and item.api not in ("JoinGroup", "ConsumerGroupHeartbeat"):
            return
        instance = instance_id(item)
        if not instance:
            return
        key = item.groups[0], instance
        if refused and item.broker_errors is None:
            self._refuse(item, key, listed(refused))
        elif not item.errors and item.response is not None:
            if key in self._joined or len(self._joined) < _INSTANCES_MAX:
                member = getattr(item.response, "member_id", None) or item.request.member_id
                self._joined[key] = member, f"{client(item)} ({named(item)})", item.number

    def _refuse(self, item: Exchange, key: tuple[str, str], errors: str) -> None:
        has = self._joined.get(key)
        if has is None or has[0] == getattr(item.request, "member_id", ""):
            return  # who took it is not recorded
        self._times[key] = self._times.get(key, 0) + 1
        text = (
            f"Two clients use group.instance.id {key[1]} of group {key[0]}: {has[1]} has it, so"
            f" {named(item)} of {client(item)} was refused with {errors}"
        )
        self._refused.setdefault(key, (text, has[2], item.number))

    def found(self) -> list[Finding]:
        """Return a finding for each group.instance.id."""
        return [
            Finding(
                Harm.LATENCY, "group.instance.id of two clients", _text(text, self._times[key]),
                (first, second), ("why", f"group:{key[0]}"),
            )
            for key, (text, first, second) in sorted(self._refused.items())
        ]  # fmt: skip


def _text(text: str, times: int) -> str:
    more = f"; {count(times - 1, 'more request')} so" if times > 1 else ""
    return f"{text}{more}. Each process needs a group.instance.id of its own."
