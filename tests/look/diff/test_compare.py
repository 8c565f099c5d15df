"""Two recordings of the same app mean the same; of one with a change, that is named, and nothing
else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import given, settings

from kproxy.exchange.exchange import Exchange
from kproxy.look.diff.compare import compare
from kproxy.replay.compared import Difference
from tests.replay.test_all_aspects import (
    APPS,
    CHANGES,
    UNREAD,
    Step,
    Value,
    Write,
    changed,
    changed_in,
    recorded,
    run,
    shown,
)
from tests.versions import ALL


def produced(app: list[Step]) -> dict[tuple[int, str], list[Value]]:
    """The values of each key of a partition, in order, in batches that can be read."""
    found: dict[tuple[int, str], list[Value]] = {}
    for step in app:
        for value in step.values if isinstance(step, Write) else ():
            if value[2] != UNREAD:
                found.setdefault(value[:2], []).append(value)
    return found


def apis(exchanges: Iterable[Exchange]) -> set[tuple[Any, ...]]:
    """What was asked."""
    return {(each.api, each.api_version) for each in exchanges}


def told(found: list[Difference], *aspects: str) -> str:
    """The differences in some aspects."""
    return "\n".join(str(each) for each in found if each.aspect in aspects)


@settings(max_examples=1500 if ALL else 120, deadline=None)
@given(APPS, CHANGES)
def test_a_change_is_named_and_nothing_else(app: list[Step], change: tuple[int, int, int]) -> None:
    then, again = (recorded(lambda client: run(client, app)) for _ in "12")
    assert compare(then, again) == []
    new = changed(app, change)
    now = recorded(lambda client: run(client, new))
    found = compare(then, now)
    before, after = shown(app), shown(new)
    for aspect in ("commits", "transactions", "groups", "consumed"):
        if before[aspect] == after[aspect]:
            assert not told(found, aspect)
    for aspect in ("commits", "groups"):
        if before[aspect] != after[aspect]:
            assert any(name in told(found, aspect) for name in changed_in(aspect, before, after))
    one, other = produced(app), produced(new)
    differ = {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}
    if differ:
        assert all(key in told(found, "records", "order") for _, key in differ)
    else:
        assert not told(found, "records", "order")
        assert bool(before["consumed"] != after["consumed"]) == bool(told(found, "consumed"))
    assert bool(apis(then) != apis(now)) == bool(told(found, "apis"))
    others = [each for each in found if "compression" not in each.subject]  # UNREAD is no gzip
    assert not told(others, "requests", "errors", "faults", "latency", "settings")
