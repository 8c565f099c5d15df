"""A recording becomes packets that Wireshark reads, and that become the same recording again."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import attrs
import pytest

from kproxy.cli import main
from kproxy.exchange import notes
from kproxy.exchange.entries import MORE, TRUNCATED, Entry, Note
from kproxy.exchange.exchange import Exchange
from kproxy.recording import read
from kproxy.wire.protocol import messages as m
from tests.bed import needs
from tests.exchange.making import MS, START_NS, fragments, opened, request, response
from tests.recording.making import write
from tests.versions import some

DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"
FORMATS = needs.REPOSITORY / "tests" / "recording" / "formats" / "3"
WHOLE = [DEMO, *(path for path in sorted(FORMATS.iterdir()) if "-000" not in path.name)]
"""Recordings of which nothing is missing before their end."""
TSHARKS = [path for path in WHOLE if path.stem in ("demo", "cut", "faults", "sasl")]
"""Those that tshark reads in every run."""

Seen = list[dict[str, str]]


def exported(source: Path, folder: Path, *wanted: str) -> Path:
    path = folder / "packets.pcapng"
    assert main(["export", str(source), *wanted, "--to", str(path)]) == 0
    return path


def tshark(path: Path, told: str, *fields: str) -> Seen:
    """Return fields of each packet; `told` is what kproxy said, with the options for tshark."""
    words = [needs.program("tshark"), "-r", str(path), "-T", "fields", "-E", "separator=|"]
    words += told.partition("are Kafka's: ")[2].split()
    words += [word for field in fields for word in ("-e", field)]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    return [dict(zip(fields, line.split("|"), strict=True)) for line in lines]


def numbers(seen: Seen, field: str) -> list[int]:
    return sorted(int(each) for packet in seen for each in packet[field].split(",") if each)


@pytest.mark.parametrize("source", some(WHOLE, TSHARKS), ids=lambda path: path.stem)
def test_tshark_sees_what_show_says(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its frames, API keys and correlation ids, sizes, and nothing that TCP would not do."""
    assert main(["show", "--json", "--all", str(source)]) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    shown = [each for each in shown if "event" not in each]
    path = exported(source, tmp_path)
    fields = ("kafka.len", "kafka.api_key", "kafka.correlation_id", "kafka.api_version")
    more = ("tcp.analysis.flags", "tcp.checksum.status", "ip.checksum.status", "_ws.malformed")
    checks = " -o tcp.check_checksum:TRUE -o ip.check_checksum:TRUE"
    seen = tshark(
        path, (capsys.readouterr().err.strip() or "are Kafka's: ") + checks, *fields, *more
    )
    # A response has an API key if its request was understood, but only a request has a version.
    requests = [each for each in seen if each["kafka.api_version"]]
    assert numbers(requests, "kafka.api_key") == sorted(each["api_key"] for each in shown)
    sizes = [each[f"{kind}_bytes"] for each in shown for kind in ("request", "response")]
    assert numbers(seen, "kafka.len") == sorted(size - 4 for size in sizes if size)
    ids = [each["correlation_id"] for each in shown]
    ids += [each["correlation_id"] for each in shown if each["response_bytes"]]
    assert numbers(seen, "kafka.correlation_id") == sorted(ids)
    assert not [each for each in seen if each["tcp.analysis.flags"]]
    assert {(each["tcp.checksum.status"], each["ip.checksum.status"]) for each in seen} == {
        ("1", "1")
    }
    if source.stem == "cut":  # the others have versions that are newer than tshark
        assert not [each for each in seen if each["_ws.malformed"]]


def facts(each: Exchange) -> tuple:
    row = each.row
    ends = row.response_received_ns if each.response_frame else None
    times = row.request_received_ns, ends
    return (
        each.number,
        each.client_address,
        times,
        each.api,
        each.request_frame,
        each.response_frame,
    )


@pytest.mark.parametrize("source", WHOLE, ids=lambda path: path.stem)
def test_what_is_imported_again_is_the_same(source: Path, tmp_path: Path) -> None:
    path = exported(source, tmp_path)
    assert main(["import", str(path), "--out", str(tmp_path / "again.mcap")]) == 0
    again = [facts(each) for each in read(tmp_path / "again.mcap")]
    assert sorted(again) == sorted(map(facts, read(source)))


