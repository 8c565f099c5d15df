"""The phases of a connection: every way through the table, and what no phase allows."""

from __future__ import annotations

import itertools

import pytest

from kproxy.exchange.entries import Side
from kproxy.proxy.phase import ENDED_SIDES, EOF, SILENT, WAITS_FOR_BROKER, Event, Phase, after


def ways(phase: Phase = Phase.DIALLING, events: tuple[Event, ...] = ()):
    """Every way through the phases, as the events on it and the phase that it leads to."""
    yield events, phase
    for event in Event:
        try:
            following = after(phase, event)
        except ValueError:
            continue
        yield from ways(following, (*events, event))


WAYS = list(ways())


def test_every_phase_is_reached_and_every_way_can_end() -> None:
    assert {phase for _, phase in WAYS} == set(Phase)
    for phase in set(Phase) - {Phase.OVER}:
        assert after(phase, Event.ENDED) is Phase.OVER


def test_nothing_happens_to_a_connection_that_is_over() -> None:
    for event in Event:
        with pytest.raises(ValueError, match="a connection that is over cannot be"):
            after(Phase.OVER, event)


@pytest.mark.parametrize(("events", "phase"), WAYS, ids=lambda value: str(value)[:60])
def test_the_phase_knows_who_has_ended(events: tuple[Event, ...], phase: Phase) -> None:
    ended = {side for side in Side if EOF[side] in events}
    assert events.count(Event.PASSED_ON) <= 1
    if phase not in SILENT and phase is not Phase.OVER:
        assert ENDED_SIDES.get(phase, frozenset()) == ended
    if phase in WAITS_FOR_BROKER:
        assert Side.CLIENT in ended
    for side, event in itertools.product(Side, EOF.values()):
        if event in events and EOF[side] is event:
            with pytest.raises(ValueError, match="cannot be"):
                after(phase, event)  # each side ends once
