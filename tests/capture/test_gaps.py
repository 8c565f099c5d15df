"""What a capture does not have is told, and costs no more than what it belongs to."""

from __future__ import annotations

import contextlib
import gzip
import random
import subprocess
from pathlib import Path

import pytest

from kproxy.capture.file import CaptureError, Cut
from kproxy.exchange.entries import OPEN_AT_END, TRUNCATED, UNANSWERED, Note
from tests.bed.packets import ACK, RST, SYN, TcpTalk, pcap, timed
from tests.bed.proxies import KPROXY
from tests.capture.test_importer import BROKER, DEMO, imported, sent_by, talks

LONG = max(DEMO, key=len)


def talk(port: int = 50_000) -> TcpTalk:
    """A connection of the tests."""
    return TcpTalk((("10.0.0.1", port), BROKER))


def told(notes: list[Note]) -> list[str]:
    """The reasons of what is lost."""
    return [each.body["reason"] for each in notes if each.body["event"] == "lost"]


def test_a_gap_within_a_response_costs_that_response() -> None:
    """Its size says where the next one begins, although a part of it was not captured."""
    spoken = talk()
    spoken.segment_bytes = 50
    found, sent = spoken.opens(), LONG
    large = max(range(len(sent)), key=lambda at: len(sent[at][1]) if sent[at][0] else 0)
    for place, (side, data) in enumerate(sent):
        packets = spoken.says(side, data)
        if place == large:
            del packets[4]  # the third segment
        found += packets
    frames, notes = imported(pcap(timed([*found, *talk(50_001).opens() * 200])))
    kept = frames[50_000]
    assert [each.flags & TRUNCATED for each in kept].count(TRUNCATED) == 1
    one = sorted(set(sent) - set(sent_by(kept)))
    assert one == [sent[large]] and len(kept) == len(sent)
    assert any("from the broker: 50 bytes were not captured" in each for each in told(notes))


def test_a_capture_that_begins_in_the_middle() -> None:
    """What comes before the first whole request is told; the connection was open before."""
    spoken = talk()
    found = []
    for side, data in LONG:
        found += spoken.says(side, data)
    rest = found[len(found) // 2 :]
    frames, notes = imported(pcap(timed(rest)))
    assert notes[0].body["event"] == "open" and "opened_ns" in notes[0].body
    kept = sent_by(frames[50_000])
    assert kept and all(each in LONG for each in kept)
    requests = {each.number: each.data for each in frames[50_000] if each.side == 0}
    for each in frames[50_000]:
        if each.side == 1 and not each.flags & UNANSWERED:
            assert requests[each.number][8:12] == each.data[4:8]


def test_packets_cut_by_the_snap_length() -> None:
    """Headers and a few bytes: who asked what is there, and that the rest is not."""
    found, sent = talks()
    frames, notes = imported(pcap(timed(found), snap_bytes=14 + 40 + 30))
    for port, each in sent.items():
        asked = [data[4:12] for side, data in each if side == 0]
        assert [frame.data[4:12] for frame in frames[port] if frame.side == 0] == asked
    assert told(notes)


def test_a_reset_ends_it_and_a_new_connection_has_the_same_port() -> None:
    """What waits for a response is not answered; the next connection is another one."""
    spoken = talk()
    found = spoken.opens() + spoken.says(0, LONG[0][1])
    found.append(spoken.packet(1, spoken.next[1], RST | ACK))
    other = TcpTalk(spoken.ends, [77_777, 99_999])
    found += other.opens()
    for side, data in LONG:
        found += other.says(side, data)
    frames, notes = imported(pcap(timed(found)))
    closed = [each.body for each in notes if each.body["event"] == "closed"]
    assert [(each["how"], each["side"], each["connection"]) for each in closed] == [
        ("reset", "broker", 1)
    ]
    flags = [each.flags for each in frames[50_000] if each.connection == 1 and each.side == 1]
    assert flags == [UNANSWERED]
    assert sent_by(each for each in frames[50_000] if each.connection == 2) == LONG


def test_the_first_of_contradicting_bytes_counts() -> None:
    """A segment that contradicts an earlier one changes nothing."""
    spoken = talk()
    found = spoken.opens()
    for side, data in LONG:
        at = spoken.next[side]
        found += spoken.says(side, data)
        found.append(spoken.packet(side, at, ACK, bytes(len(data))))
    frames, _ = imported(pcap(timed(found)))
    assert sent_by(frames[50_000]) == LONG


def test_a_request_whose_response_was_not_captured_is_open() -> None:
    """Nobody says that the broker did not answer."""
    spoken = talk()
    found = spoken.opens()
    for place, (side, data) in enumerate(LONG):
        packets = spoken.says(side, data)
        found += packets[1::2] if place == 3 else packets
    frames, _ = imported(pcap(timed([*found, *spoken.closes()])))
    ends = [each.flags for each in frames[50_000] if each.flags & UNANSWERED]
    assert LONG[3][0] == 1 and ends == [UNANSWERED | OPEN_AT_END]


@pytest.mark.parametrize("seed", range(30))
def test_damaged_captures_are_read_as_far_as_they_go(seed: int) -> None:
    """Flipped bytes and a cut: no error but those that say so."""
    chance = random.Random(seed)
    data = bytearray(pcap(timed(talks()[0])))
    for _ in range(20):
        data[chance.randrange(24, len(data))] = chance.randrange(256)
    with contextlib.suppress(CaptureError, Cut):
        imported(bytes(data[: chance.randrange(len(data))]))


def test_endless_segments_that_never_fit_are_not_kept() -> None:
    """The memory for what is out of order is bounded, and its time."""
    spoken = talk()
    found = spoken.opens()
    found += [
        spoken.packet(0, spoken.next[0] + 4_000_000 - number * 3, ACK, b"xy")
        for number in range(20_000)
    ]
    flood = (spoken.packet(0, number, SYN) for number in range(20_000))
    imported(pcap(timed([*found, *flood])))


def run(*words: str) -> tuple[int, str]:
    """Run the command; its exit code and what it says of errors."""
    done = subprocess.run([KPROXY, "import", *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_what_is_wrong_is_said_in_a_line(tmp_path: Path) -> None:
    """Nothing is replaced, and nothing is written of what is no capture."""
    out = tmp_path / "x.mcap"
    nothing, empty, odd = tmp_path / "no.pcap", tmp_path / "empty.pcap", tmp_path / "odd.pcap"
    empty.write_bytes(b"")
    odd.write_bytes(b"not a capture")
    for name, what in (
        (nothing, "No such file or directory"),
        (empty, "is empty"),
        (odd, "is no capture of packets (pcap or pcapng)"),
    ):
        code, said = run(str(name), "--out", str(out))
        assert code == 1 and str(name) in said and what in said and said.count("\n") == 1
        assert not out.exists()
    odd.write_bytes(pcap(timed(talks()[0]))[:-5])
    code, said = run(str(odd), "--out", str(out))
    assert code == 0 and "breaks off in the middle of a packet" in said
    code, said = run(str(odd), "--out", str(out))
    assert code == 1 and "is there already" in said
    whole = gzip.compress(pcap(timed(talks()[0])))
    odd.write_bytes(whole[:500] + bytes(50) + whole[550:])
    code, said = run(str(odd), "--out", str(tmp_path / "y.mcap"))
    assert code == 1 and f"{odd} " in said and "Traceback" not in said