def test_comments_name_the_exchange_and_its_fault_rules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the exchanges that a filter means, at the packet in which a frame begins."""
    source, wanted = FORMATS / "faults.mcap", "is:faulted or api:Produce"
    path = exported(source, tmp_path, wanted)
    said = capsys.readouterr().err
    seen = tshark(path, said, "frame.comment", "tcp.len", "tcp.analysis.flags")
    expected: list[str] = []
    for each in read(source, wanted):
        told = f"kproxy #{each.number}"
        rules = f", fault rule {', '.join(each.faults)}" if each.faults else ""
        made = ", made by kproxy" if each.injected else ""
        expected += [f"{told}{rules}"] * (each.request_frame is not None)
        expected += [f"{told}{made}{rules}"] * (each.response_frame is not None)
    assert sorted(each["frame.comment"] for each in seen if each["tcp.len"] != "0") == sorted(
        expected
    )
    assert any("fault rule" in each for each in expected)
    assert not [each for each in seen if each["tcp.analysis.flags"]]


def test_what_is_not_recorded_is_a_gap_and_names_get_addresses(tmp_path: Path) -> None:
    """An address of each family meets a name; frames in pieces; a gap where frames were lost: of
    one side of one connection, if that is known."""
    body = m.HeartbeatRequest(group_id="g" * 30_000, member_id="m")
    entries: list[Entry] = []
    for connection, client in enumerate(("[2001:db8::7]:5001", "10.0.0.1:5001", "app:5001"), 1):
        about = opened(connection)
        entries.append(attrs.evolve(about, body=about.body | {"client_address": client}))
        for number in (connection, connection + 10):
            asked = request("Heartbeat", 4, body, number, connection)
            entries += [*fragments(asked, [9, 20_000]), response(asked, m.HeartbeatResponse())]
    lost = notes.lost(3, 1234, "the disk was full", START_NS, START_NS + 5 * MS)
    late = request("Heartbeat", 4, body, 20, 2)
    entries += [attrs.evolve(lost, body=lost.body | {"connection": 3, "side": "broker"})]
    for number in (21, 23):
        asked = request("Heartbeat", 4, body, number, number % 10)
        entries += [asked, response(asked, m.HeartbeatResponse())]
    entries += [lost, late, response(late, m.HeartbeatResponse())]
    path = exported(write(tmp_path / "made.mcap", [entries]), tmp_path)
    seen = tshark(
        path, "", "ip.src", "ipv6.src", "tcp.stream", "kafka.len", "tcp.seq", "tcp.analysis.flags",
        "tcp.analysis.lost_segment",
    )  # fmt: skip
    starts = {(each["ip.src"], each["ipv6.src"]) for each in seen if each["tcp.seq"] == "0"}
    assert starts == {
        ("", "2001:db8::7"), ("", "::ffff:198.51.100.1"),
        ("10.0.0.1", ""), ("192.0.2.1", ""), ("198.51.100.1", ""),
    }  # fmt: skip
    assert len(numbers(seen, "kafka.len")) == 18
    gaps = [each for each in seen if each["tcp.analysis.flags"]]
    assert all(each["tcp.analysis.lost_segment"] for each in gaps)
    assert [each["tcp.stream"] for each in gaps] == ["2", "1", "1"]


def test_behind_a_frame_that_is_cut_off_the_next_one_is_where_its_size_says(tmp_path: Path) -> None:
    """The import finds what follows, and tells how many bytes are missing."""
    body = m.HeartbeatRequest(group_id="g" * 30_000, member_id="m")
    first, second = fragments(request("Heartbeat", 4, body), [9, 20_000])[:2]
    second.flags = second.flags & ~MORE | TRUNCATED
    late = request("Heartbeat", 4, body, 2)
    entries = [opened(), first, second, late, response(late, m.HeartbeatResponse())]
    path = exported(write(tmp_path / "made.mcap", [entries]), tmp_path)
    assert main(["import", str(path), "--out", str(tmp_path / "again.mcap")]) == 0
    told: list[Note] = []
    again = {each.number: each for each in read(tmp_path / "again.mcap", told=told.append)}
    assert again[1].truncated and again[2].request_frame == late.data
    (lost,) = [each.body["reason"] for each in told if each.body["event"] == "lost"]
    assert f"{len(late.data) - 20_000} bytes were not captured" in lost


@pytest.mark.parametrize("command", ["stats", "report"])
def test_what_the_capture_point_makes_of_times_is_said(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of an import, and of a part of one; not of what a proxy recorded."""
    source = needs.REPOSITORY / "recordings" / "demo.mcap"
    packets, again, part = (tmp_path / name for name in ("x.pcapng", "again.mcap", "part.mcap"))
    assert main(["export", str(source), "--to", str(packets)]) == 0
    assert main(["import", str(packets), "--out", str(again)]) == 0
    assert main(["export", str(again), "api:Produce", "--to", str(part)]) == 0
    for path, said in ((source, False), (again, True), (part, True)):
        capsys.readouterr()
        out = ["--out", str(tmp_path / f"{path.stem}.html")] if command == "report" else []
        assert main([command, str(path), *out]) == 0
        assert ("where the packets were captured" in "".join(capsys.readouterr())) is said
        for page in tmp_path.glob(f"{path.stem}.html"):
            assert ("<p>The broker's time includes" in page.read_text()) is said
