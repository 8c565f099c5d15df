"""`kproxy export`: what other tools get, and that a recording that was cut out still replays."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import attrs
import pyarrow.parquet
import pytest
from mcap.reader import make_reader

from kproxy.cli import main
from kproxy.exchange.exchange import Exchange
from kproxy.look.lines import export, jsonl
from kproxy.look.lines.stream import Stream
from kproxy.recording import info, read, verify
from kproxy.wire.protocol import messages as m
from tests.bed import needs, replays
from tests.bed.waiting import until
from tests.exchange.batches import batch
from tests.exchange.bodies import fetch_request, fetch_response, produce_request, produce_response
from tests.exchange.making import closed, opened, request, response
from tests.recording.making import write
from tests.versions import pairs

DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"
FETCHES = "topic:orders api:Fetch"


def exported(to: Path, *arguments: str, source: Path = DEMO) -> Path:
    assert main(["export", str(source), *arguments, "--to", str(to)]) == 0
    return to


def shown(path: Path, wanted: str | None = None) -> dict[int, tuple]:
    """All that an exchange says, by number."""
    return {each.number: facts(each) for each in read(path, wanted)}


def facts(each: Exchange) -> tuple:
    row = each.row._replace(request_position=0, response_position=0)
    return row, each.text, each.request_frame, each.response_frame, each.client_address


def test_parquet_has_the_same_keys_and_values(tmp_path: Path) -> None:
    path = exported(tmp_path / "out.parquet")
    table = pyarrow.parquet.read_table(path)
    types = {name: str(table.schema.field(name).type) for name in ("api_key", "api_version")}
    assert types == {"api_key": "int32", "api_version": "int32"}, "as exports have had them"
    rows = table.to_pylist()
    expected = [jsonl.to_json(each) for each in read(DEMO)]
    for row in rows:
        row["time"] = row["time"].strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        for direction in ("request", "response"):
            row[direction] = row[direction] and json.loads(row[direction])
    assert rows == expected
    assert list(rows[0]) == list(jsonl.KEYS) == list(expected[0])


def test_a_cut_has_what_was_meant_as_it_was_and_how_its_clients_began(tmp_path: Path) -> None:
    path = exported(tmp_path / "cut.mcap", FETCHES)
    verify(path)
    meant, kept, everything = shown(DEMO, FETCHES), shown(path), shown(DEMO)
    assert meant and kept.keys() < everything.keys()
    assert all(facts == everything[number] for number, facts in kept.items())
    assert meant.keys() < kept.keys()
    beside = [each for each in read(path) if each.number not in meant]
    assert {each.api for each in beside} == {"ApiVersions", "Metadata", "FindCoordinator"}
    assert {each.client_id for each in beside} == {"billing"}
    with path.open("rb") as file:
        topics = {
            channel.topic for _, channel, _ in make_reader(file, validate_crcs=True).iter_messages()
        }
    assert topics >= {"/kafka/pieces", "/kafka/connections", "/kafka/events"}


def test_a_cut_replays(tmp_path: Path) -> None:
    confluent = pytest.importorskip("confluent_kafka")
    path = exported(tmp_path / "cut.mcap", "topic:orders not api:OffsetCommit")
    expected = [record.value for each in read(DEMO, "api:Fetch") for record in each.records]
    with replays.running(path, tmp_path / "replay") as replay:
        consumer = confluent.Consumer(
            {
                "bootstrap.servers": replay.bootstrap,
                "group.id": "another",
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe(["orders"])
        got, until = [], time.monotonic() + 20
        while len(got) < len(expected) and time.monotonic() < until:
            message = consumer.poll(0.5)
            if message is not None:
                assert not message.error()
                got.append(message.value())
        consumer.close()
    assert sorted(got) == sorted(expected)


def session(folder: Path) -> Path:
    """A fetch session: a full Fetch, one of which nothing is meant, and one with records."""
    full = fetch_request({0: 0, 1: 0}, session_epoch=0)
    began = attrs.evolve(fetch_response({0: b"", 1: b""}), session_id=77)
    later = fetch_request({}, session_id=77, session_epoch=1)
    quiet = m.FetchResponse(session_id=77)
    found = attrs.evolve(fetch_response({1: batch(2)}), session_id=77)
    bodies = [(full, began), (later, quiet), (attrs.evolve(later, session_epoch=2), found)]
    entries: list = [opened(1, node_id=2)]
    for number, (asked, answered) in enumerate(bodies, 1):
        frame = request("Fetch", 11, asked, number)
        entries += [frame, response(frame, answered)]
    return write(folder / "session.mcap", [[*entries, closed(1)]])


def test_a_cut_keeps_how_a_fetch_session_began(tmp_path: Path) -> None:
    path = exported(tmp_path / "cut.mcap", "value:v", source=session(tmp_path))
    assert list(shown(path)) == [1, 3]


def test_large_frames_stay_what_they_are(tmp_path: Path) -> None:
    sets = {0: batch(1, value=bytes(range(256)) * 12_000)}
    entries: list = [opened(1, node_id=2)]
    for number in (1, 2):
        frame = request("Produce", 9, produce_request(sets), number)
        entries += [frame, response(frame, produce_response({0: 5}))]
    source = write(tmp_path / "large.mcap", [[*entries, closed(1)]])
    path = exported(tmp_path / "cut.mcap", "number:2", source=source)
    verify(path)
    assert shown(path) == {2: shown(source)[2]}


@pytest.mark.parametrize("suffix", ["jsonl", "mcap", "html", "pcapng"])
def test_nothing_is_replaced_and_nothing_half_is_left(
    tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = exported(tmp_path / f"out.{suffix}")
    assert path.stat().st_mode & 0o777 == 0o600
    before = path.read_bytes()
    capsys.readouterr()
    assert main(["export", str(DEMO), "--to", str(path)]) == 1
    assert path.read_bytes() == before
    assert (
        capsys.readouterr().err.strip()
        == f"kproxy export: {path} is there already; it is not replaced"
    )

    damaged = bytearray(DEMO.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (tmp_path / "damaged.mcap").write_bytes(damaged)
    path.unlink()
    assert main(["export", str(tmp_path / "damaged.mcap"), "--to", str(path)]) == 1
    assert "is damaged" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["damaged.mcap"]


@pytest.fixture
def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without hard links."""

    def link(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", link)


@pytest.mark.usefixtures("no_links")
@pytest.mark.parametrize("suffix", ["parquet", "mcap"])
def test_where_there_are_no_links_nothing_is_replaced_either(
    tmp_path: Path,
    suffix: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = exported(tmp_path / f"out.{suffix}")
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    late, write = tmp_path / f"late.{suffix}", export.WRITERS[f".{suffix}"]

    def overtaken(stream: Stream, unfinished: Path) -> int:
        count = write(stream, unfinished)
        late.write_text("somebody else's")
        return count

    monkeypatch.setitem(export.WRITERS, f".{suffix}", overtaken)
    capsys.readouterr()
    assert main(["export", str(DEMO), "--to", str(late)]) == 1
    said = capsys.readouterr().err
    assert said == f"kproxy export: {late} is there already; it is not replaced\n"
    assert late.read_text() == "somebody else's"
    assert {each.name for each in tmp_path.iterdir()} == {path.name, late.name}


@pytest.mark.usefixtures("no_links")
@pytest.mark.parametrize("suffix", ["parquet", "mcap"])
def test_where_there_are_no_links_a_kill_leaves_nothing_that_looks_whole(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, left = tmp_path / f"out.{suffix}", tmp_path / "left"

    def killed(unfinished: Path, to: Path) -> None:
        left.mkdir()
        for each in (unfinished, to):
            shutil.copy(each, left)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", killed)
    assert main(["export", str(DEMO), "--to", str(path)]) == 130
    assert list(tmp_path.iterdir()) == [left], "who is told to stop has time to clean up"
    whole = next(left.glob(".export-*"))
    assert str(tmp_path / whole.name) in (left / path.name).read_text()
    assert len(whole.read_bytes()) > 1000


@pytest.mark.parametrize("name", ["pyarrow"])
def test_parquet_without_a_library(tmp_path: Path, name: str) -> None:
    program = (
        f"import sys; sys.modules[{name!r}] = None\nfrom kproxy.cli import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", program, "export", str(DEMO)]
    target = str(tmp_path / "out.parquet")
    done = subprocess.run([*command, "--to", target], capture_output=True, text=True)
    expected = f"kproxy export: {name} is not installed: pip install 'kproxy-kafka[tables]'\n"
    assert (done.returncode, done.stderr) == (1, expected)
    assert list(tmp_path.iterdir()) == []


def test_files_of_several_recordings_make_no_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = session(tmp_path)
    code = main(["export", str(DEMO), str(other), "--to", str(tmp_path / "out.mcap")])
    error = capsys.readouterr().err
    assert code == 1 and "is not of the same recording" in error and error.count("\n") == 1


def test_what_it_cannot_write_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["export", str(DEMO), "--to", str(tmp_path / "out.csv")])
    assert (
        "does not end in .html, .jsonl, .parquet, .mcap or .pcapng (see kproxy export --help)"
        in capsys.readouterr().err
    )


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording whose export takes seconds."""
    beat = request("Heartbeat", 4, m.HeartbeatRequest(group_id="g", member_id="m"))
    frames = [attrs.evolve(beat, number=number) for number in range(1, 40_001)]
    batches = [frames[start : start + 1000] for start in range(0, len(frames), 1000)]
    return write(tmp_path_factory.mktemp("long") / "long.mcap", batches)


@pytest.mark.parametrize(
    ("kind", "ends"), pairs(["parquet", "mcap"], [signal.SIGTERM, signal.SIGHUP])
)
def test_what_is_ended_in_the_middle_leaves_nothing(
    tmp_path: Path, long: Path, kind: str, ends: signal.Signals
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    target = folder / f"all.{kind}"
    command = [sys.executable, "-m", "kproxy", "export", str(long), "--to", str(target)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        until(lambda: any(folder.iterdir()) or process.poll() is not None, "it writes")
        assert process.poll() is None
        assert not list(folder.glob("*.mcap")), "it would be read as one of the folder's recordings"
        process.send_signal(ends)
    assert process.returncode == 128 + ends
    assert list(folder.iterdir()) == []


OTHER = DEMO.parent / "tests/integration/test_recorded"


def test_a_table_of_several_recordings_says_of_which_a_row_is(tmp_path: Path) -> None:
    files = [DEMO, *sorted(OTHER.iterdir())[:2]]
    assert main(["export", *map(str, files), "--to", str(tmp_path / "all.parquet")]) == 0
    rows = pyarrow.parquet.read_table(tmp_path / "all.parquet").column("recording").to_pylist()
    assert Counter(rows) == {
        info(path).metadata["recording"]: len(list(read(path))) for path in files
    }
