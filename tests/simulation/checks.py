"""What must be true when a simulated world has come to its end.

Each check looks at what the peers sent and got, and at what was recorded, and knows nothing of how
the machine works. What must have become of a frame is known from how the frame was made.
"""

from __future__ import annotations

import bisect
import contextlib
import gc
import itertools
import types
from collections.abc import Iterator
from typing import Any

import attrs

from kproxy.exchange.entries import (
    CONNECTIONS,
    FAULTED,
    FRAGMENT,
    INJECTED,
    MORE,
    NO_RESPONSE,
    OPAQUE,
    RAW_SASL,
    REDACTED,
    REWRITTEN,
    TRUNCATED,
    UNANSWERED,
    Frame,
    Note,
    Side,
)
from kproxy.exchange.pairing import pair
from kproxy.wire.protocol import ProtocolError, decode_response
from tests.bed import leak
from tests.simulation.link import Link
from tests.simulation.scripts import CLIENT_IDS, METADATA, Answer, Step
from tests.simulation.world import START_NS, World

_STREAMED_BYTES_MIN = 256 << 10
_PADDING_TAGS = {126, 127, 16_382, 16_383, 2_097_150, 2_097_151}
_LEFT_BYTES_MAX = 20_000


def check(world: World) -> None:
    """Hold a world that has come to its end to everything that was promised."""
    left = held_bytes(world.cluster) - held_bytes(world.rules)
    for link in world.links:
        assert link.closed, f"connection {link.number} is still open"
        if not is_touched(world, link):
            _check_link(world, link)
    _check_numbers(world)
    _check_secrets(world)
    _check_exchanges(world)
    assert not world.cluster.busy
    assert world.cluster.next_wake is None or world.settings.probes, "it waits for nothing"
    assert left < _LEFT_BYTES_MAX, f"{left} bytes are left in the machine"


def is_touched(world: World, link: Link) -> bool:
    """Whether a rule did anything on a connection; `checks_faults` has its own promises."""
    return any(
        isinstance(entry, Frame)
        and entry.connection == link.number
        and entry.flags & (FAULTED | INJECTED)
        for entry in world.entries
    )


def _check_link(world: World, link: Link) -> None:
    frames, notes = entries_of(world, link)
    closed = check_notes(world, link, notes)
    requests = [frame for frame in frames if frame.side is Side.CLIENT]
    responses = [frame for frame in frames if frame.side is Side.BROKER]
    unanswered = [frame for frame in responses if frame.flags & UNANSWERED]
    responses = [frame for frame in responses if not frame.flags & UNANSWERED]
    certain = closed["how"] != "violation" and not link.tail[Side.BROKER]
    check_requests(link, requests, certain)
    _check_responses(world, link, requests, responses)
    check_accounts(link, requests, responses, unanswered)
    check_times(requests, responses, unanswered)
    if closed["how"] == "violation" and closed["side"] == "client" and "violation!" in link.hows:
        passed = len(link.said) - len(link.tail[Side.CLIENT])
        assert len(link.received[Side.BROKER]) <= passed, "garbage reached the broker"
    garbage = "violation" in (closed["how"], *link.hows)
    assert link.abrupt == (closed["how"] == "reset")
    if link.number not in world.disturbed and not garbage:
        _check_all_arrived(world, link)
        _check_half_closes(link)


# ---- what was recorded of a connection


def entries_of(world: World, link: Link) -> tuple[list[Frame], list[Note]]:
    """The frames of a connection, pieces joined, and its notes, which must stand around them."""
    frames: list[Frame] = []
    notes: list[Note] = []
    open_pieces: dict[Side, Frame] = {}
    for entry in world.entries:
        if isinstance(entry, Note):
            if entry.channel == CONNECTIONS and entry.body.get("connection") == link.number:
                notes.append(entry)
            continue
        if entry.connection != link.number:
            continue
        around = [note.body["event"] for note in notes]
        assert around in (["opened"], ["opened", "client_id"]), "a frame outside of its notes"
        piece = open_pieces.pop(entry.side, None)
        if piece is None:
            entry_flags = entry.flags
            entry = attrs.evolve(entry, pieces=list(entry.pieces))
            assert not entry_flags & MORE or entry_flags & FRAGMENT
        else:
            assert entry.number == piece.number and entry.flags & FRAGMENT
            entry = attrs.evolve(entry, pieces=[*piece.pieces, *entry.pieces])
        if entry.flags & MORE:
            open_pieces[entry.side] = entry
        else:
            frames.append(entry)
    assert not open_pieces, "pieces of a frame without its end"
    return frames, notes


