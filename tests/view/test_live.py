"""The exchanges as they pass."""

from __future__ import annotations

import io
import os
import threading

import attrs
import pytest

from kproxy.exchange.entries import NO_RESPONSE, Note
from kproxy.exchange.exchange import pair
from kproxy.protocol import messages
from kproxy.view.live import BURST_MAX, FRAME_BYTES_MAX, Folding, Live
from tests.exchange.making import MS, START_NS, answer, fragments, request, response
from tests.view.batches import batch
from tests.view.test_show import heartbeat
from tests.view.test_text import fetch_request, fetch_response

SECOND = 1_000 * MS


def fetch(number: int, data: bytes = b""):
    asked = request("Fetch", 11, fetch_request({0: 5}), number)
    return [asked, response(asked, fetch_response({0: data}))]


def beat(number: int, error_code: int = 0):
    asked = heartbeat(number)
    return [asked, response(asked, messages.HeartbeatResponse(error_code=error_code))]


def folded(*exchanges) -> list[str]:
    """Words of the lines that these entries give, after the fixed part."""
    folding = Folding()
    lines = []
    for entries in exchanges:
        (exchange,) = pair(entries)
        lines += folding.feed(exchange)
    return [line[35:].strip() for line in [*lines, *folding.flush()]]


def test_noise_is_folded():
    assert folded(*(fetch(n) for n in range(1, 39))) == [
        "Fetch v11          orders[0@5] → empty",
        "Fetch ×37 empty",
    ]


def test_what_says_something_ends_the_fold():
    words = folded(fetch(1), fetch(2), beat(3), fetch(4), fetch(5, batch(1)), beat(6))
    assert words == [
        "Fetch v11          orders[0@5] → empty",
        "Fetch ×2 empty, Heartbeat ×1",
        f"Fetch v11          orders[0@5] → 1 record @0, {len(batch(1))} B",
        "Heartbeat v4       checkout: generation 3, m-1",
    ]


def test_one_line_is_not_folded():
    assert folded(fetch(1), fetch(2)) == ["Fetch v11          orders[0@5] → empty"] * 2


def test_errors_are_not_folded():
    words = folded(beat(1), beat(2, error_code=27), beat(3, error_code=27))
    assert len(words) == 3
    assert words[1].endswith("→ REBALANCE_IN_PROGRESS")


def test_a_long_silence_shows_that_it_lives():
    folding = Folding()
    counts = []
    for number in range(1, 31):
        (exchange,) = pair(beat(number * 1000))
        counts.append(len(folding.feed(exchange)))
    assert counts == [1, *[0] * 9, 1, *[0] * 9, 1, *[0] * 9]


# ---- Live


def live(*batches, **options) -> list[str]:
    out = io.StringIO()
    view = Live(out, **options)
    for entries in batches:
        view.watch(entries)
    view.finish()
    return out.getvalue().splitlines()


def test_live_pairs_across_batches():
    asked, answered = fetch(1, batch(2))
    lines = live([asked], [answered], [heartbeat(2)])
    assert len(lines) == 2
    assert "2 records" in lines[0]
    assert lines[1].endswith("→ never answered")


def test_live_writes_nothing_for_nothing():
    assert live([], [Note("events", START_NS, {"event": "state"})]) == []


def test_a_flood_is_counted_not_shown():
    flood = [entry for n in range(1, 5001) for entry in fetch(n, batch(1))]
    times = [attrs.evolve(entry, received_ns=START_NS) for entry in flood]
    lines = live(times)
    assert len(lines) == BURST_MAX + 1
    assert lines[-1] == f"… and {5000 - BURST_MAX} more"


def test_after_a_flood_it_recovers():
    flood = [entry for n in range(1, 1001) for entry in fetch(n, batch(1))]
    flood = [attrs.evolve(entry, received_ns=START_NS) for entry in flood]
    later = [attrs.evolve(e, received_ns=START_NS + SECOND) for e in fetch(2000, batch(7))]
    lines = live(flood, later)
    assert "7 records" in lines[-1]


def test_large_frames_are_not_kept():
    asked = heartbeat()
    size = FRAME_BYTES_MAX + 1
    big = attrs.evolve(answer(asked, b"\0" * 3000), frame_bytes=size)
    (text,) = live([asked], fragments(big, [1000, 2000]))
    assert text.endswith("→ 4.0 MiB, not looked into")


def test_a_terminal_that_stands_still_loses_lines_but_holds_up_nothing():
    body = messages.HeartbeatRequest(group_id="g" * 300)
    asked = request("Heartbeat", 4, body, flags=NO_RESPONSE)
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "w") as out, os.fdopen(read_end) as terminal:
        view = Live(out)
        for number in range(1, 1001):  # 380 bytes each: more than the pipe and the queue hold
            view.watch([attrs.evolve(asked, received_ns=START_NS + number * SECOND)])
        # It moves again, and is told how much it missed.
        seen: list[str] = []
        reader = threading.Thread(target=lambda: seen.extend(terminal), daemon=True)
        reader.start()
        view.finish()
        out.close()
        reader.join(5)
    missed = [
        int(line.split()[1]) for line in seen if "not shown: the terminal is too slow" in line
    ]
    assert missed
    assert len(seen) - len(missed) + sum(missed) == 1000


def test_a_terminal_that_has_gone_is_no_error():
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "w") as out:
        os.close(read_end)
        view = Live(out)
        view.watch(fetch(1, batch(1)))
        view.finish()


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_any_terminal_can_show_it(encoding, tmp_path):
    path = tmp_path / "out"
    with path.open("w", encoding=encoding) as out:
        view = Live(out)
        view.watch(fetch(1, batch(1)))
        view.finish()
    assert path.read_bytes().count(b"\n") == 1
