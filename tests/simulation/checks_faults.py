"""What must be true of simulated connections that fault rules have touched.

::

    client said ═ recorded requests ─▶ those that left ═ what the broker got
    broker said ═ recorded responses ─▶ those that left ═ what the client got

Each ═ is checked byte by byte, from the recording alone: a frame that left has the time at which it
did, and its splices say how it was changed; a fault note says why one did not leave.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

import attrs

from kproxy.exchange.entries import (
    EVENTS,
    FAULTED,
    INJECTED,
    MORE,
    NO_RESPONSE,
    REDACTED,
    REWRITTEN,
    TRUNCATED,
    UNANSWERED,
    Frame,
    Note,
    Side,
)
from tests.simulation import checks
from tests.simulation.filling import is_sensitive
from tests.simulation.link import Link
from tests.simulation.world import World

_ENDS = {"disconnect", "reset", "blackhole", "slow_close", "truncate", "error"}
"""Actions that may end a connection; an error does where no response is expected."""
_STOPS_REQUESTS = {"drop", "error", "rebootstrap", *_ENDS}
"""Actions after which the broker may not get a request."""
_STOPS_RESPONSES = {"drop", *_ENDS}

Notes = Mapping[int, list[dict]]
"""The fault notes by the number of their exchange."""


def check_faults(world: World) -> None:
    """Hold a world with rules to what was promised of them."""
    checks.check(world)
    assert world.rules is not None
    by_number: dict[int, list[dict]] = defaultdict(list)
    counted: Counter[int] = Counter()
    for entry in world.entries:
        if isinstance(entry, Note) and entry.channel == EVENTS:
            if entry.body["event"] == "fault":
                by_number[entry.body["number"]].append(entry.body)
                counted[entry.body["fault_id"]] += 1
            if entry.body["event"] == "session_refused":
                what = {"action": "error", "phase": "before"}
                by_number[entry.body["number"]].append(entry.body | what)
    for rule in world.rules.rules:
        assert rule.fired == counted[rule.fault_id] <= rule.matched, f"{rule.name}: its notes"
    _check_flags(world, by_number)
    for link in world.links:
        if checks.is_touched(world, link):
            _check_link(world, link, by_number)


def _check_flags(world: World, notes: Notes) -> None:
    """An exchange of which there is a note has a frame that bears its fault, and the reverse."""
    borne: dict[int, set[int]] = defaultdict(set)
    for entry in world.entries:
        if isinstance(entry, Frame) and not entry.flags & MORE:
            assert bool(entry.flags & FAULTED) == bool(entry.fault_ids), "faults without a flag"
            borne[entry.number] |= set(entry.fault_ids)
    copies = _copies(world)
    for number, ids in borne.items():
        expected = {body["fault_id"] for body in notes.get(number, ())}
        assert ids == expected or number in copies, f"exchange {number} bears {ids}: {expected}"


def _copies(world: World) -> set[int]:
    """The numbers of requests that kproxy sent in addition."""
    return {
        entry.number
        for entry in world.entries
        if isinstance(entry, Frame) and entry.side is Side.CLIENT and entry.flags & INJECTED
    }


def _check_link(world: World, link: Link, notes: Notes) -> None:
    frames, about = checks.entries_of(world, link)
    mine = {frame.number for frame in frames}
    numbers = [frame.number for frame in frames if frame.side is Side.CLIENT]
    assert numbers == sorted(numbers), "requests are recorded out of order"
    actions = {body["action"] for number in mine for body in notes.get(number, ())}
    if actions & _ENDS:
        link.hows |= {"fault", "fault reset"}
    closed = checks.check_notes(world, link, about)
    requests = [frame for frame in frames if frame.side is Side.CLIENT]
    if any(frame.flags & REDACTED and not is_sensitive(frame.api_key) for frame in requests):
        return  # no broker has answered: bytes that no field explains may then be of a token
    said = [_plain(frame) for frame in requests if not frame.flags & INJECTED]
    of_broker = [frame for frame in frames if frame.side is Side.BROKER]
    unanswered = [frame for frame in of_broker if frame.flags & UNANSWERED]
    responses = [frame for frame in of_broker if not frame.flags & UNANSWERED]
    checks.check_requests(link, said, certain=False)
    checks.check_accounts(link, requests, responses, unanswered)
    checks.check_times(requests, responses, unanswered)
    assert link.abrupt == (closed["how"] in ("reset", "fault reset"))
    whole = closed["how"] in ("eof", "idle", "stopped") and link.number not in world.disturbed
    whole = whole and "violation" not in link.hows and not actions & {"blackhole", "slow_close"}
    _check_broker_got(link, requests, notes, whole)
    _check_broker_said(link, responses, whole)
    _check_client_got(link, responses, requests, notes, whole)
    _check_delays(requests, responses, notes)


def _plain(frame: Frame) -> Frame:
    """A request without what a rule did to it: as its client sent it."""
    return attrs.evolve(frame, flags=frame.flags & ~REWRITTEN) if frame.flags & FAULTED else frame


def _actions(notes: Notes, number: int, phase: str) -> set[str]:
    return {body["action"] for body in notes.get(number, ()) if body["phase"] == phase}


def _check_broker_got(link: Link, requests: list[Frame], notes: Notes, whole: bool) -> None:
    """The broker got the requests that left, in order, changed as recorded, and nothing else."""
    got = bytes(link.received[Side.BROKER])
    steps = {step.correlation_id: step for step in link.script}
    position = said = 0
    cut: list[bytes] = [b""]
    for frame in requests:
        step = steps.get(frame.correlation_id)
        if step is None or frame.flags & TRUNCATED:
            cut.append(bytes(link.said[said:]))
            continue
        came = step.request
        said += 0 if frame.flags & INJECTED else frame.frame_bytes
        data = _sent(frame, came, got[position:])
        ends = _actions(notes, frame.number, "before") & _ENDS
        if not frame.sent_ns or (ends and not got.startswith(data, position)):
            cut.append(data)
            stopped = _actions(notes, frame.number, "before") & _STOPS_REQUESTS
            stopped = stopped or frame.flags & INJECTED or _is_ours(link)
            assert stopped or not whole, f"request {frame.number} did not leave"
            continue
        assert got.startswith(data, position), f"the broker got another request {frame.number}"
        position += len(data)
    assert _is_part(got[position:], cut), "the broker got what nobody sent"


def _is_ours(link: Link) -> bool:
    """Whether requests may be answered by us without a note: a session that was not followed."""
    return any(step.api_key in (1, 78) for step in link.script)


def _sent(frame: Frame, came: bytes, got: bytes) -> bytes:
    """The bytes of a frame as they were sent on; how a redacted one was changed is not said."""
    if not frame.flags & REWRITTEN:
        return came
    if not frame.flags & REDACTED:
        return frame.sent
    size = 4 + int.from_bytes(got[:4])
    return got[:size] if got[4:8] == came[4:8] else came


def _check_broker_said(link: Link, responses: list[Frame], whole: bool) -> None:
    """What the broker said is recorded as it came, in order."""
    real = [frame for frame in responses if not frame.flags & INJECTED]
    fed = 0
    for frame, (_, answer) in zip(real, link.answers, strict=False):
        fed += len(answer.data)
        if answer.garbage or frame.flags & TRUNCATED or fed > link.fed[Side.BROKER]:
            return
        checks.check_recorded(frame, answer.data, answer.recorded, answer.secret, 8)
    if whole and not link.tail[Side.BROKER]:
        assert len(real) == len(link.answers), "not all responses are recorded"


def _check_client_got(
    link: Link, responses: list[Frame], requests: list[Frame], notes: Notes, whole: bool
) -> None:
    """The client got the responses that left, in order, changed as recorded, and nothing else."""
    got = bytes(link.received[Side.CLIENT])
    copies = {frame.number for frame in requests if frame.flags & INJECTED}
    real = iter(link.answers)
    position = 0
    cut: list[bytes] = [b"", link.tail[Side.BROKER]]
    for frame in responses:
        came = frame.data
        if not frame.flags & INJECTED:
            _, answer = next(real, (0, None))
            came = answer.data if answer else came
        data = _sent(frame, came, got[position:])
        after = _actions(notes, frame.number, "after")
        if frame.sent_ns and not after & _ENDS:
            assert got.startswith(data, position), f"another response to {frame.number}"
        elif not got.startswith(data, position) or not frame.sent_ns:
            cut.append(data)
            stopped = after & _STOPS_RESPONSES or frame.number in copies
            assert stopped or not whole or frame.flags & TRUNCATED, f"{frame.number} is lost"
            continue
        position += len(data)
    assert _is_part(got[position:], cut), "the client got what nobody sent"


def _is_part(rest: bytes, cut: list[bytes]) -> bool:
    """Whether the end of what a side got are frames, in order, that did not all leave whole."""
    for data in cut:
        if data.startswith(rest):
            return True
        rest = rest.removeprefix(data)
    return False


def _check_delays(requests: list[Frame], responses: list[Frame], notes: Notes) -> None:
    """What a rule delays leaves no sooner than it said."""
    for phase, frames in (("before", requests), ("after", responses)):
        for frame in frames:
            late = [each for each in notes.get(frame.number, ()) if each["phase"] == phase]
            delay_ms = sum(each.get("delay_ms", 0) for each in late)
            if frame.sent_ns and delay_ms and not frame.flags & (INJECTED | NO_RESPONSE):
                waited_ms = (frame.sent_ns - frame.received_ns) / 1e6
                assert waited_ms > delay_ms - 0.01, f"{frame.number} left too soon"