def check_notes(world: World, link: Link, notes: list[Note]) -> dict[str, Any]:
    opened, *named, closed = notes
    assert (opened.body["event"], closed.body["event"]) == ("opened", "closed")
    # What stands in the header of an unknown API where others have their client id is its guess.
    known = all(step.known for step in link.script[: link.asked])
    assert len(named) <= 1
    assert not known or all(note.body["client_id"] in CLIENT_IDS for note in named)
    assert all(note.channel == CONNECTIONS for note in notes)
    assert START_NS <= opened.time_ns <= closed.time_ns <= world.now
    assert opened.body["node_id"] == link.node_id
    how = closed.body["how"]
    possible = {each.removesuffix("!") for each in link.hows}
    assert how in possible, f"it ended by {how}, where {sorted(possible)} happened"
    forced = {"reset", "stopped", "idle", "refused", "down", "fault"} & possible
    assert how == "violation" or "violation!" not in link.hows or forced, "garbage was taken"
    return closed.body


def check_requests(link: Link, requests: list[Frame], certain: bool) -> None:
    """Each request is recorded as it came, and what was fed to the machine is all there."""
    position = 0
    numbers = [frame.number for frame in requests]
    assert numbers == sorted(set(numbers))
    both = itertools.zip_longest(requests, link.script[: link.asked])
    for count, (frame, step) in enumerate(both):
        fed = link.fed[Side.CLIENT] - position
        if step is None or fed < len(step.request):
            # What comes behind the last whole request.
            if frame is not None:
                part = step.request if step else link.tail[Side.CLIENT]
                _check_cut_off(frame, part[:fed], step)
            elif certain:
                assert fed <= 0 or link.tail[Side.CLIENT], "a part of a request is missing"
            return
        if frame is None:
            assert not certain, f"request {count} of connection {link.number} is missing"
            return
        _check_request(frame, step)
        position += len(step.request)
        assert frame.received_ns == _when(link, Side.CLIENT, position)


def _check_cut_off(frame: Frame, part: bytes, step: Step | None) -> None:
    """A request of which only a part came; `step` is None where it was cut off by its client."""
    if not frame.flags & TRUNCATED:
        return  # garbage, or a request whose end was cut, that is whole by chance
    assert frame.frame_bytes >= len(frame.data)
    if frame.flags & REDACTED:
        kept = 4 if frame.flags & RAW_SASL else 12
        rest = frame.data[kept:]
        assert not rest.strip(b"\0*") and frame.data[:kept] == part[:kept]
        assert len(frame.data) == len(part)
    else:
        assert frame.data == part
        assert step is None or not step.token


def _check_request(frame: Frame, step: Step) -> None:
    assert not frame.flags & (TRUNCATED | REWRITTEN | UNANSWERED)
    assert frame.frame_bytes == len(step.request) == len(frame.data)
    check_recorded(frame, step.request, step.recorded, step.secret, 12)
    named = (frame.api_key, frame.api_version, frame.correlation_id)
    assert named == (step.api_key, step.api_version, step.correlation_id)
    assert bool(frame.flags & RAW_SASL) == step.token
    assert bool(frame.flags & NO_RESPONSE) == step.no_response
    assert bool(frame.flags & OPAQUE) == (not step.known)


def check_recorded(frame: Frame, data: bytes, recorded: bytes, secret: bool, head: int) -> None:
    """A whole frame is recorded as it came, but for its secrets."""
    assert bool(frame.flags & REDACTED) == (frame.data != data) or data == recorded
    if frame.data != recorded:
        # What is too large to be held back until its secrets are found is blanked out whole.
        assert secret and frame.flags & FRAGMENT
        assert frame.data == data[:head] + bytes(len(data) - head)


# ---- responses


def _check_responses(
    world: World, link: Link, requests: list[Frame], responses: list[Frame]
) -> None:
    """Responses are in order, recorded as they came, and what the client got of each is right."""
    delivered = bytes(link.received[Side.CLIENT])
    position = fed = 0
    assert len(responses) <= len(link.answers) or link.tail[Side.BROKER], "a response from nowhere"
    for (index, answer), frame in zip(link.answers, [*responses, None], strict=False):
        if frame is None:
            # Behind a violation nothing is taken in.
            came = link.fed[Side.BROKER] - fed
            assert came < 8 or "violation" in link.hows, "a response is missing"
            break
        assert frame.number == requests[index].number, "paired with another request"
        _check_pairing(frame, requests[index])
        fed += len(answer.data)
        if answer.garbage or fed > link.fed[Side.BROKER]:
            _check_partial(frame, answer, delivered[position:])
            return
        check_recorded(frame, answer.data, answer.recorded, answer.secret, 8)
        arrived = _when(link, Side.BROKER, fed)
        assert frame.received_ns in {arrived, *world.opened_ns} and frame.received_ns >= arrived
        position += _check_delivered(world, link, frame, answer, delivered[position:])
    rest = len(delivered) - position
    if link.tail[Side.BROKER] and len(responses) > len(link.answers):
        return  # what was meant as garbage was an answer
    assert rest < 8, "the client got what no broker sent"


