"""What is open at a gap in a recording has no known end, in stories and in findings."""

from __future__ import annotations

import io
from pathlib import Path

from kproxy.exchange import notes
from kproxy.look.why.stories import show_why
from kproxy.recording import Recording
from tests.exchange.making import MS, START_NS
from tests.look.why.test_transactional_id import end, initialize, produce
from tests.look.why.traffic import Traffic, beat, join, sync, two_members


def lose(traffic: Traffic, at_ms: int) -> None:
    at_ns = START_NS + at_ms * MS
    traffic.entries.append(notes.lost(3, 100, "the disk is full", at_ns - MS, at_ns))


def told(traffic: Traffic, tmp_path: Path, *subject: str) -> str:
    return "\n".join(traffic.story(tmp_path, *subject))


def test_a_transaction_across_a_gap_is_not_one(tmp_path):
    traffic = Traffic()
    traffic.add(0, *initialize(0), client="shop")
    traffic.add(10, *produce(0, 0, 5), client="shop")
    lose(traffic, 15)
    traffic.add(20, *produce(0, 3, 9), client="shop")
    traffic.add(30, *end(0), client="shop")
    lines = traffic.story(tmp_path, "transactional_id", "pay")
    assert "2 transactions (1 whose end is not in the recording, 1 committed)." in lines[0]
    assert lines[2].endswith(
        "transaction 1, begun with Produce #2: orders[0] 3 records @5..7; whether it was committed"
        " or aborted is not in the recording."
    )
    assert lines[3].endswith(
        "transaction 2, first seen with Produce #3: orders[0] 3 records @9..11; committed with"
        " EndTxn #4 after at least 11.0 ms."
    )


def test_the_silence_of_a_member_is_not_counted_across_a_gap(tmp_path):
    traffic = two_members()
    traffic.add(100, *beat("m-b", 3), connection=2, client="slow")
    lose(traffic, 200)
    traffic.add(9000, *join("m-a", 4, ["m-a"]), client="fast")
    traffic.add(9010, *sync("m-a", 4, 0, 1, 2, 3), client="fast")
    story = told(traffic, tmp_path, "group", "billing")
    assert "slow is no member any more; why is not in the recording" in story
    assert "silence" not in story
    assert "it asked nothing for" not in told(traffic, tmp_path, "client_id", "fast")


def test_a_part_that_is_missing_is_a_gap(tmp_path):
    traffic = Traffic()
    traffic.add(0, *initialize(0), client="shop")
    traffic.add(10, *produce(0, 0, 5), client="shop")
    traffic.add(20, *end(0), client="shop")
    traffic.add(30, *produce(0, 3, 9), client="shop")
    traffic.add(40, *end(0), client="shop")
    settings = {"start_ns": START_NS, "schema_id": "x", "library_version": "0"}
    recording = Recording(tmp_path / "run.mcap", **settings, rotate_ns=5 * MS)
    first, *others = sorted(traffic.entries, key=lambda entry: entry.time_ns)
    for entry in (first, *others):
        recording.write([entry])
    recording.close()
    unknown = "1 whose end is not in the recording, 1 committed"
    for paths, said in ((recording.paths, "2 committed"), (without(recording.paths, 3), unknown)):
        out = io.StringIO()
        show_why(paths, "transactional_id", "pay", out)
        assert f"2 transactions ({said})" in out.getvalue()


def without(paths: list[Path], part: int) -> list[Path]:
    return [*paths[: part - 1], *paths[part:]]
