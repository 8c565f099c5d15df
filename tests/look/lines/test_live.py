"""The exchanges as they pass."""

from __future__ import annotations

import io
import os
import re
import threading
import time
from datetime import timedelta

import attrs
import pytest

from kproxy.exchange.entries import NO_RESPONSE, Note
from kproxy.exchange.pairing import pair
from kproxy.look.lines.lines import Folding
from kproxy.look.lines.live import (
    BURST_MAX,
    RECORDS_BYTES_MAX,
    Live,
)
from kproxy.look.lines.output import TextOutput
from kproxy.wire.protocol import messages
from tests.exchange.batches import batch
from tests.exchange.making import MS, START_NS, request, response
from tests.exchange.test_text import fetch_request, fetch_response
from tests.look.lines.test_show import heartbeat

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
        lines += folding.take(exchange)
    return [line[63:].strip() for line in [*lines, *folding.flush()]]


def test_noise_is_folded():
    assert folded(*(fetch(n) for n in range(1, 39))) == [
        "Fetch v11          orders[0@5] → empty",
        "Fetch ×37 empty, 38.0 ms",
    ]


def test_one_line_is_not_folded():
    assert folded(fetch(1), fetch(2)) == ["Fetch v11          orders[0@5] → empty"] * 2


def test_a_long_silence_shows_that_it_lives():
    folding = Folding(folded_for=timedelta(seconds=10))
    counts = []
    for number in range(1, 31):
        (exchange,) = pair(beat(number * 1000))
        counts.append(len(folding.take(exchange)))
    assert counts == [1, *[0] * 9, 1, *[0] * 9, 1, *[0] * 9]


# ---- Live


def live(*batches, **options) -> list[str]:
    out = io.StringIO()
    output = TextOutput(out)
    view = Live(output, **options)
    for entries in batches:
        view.watch(entries)
    view.finish()
    output.finish()
    return out.getvalue().splitlines()


def test_live_writes_nothing_for_nothing():
    assert live([], [Note("events", START_NS, {"event": "state"})]) == []


def test_a_flood_is_counted_not_shown():
    flood = [entry for n in range(1, 5001) for entry in fetch(n, batch(1))]
    times = [attrs.evolve(entry, received_ns=START_NS) for entry in flood]
    lines = live(times)
    assert len(lines) == BURST_MAX + 1
    assert lines[-1] == f"… and {5000 - BURST_MAX} more"


def metadata(number: int, topics: int):
    topic = messages.MetadataResponse.MetadataResponseTopic
    body = messages.MetadataResponse(topics=[topic(name=f"t{i:05}") for i in range(topics)])
    asked = request("Metadata", 8, messages.MetadataRequest(topics=None), number)
    return [asked, response(asked, body)]


def test_what_would_take_long_to_decode_is_not_looked_into():
    (text,) = live(metadata(1, 200_000))
    assert re.search(r"→ [\d.]+ MiB, not looked into$", text)
    (text,) = live(metadata(1, 20))
    assert "20 topics" in text


def test_large_frames_of_records_are_looked_into_up_to_a_limit():
    large = batch(1, value=b"x" * (RECORDS_BYTES_MAX // 2))
    (text,) = live(fetch(1, large))
    assert "1 record" in text
    asked, answered = fetch(1, large)
    (text,) = live([asked, attrs.evolve(answered, frame_bytes=RECORDS_BYTES_MAX + 1)])
    assert text.endswith("→ 4.0 MiB, not looked into")


def test_frames_that_wait_for_the_thread_are_bounded(monkeypatch):
    stuck, out = threading.Event(), io.StringIO()
    monkeypatch.setattr(Folding, "take", lambda self, exchange: [str(stuck.wait())])
    output = TextOutput(out)
    view = Live(output)
    large = fetch(1, batch(1, value=b"x" * (2 << 20)))
    for number in range(100):
        view.watch([attrs.evolve(each, number=number) for each in large])
    stuck.set()
    view.finish(30)
    output.finish()
    shown = out.getvalue().splitlines()
    unseen = [int(line.split()[2]) for line in shown if line.startswith("… and ")]
    assert len(shown) - len(unseen) + sum(unseen) == 100 and sum(unseen) > 80


def test_a_defect_ends_the_display_and_is_told(monkeypatch):
    monkeypatch.setattr(Folding, "take", lambda self, exchange: 1 / 0)
    view = Live(TextOutput(io.StringIO()))
    view.watch(fetch(1))
    with pytest.raises(ZeroDivisionError):
        for _ in range(600):  # until the thread has met it
            time.sleep(0.1)
            view.watch(fetch(2))
    view.finish()


def test_a_terminal_that_stands_still_loses_lines_but_holds_up_nothing():
    body = messages.HeartbeatRequest(group_id="g" * 300)
    asked = request("Heartbeat", 4, body, flags=NO_RESPONSE)
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "w") as out, os.fdopen(read_end) as terminal:
        output = TextOutput(out)
        view = Live(output)
        for number in range(1, 5001):  # 380 bytes each: more than the pipe and the queue hold
            view.watch([attrs.evolve(asked, received_ns=START_NS + number * SECOND)])
        view.finish(30)
        # It moves again, and is told how much it missed.
        seen: list[str] = []
        reader = threading.Thread(target=lambda: seen.extend(terminal), daemon=True)
        reader.start()
        output.finish(60)
        out.close()
        reader.join(60)
    assert len(seen) - len(counts(seen)) + sum(counts(seen)) == 5000
    assert counts(seen), "it says how much is missing"


def counts(lines: list[str]) -> list[int]:
    """The numbers in the lines that say how much is not shown."""
    return [int(n) for line in lines for n in re.findall(r"^… (?:and )?(\d+) (?:more|line)", line)]


def test_a_terminal_that_has_gone_is_no_error():
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "w") as out:
        os.close(read_end)
        output = TextOutput(out)
        view = Live(output)
        view.watch(fetch(1, batch(1)))
        view.finish()
        output.finish()