def _when(link: Link, side: Side, position: int) -> int:
    """When the machine had so many bytes of a side."""
    reads = link.reads[side]
    return reads[bisect.bisect_left(reads, (position, 0))][1]


def _check_pairing(frame: Frame, request: Frame) -> None:
    assert (frame.api_key, frame.api_version) == (request.api_key, request.api_version)
    assert frame.correlation_id == request.correlation_id
    assert frame.request_bytes == request.frame_bytes
    assert frame.request_received_ns == request.received_ns
    # Unknown is only when a request that the same call sends on had not left when it was answered.
    assert frame.request_sent_ns in (request.sent_ns, 0)


def _check_partial(frame: Frame, answer: Answer, delivered: bytes) -> None:
    """A response of which only a part came: that part is recorded, and some of it delivered."""
    assert frame.flags & TRUNCATED
    data = frame.data
    kept = 4 if answer.token else 8
    assert data == answer.data[: len(data)] or (
        answer.secret and not data[kept:].strip(b"\0*") and data[:kept] == answer.data[:kept]
    )
    assert delivered == answer.data[: len(delivered)]


def _check_delivered(
    world: World, link: Link, frame: Frame, answer: Answer, delivered: bytes
) -> int:
    """A whole response reached the client as it must; returns how many bytes of it did."""
    assert bool(frame.flags & RAW_SASL) == answer.token
    assert not frame.flags & (TRUNCATED | UNANSWERED)
    sent = frame.sent if not frame.flags & REDACTED else answer.data
    if not frame.sent_ns:
        # It, or one behind it, waited for a listener or for the client, when all was broken.
        assert link.number in world.disturbed or "violation" in link.hows
        assert sent.startswith(delivered[: len(sent)])
        return min(len(delivered), len(sent))
    assert bool(frame.flags & REWRITTEN) == bool(frame.splices) == (sent != answer.data)
    _check_sent_on(world, link, answer, sent)
    if world.readable:
        # What cannot be decoded is searched for the brokers' hosts at the end.
        with contextlib.suppress(ProtocolError):
            for node_id, host, port in leak.nodes(sent, frame.api_key, frame.api_version):
                assert world.ours(link)[node_id] == (host, port), "not our address"
    assert delivered.startswith(sent), "the client got what the recording does not say"
    return len(sent)


def _check_sent_on(world: World, link: Link, answer: Answer, sent: bytes) -> None:
    """What was sent on is what the broker sent, but for exactly the addresses."""
    if sent == answer.data and not answer.addressed:
        return
    if sent == answer.sent_on(world.ours(link)):
        return
    if answer.cut and sent == answer.data and (answer.api_key != METADATA or answer.cut > 4):
        return  # cut, maybe, within its addresses
    streamed = len(answer.data) >= _STREAMED_BYTES_MIN and answer.api_key in (1, 78)
    assert streamed, f"Api {answer.api_key} v{answer.message.body_version}: not our addresses"
    assert len(sent) == len(answer.data), "a response that streams changed its length"
    before = decode_response(answer.data, answer.api_key, answer.message.body_version)
    after = decode_response(sent, answer.api_key, answer.message.body_version)
    ours = world.ours(link)
    for item in before.body.node_endpoints:
        if item.node_id >= 0 and item.host and item.port > 0:
            item.host, item.port = ours[item.node_id]
    if not after.body.node_endpoints:
        before.body.node_endpoints = []  # there was no room for ours
    padding = [tag for tag in after.body.unknown_tags if tag not in before.body.unknown_tags]
    assert all(tag in _PADDING_TAGS and not content.strip(b"\0") for tag, content in padding)
    kept = (tag for tag in after.body.unknown_tags if tag not in padding)
    after.body.unknown_tags = tuple(kept)
    assert after == before, "more than addresses changed"


# ---- exchanges


def check_accounts(
    link: Link, requests: list[Frame], responses: list[Frame], unanswered: list[Frame]
) -> None:
    """Every request has exactly one end."""
    ends: dict[int, int] = {frame.number: 0 for frame in requests}
    for frame in itertools.chain(responses, unanswered):
        assert frame.number in ends, "an answer to no request"
        ends[frame.number] += 1
    for frame in requests:
        if frame.flags & (NO_RESPONSE | TRUNCATED):
            ends[frame.number] += 1
        assert ends[frame.number] == 1, f"request {frame.number} has {ends[frame.number]} ends"
    answered = [frame.number for frame in responses]
    assert answered == sorted(answered)
    for frame in unanswered:
        assert frame.frame_bytes == 0 and not frame.data


