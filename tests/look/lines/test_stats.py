"""`kproxy stats`."""

from __future__ import annotations

import io
import os
import shutil
from collections import Counter
from pathlib import Path

import attrs
import pytest

from kproxy.cli import main
from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.pairing import pair
from kproxy.look.lines.stats import Stats
from kproxy.look.lines.stats_lines import lines, show_stats, stats_of
from kproxy.look.lines.stream import Stream
from kproxy.recording import Recording
from kproxy.wire.protocol import messages, records
from kproxy.wire.protocol.record_batch import Record
from tests.bed import needs
from tests.exchange.bodies import (
    fetch_request,
    fetch_response,
    produce_request,
    produce_response,
)
from tests.exchange.filters import DEMO as MOCK
from tests.exchange.making import MS, START_NS, answer, closed, opened, request, response
from tests.recording.making import write

M = messages


def counted(*exchanges, reads_bodies: bool = True) -> Stats:
    stats = Stats(reads_bodies)
    for each in exchanges:
        if isinstance(each, ConnectionEnd):
            stats.end(each)
        else:
            stats.take(each)
    return stats


def test_headers_alone_open_no_body(monkeypatch):
    monkeypatch.setattr("kproxy.exchange.facts.response_body", lambda *_: 1 / 0)
    made = exchange_of_heartbeat()
    stats = counted(made, reads_bodies=False)
    assert stats.counts.by_api["Heartbeat"].count == 1 and not stats.counts.failures


def exchange_of_heartbeat():
    asked = request("Heartbeat", 4, M.HeartbeatRequest())
    (made,) = pair([asked, response(asked, M.HeartbeatResponse(error_code=25))])
    return made


def polled(count: int, beyond: int) -> Stats:
    """Fetches that let the broker wait for 0.5 s, of which some took 0.7 s longer."""
    made = []
    for number in range(count):
        asked = request("Fetch", 11, fetch_request({0: 5}, max_wait_ms=500), number)
        answered = response(asked, fetch_response({0: b""}))
        answered.received_ns = asked.sent_ns + (1200 if number < beyond else 400) * MS
        made += pair([asked, answered])
    return counted(*made)


@pytest.mark.parametrize(
    ("count", "beyond", "told"),
    [(30, 5, False), (30, 20, True), (5, 5, True), (2500, 24, False), (2500, 25, True)],
)
def test_no_percentiles_of_the_few_that_are_not_all_wait(count, beyond, told):
    found = list(lines(polled(count, beyond), width=80))
    (fetch,) = (line.split() for line in found if line.startswith("Fetch"))
    assert fetch[2:6] == (["700", "700", "700", "700"] if told else ["–", "–", "–", "700"])
    assert found[-1].startswith("–: most have no such time") is not told
    assert max(map(len, found)) <= 80


@pytest.mark.parametrize("same_batch", [True, False])
def test_a_recording_begins_with_the_request_that_arrived_first(same_batch, tmp_path):
    """A poll of 30 s is over, and so recorded, after what was asked in the middle of it."""
    fetch = request("Fetch", 11, fetch_request({0: 5}, max_wait_ms=30_000), 1)
    beat = request("Heartbeat", 4, M.HeartbeatRequest(), 15_000, connection=2)
    polled = response(fetch, fetch_response({0: b""}), received_ns=fetch.sent_ns + 30_000 * MS)
    beaten = response(beat, M.HeartbeatResponse())
    batches = [[fetch, beat, beaten], [polled]]
    if same_batch:
        batches = [[fetch, beat, beaten, polled]]
    out = io.StringIO()
    show_stats([write(tmp_path / "poll.mcap", batches)], out)
    assert out.getvalue().startswith("2 exchanges in 15.0 s from 2023-11-14 22:13:20 UTC")
    stats = counted(*pair([fetch, beat, beaten, polled]))
    assert stats.first is not None and stats.last is not None
    assert (stats.last - stats.first).total_seconds() == 14.999


# ---- recordings


@pytest.fixture
def recorded(tmp_path):
    """Thirty APIs, so to speak."""
    path = tmp_path / "some.mcap"
    recording = Recording(path, start_ns=START_NS, schema_id="x", library_version="0")
    for number in range(1, 31):
        asked = request("Heartbeat", 4, M.HeartbeatRequest(), number, api_key=number + 100)
        recording.write([asked, answer(asked, b"\0\0\0\4\0\0\0\1")])
    recording.close()
    return path


