"""Captures become what was sent: whole where all of it was captured, and never more."""

from __future__ import annotations

import io
import random
from collections import defaultdict
from collections.abc import Iterable

import pytest

from kproxy import recording
from kproxy.capture.file import packets
from kproxy.capture.importer import Importer
from kproxy.exchange.entries import TRUNCATED, UNANSWERED, Frame, Note, each_frame
from tests.bed import needs
from tests.bed.packets import LINKS, TcpTalk, pcap, pcapng, timed

BROKER = ("10.0.0.9", 9092)


def demo() -> list[list[tuple[int, bytes]]]:
    """What each connection of the demo sent, by side."""
    found = defaultdict[int, list[tuple[int, bytes]]](list)
    for entry in recording.entries([needs.REPOSITORY / "recordings" / "demo.mcap"]):
        if isinstance(entry, Frame) and not entry.flags & UNANSWERED:
            found[entry.connection].append((int(entry.side), entry.data))
    return [*found.values()]


DEMO = demo()


def talks(copies: int = 1, **settings) -> tuple[list[bytes], dict[int, list[tuple[int, bytes]]]]:
    """Return packets of the demo's connections, so many times, and what was sent, by port."""
    found: list[bytes] = []
    sent = {}
    for number in range(copies * len(DEMO)):
        port = 50_000 + number
        talk = TcpTalk((("10.0.0.1", port), BROKER), **settings)
        found += talk.opens()
        sent[port] = DEMO[number % len(DEMO)]
        for side, data in sent[port]:
            found += talk.says(side, data)
        found += talk.closes()
    return found, sent


def imported(capture: bytes, **settings) -> tuple[dict[int, list[Frame]], list[Note]]:
    """Import a capture; return the frames of each connection, by its client's port, and notes."""
    importer = Importer(**settings)
    for packet in packets(io.BytesIO(capture).read):
        importer.packet(packet)
    importer.finish()
    frames, notes, ports = defaultdict[int, list[Frame]](list), [], {}
    for entry in each_frame(importer.entries):
        if isinstance(entry, Note):
            notes.append(entry)
            if entry.body["event"] in ("opened", "open"):
                address = entry.body["client_address"]
                ports[entry.body["connection"]] = int(address.rpartition(":")[2])
        else:
            frames[ports[entry.connection]].append(entry)
    return frames, notes


def sent_by(frames: Iterable[Frame]) -> list[tuple[int, bytes]]:
    """Return what frames hold, in their order."""
    return [(int(each.side), each.data) for each in frames]


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("write", [pcap, pcapng])
def test_every_link_and_format_gives_the_same(link: str, write) -> None:
    """The frames that were sent, and who sent them to whom."""
    found, sent = talks()
    frames, notes = imported(write(timed(found), link))
    assert {port: sent_by(each) for port, each in frames.items()} == sent
    closed = [each.body for each in notes if each.body["event"] == "closed"]
    assert {each["broker_address"] for each in closed} == {"10.0.0.9:9092"}
    assert {(each["how"], each["first"]) for each in closed} == {("eof", "client")}
    assert len(closed) == len(sent)


def test_ipv6_and_wrapping_sequence_numbers() -> None:
    """Sequence numbers wrap within the first bytes of both sides."""
    talk = TcpTalk((("fd00::1", 50_000), ("fd00::9", 9092)), [(1 << 32) - 9, (1 << 32) - 300])
    found = talk.opens()
    for side, data in DEMO[0]:
        found += talk.says(side, data)
    frames, _ = imported(pcap(timed(found), "raw"))
    assert sent_by(frames[50_000]) == DEMO[0]


def shuffled(found: list[bytes], chance: random.Random) -> list[bytes]:
    """Return packets of which some come later, twice, or once more together with their neighbour's
    bytes."""
    late = [
        (number + chance.randrange(2, 9) if chance.random() < 0.05 else number, packet)
        for number, packet in enumerate(found)
    ]
    late += [
        (number + chance.randrange(9), packet)
        for number, packet in enumerate(found)
        if chance.random() < 0.05
    ]
    return [packet for _, packet in sorted(late, key=lambda each: each[0])]


@pytest.mark.parametrize("seed", range(10))
def test_order_and_copies_of_packets_do_not_matter(seed: int) -> None:
    """Shuffled and doubled packets give what was sent, and each request before its response."""
    chance = random.Random(seed)
    found, sent = talks(5, segment_bytes=chance.choice((40, 200, 1448)))
    frames, notes = imported(pcap(timed(shuffled(found, chance))))
    assert not [each.body for each in notes if each.body["event"] == "lost"]
    assert {port: sent_by(each) for port, each in frames.items()} == sent


@pytest.mark.parametrize("seed", range(20))
def test_what_is_lost_is_told_and_nothing_is_made_up(seed: int) -> None:
    """With 1 % of packets lost and others shuffled: what is whole was sent, in this order, and
    answers what it did; the rest is told."""
    chance = random.Random(seed)
    found, sent = talks(10, segment_bytes=chance.choice((60, 200, 1448)))
    rest = [each for each in shuffled(found, chance) if chance.random() > 0.01]
    frames, notes = imported(pcap(timed(rest)))
    lost = {each.body["reason"].split(",")[0] for each in notes if each.body["event"] == "lost"}
    pairs, whole = pairs_of(sent), 0
    for port, each in frames.items():
        kept = [frame for frame in each if not frame.flags & (TRUNCATED | UNANSWERED)]
        whole += len(kept)
        places = iter(sent[port])
        assert all(frame in places for frame in sent_by(kept) if frame[0] == 0)
        requests = {frame.number: frame.data for frame in kept if frame.side == 0}
        for frame in kept:
            if frame.side == 1 and frame.number in requests:
                assert (requests[frame.number], frame.data) in pairs[port]
        if len(kept) < len(sent[port]):
            assert f"connection {each[0].connection}" in lost
    assert whole > 0.8 * sum(map(len, sent.values()))


def pairs_of(sent: dict[int, list[tuple[int, bytes]]]) -> dict[int, set[tuple[bytes, bytes]]]:
    """Return the requests and their responses, by correlation id."""
    found = {}
    for port, each in sent.items():
        requests = {data[8:12]: data for side, data in each if side == 0}
        found[port] = {(requests[data[4:8]], data) for side, data in each if side == 1}
    return found