def check_times(requests: list[Frame], responses: list[Frame], unanswered: list[Frame]) -> None:
    last = 0
    for frame in requests:
        assert last <= frame.received_ns, "requests out of order in time"
        last = frame.received_ns
        assert not frame.sent_ns or frame.sent_ns >= frame.received_ns
    last = 0
    for frame in responses:
        assert last <= frame.received_ns, "responses out of order in time"
        last = frame.received_ns
        assert not frame.sent_ns or frame.sent_ns >= frame.received_ns
        assert START_NS <= frame.request_received_ns <= frame.received_ns
        assert frame.request_sent_ns <= frame.received_ns
    for frame in unanswered:
        assert frame.request_received_ns <= frame.received_ns


def _check_all_arrived(world: World, link: Link) -> None:
    """Nothing was broken: all that was sent has arrived, and is known to have been sent on."""
    assert link.received[Side.BROKER] == link.said, "not all reached the broker"
    assert link.fed[Side.BROKER] == link.answer_bytes, "not all responses were read"
    mine = [e for e in world.entries if isinstance(e, Frame) and e.connection == link.number]
    for frame in mine:
        if not frame.flags & (MORE | UNANSWERED | TRUNCATED):
            assert frame.sent_ns, "it is not recorded as sent on"
    got = len(link.received[Side.CLIENT])
    whole = [frame for frame in mine if frame.side is Side.BROKER and not frame.flags & MORE]
    sent = sum(len(_whole_sent(link, frame)) for frame in whole if not frame.flags & TRUNCATED)
    assert got >= sent, "not all reached the client"


def _check_half_closes(link: Link) -> None:
    """The end of one side was told to the other, once nothing more is due to it."""
    if link.ended == {Side.BROKER}:
        assert Side.CLIENT in link.eofs, "the client was not told of the broker's end"
    if link.ended == {Side.CLIENT} and all(
        step.answer or step.no_response for step in link.script[: link.asked]
    ):
        assert Side.BROKER in link.eofs, "the broker was not told of the client's end"


def _whole_sent(link: Link, frame: Frame) -> bytes:
    if frame.flags & FRAGMENT:
        return bytes(frame.frame_bytes)  # which streamed, and kept its size
    return frame.sent


def _check_numbers(world: World) -> None:
    """Numbers count requests over all connections, each once."""
    numbers = {}
    for entry in world.entries:
        if isinstance(entry, Frame) and entry.side is Side.CLIENT:
            before = numbers.setdefault(entry.number, (entry.connection, entry.correlation_id))
            assert before == (entry.connection, entry.correlation_id)
    assert not numbers or (min(numbers) == 1 and max(numbers) == len(numbers))


def _check_exchanges(world: World) -> None:
    """Every request is one exchange."""
    asked = [
        entry.number
        for entry in world.entries
        if isinstance(entry, Frame) and entry.side is Side.CLIENT and not entry.flags & MORE
    ]
    exchanges = list(pair(world.entries))
    assert sorted(exchange.number for exchange in exchanges) == sorted(asked)
    for exchange in exchanges:
        assert (exchange.broker_ms or 0) >= 0 and (exchange.proxy_ms or 0) >= 0


# ---- secrets and memory


def _check_secrets(world: World) -> None:
    """No secret, nor half of one, is in the recording or in a line of the log."""
    if not world.filler.secrets:
        return
    kept = b"\n".join(_texts(world))
    for secret in world.filler.secrets:
        middle = secret[4:14]
        assert secret[:6] not in kept and middle not in kept, "a secret was recorded"
    _check_addresses(world)


def _texts(world: World) -> Iterator[bytes]:
    for entry in world.entries:
        if isinstance(entry, Note):
            yield repr(entry.body).encode()
        else:
            yield from entry.pieces
            yield from (replacement for _, _, replacement in entry.splices)
    yield from (text.encode() for text in world.logs)


def _check_addresses(world: World) -> None:
    """No log has more than one line; no client sees where a broker really is."""
    assert all("\n" not in text for text in world.logs)
    if not world.readable:
        return  # what cannot be decoded passes as it is
    for link in world.links:
        got = link.received[Side.CLIENT]
        for host, _ in itertools.chain.from_iterable(world.past.values()):
            assert host.encode() not in got, f"{host} reached a client"


_OPAQUE_TYPES = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.CodeType,
    types.BuiltinFunctionType,
    str,
    int,
    float,
)


def held_bytes(root: Any) -> int:
    """How many bytes of data hang on an object."""
    seen: set[int] = set()
    stack = [root]
    total = 0
    while stack:
        item = stack.pop()
        if id(item) in seen or isinstance(item, _OPAQUE_TYPES):
            continue
        seen.add(id(item))
        if isinstance(item, (bytes, bytearray)):
            total += len(item)
        else:
            stack.extend(gc.get_referents(item))
    return total