def test_it_fits_a_screen(recorded):
    out = io.StringIO()
    show_stats([recorded], out)
    found = out.getvalue().splitlines()
    assert found[0].startswith(
        "30 exchanges in 29.0 ms from 2023-11-14 22:13:20 UTC (1.00 ms after the recording began),"
        " 1 connection"
    )
    assert "… and 18 more" in found
    out = io.StringIO()
    show_stats([recorded], out, rows_max=None)
    assert "Api130" in out.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_what_it_says_of_errors_is_wrapped_between_words(width):
    asked = request("AddOffsetsToTxn", 0, M.AddOffsetsToTxnRequest(), 2)
    failed = list(pair([asked, response(asked, M.AddOffsetsToTxnResponse(error_code=49))]))
    asked = request("InitProducerId", 4, M.InitProducerIdRequest(), 7)
    failed += pair([asked, response(asked, M.InitProducerIdResponse(error_code=49))])
    found = list(lines(counted(*failed), width=width))
    at = next(place for place, line in enumerate(found) if line.startswith("INVALID_PRODUCER"))
    assert found[at].startswith("INVALID_PRODUCER_ID_MAPPING ×2  AddOffsetsToTxn 1,")
    assert all(len(line) <= width for line in found[at : at + 2])
    said = " ".join(line.strip() for line in found[at : at + 2])
    assert "InitProducerId 1; the first is #2" in said


@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 40), (200, 60)])
def test_a_screen_of_it_is_no_higher_than_the_terminal(width, height, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    size = os.terminal_size((width, height))
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_, **__: size)
    out = Terminal()
    show_stats([MOCK], out)
    found = out.getvalue().splitlines()
    assert len(found) < max(height, 34)
    show_stats([MOCK], whole := Terminal(), rows_max=None)
    assert len(whole.getvalue().splitlines()) >= len(found)


def test_a_filter_and_nothing(recorded, capsys):
    assert main(["stats", str(recorded), "number:3"]) == 0
    assert capsys.readouterr().out.startswith("1 exchange in 0.00 ms")
    assert main(["stats", "--headers", str(recorded), "api:Produce"]) == 0
    assert capsys.readouterr().out == "no exchanges\n"
    assert main(["stats", "nowhere.mcap"]) == 1
    assert capsys.readouterr().err == "kproxy stats: nowhere.mcap: does not exist\n"


@pytest.fixture(scope="module")
def many_batches(tmp_path_factory):
    """Connections that come and go, a producer that sends again, leaders that move: a batch for
    each exchange."""
    T, P = M.MetadataResponse.MetadataResponseTopic, M.MetadataResponse.MetadataResponsePartition
    batches: list[list] = []
    for number in range(1, 61):
        connection = (number - 1) // 6 + 1
        data = records.encode_batch(
            [Record(0, 0, None, b"v")], producer_id=7, producer_epoch=0, base_sequence=number // 6
        )
        leader = P(partition_index=0, leader_id=number // 10)
        topic = T(name="orders", partitions=[leader])
        api, body, back = [
            ("Heartbeat", M.HeartbeatRequest(), M.HeartbeatResponse(error_code=number % 2)),
            ("Produce", produce_request({0: data}), produce_response({0: 1}, number % 5)),
            ("Metadata", M.MetadataRequest(topics=None), M.MetadataResponse(topics=[topic])),
        ][number % 3]
        frame = request(api, 9 if api == "Produce" else 4, body, number, connection)
        entries: list = [opened(connection, node_id=1)] if number % 6 == 1 else []
        entries += [frame, response(frame, back)]
        if number % 6 == 0:
            at_ns = START_NS + number * MS + 4 * MS
            entries.append(attrs.evolve(closed(connection), time_ns=at_ns))
        batches.append(entries)
    return write(tmp_path_factory.mktemp("stats") / "many.mcap", batches)


def sums(stats: Stats) -> Counter[str]:
    """What is counted over all that is shown, without what is 0."""
    names = ("connection_count", "reconnects", "retries", "leader_changes")
    ends = {f"by {side}": number for side, number in stats.ended_by.items()}
    return +Counter({name: getattr(stats, name) for name in names} | ends)


def test_recordings_together_are_counted_as_each_by_itself(many_batches, recorded, tmp_path):
    """Their connections and producers have the same numbers, and are not the same."""
    demo = needs.REPOSITORY / "recordings" / "demo.mcap"
    folder = needs.REPOSITORY / "recordings" / "tests" / "integration" / "test_recorded"

    def found(*paths: Path) -> Counter[str]:
        return sums(stats_of(Stream(paths)))

    again = shutil.copy(many_batches, tmp_path / "again.mcap")
    for paths in ([many_batches, recorded, again, demo], sorted(folder.iterdir())):
        alone = sum(map(found, paths), Counter[str]())
        assert found(*paths) == alone
        assert alone["reconnects"] > 0 < alone["retries"]


def test_a_copy_of_a_recording_is_counted_once(tmp_path, capsys):
    copy = shutil.copy(MOCK, tmp_path / "copy.mcap")
    torn = tmp_path / "torn.mcap"
    torn.write_bytes(Path(MOCK).read_bytes()[:-2000])
    assert main(["stats", str(torn), str(MOCK), str(copy)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("43 exchanges in ")
    assert err.splitlines() == [
        f"kproxy stats: {each} is a copy of {MOCK}, which is read alone" for each in (copy, torn)
    ]
