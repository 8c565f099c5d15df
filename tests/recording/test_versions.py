"""Files of other versions of kproxy: read by the schema that stands in them, or refused in a line.

The files are made by `other_versions`: out of real recordings, with other columns.
"""

from __future__ import annotations

import itertools
import shutil
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import attrs
import mcap.records
import pyarrow
import pyarrow.ipc
import pytest

from kproxy import __version__, recording
from kproxy.cli import main
from kproxy.exchange.entries import ERROR_NOT_LOOKED, NO_NODE, ExchangeRow, Note
from kproxy.recording import Recording, RecordingError, RecordingFile, info, verify
from kproxy.recording.arrow import ArrowField, Schema
from kproxy.recording.layout import EXCHANGES, FRAMES, Channel
from kproxy.recording.other_columns import table_columns
from kproxy.replay.load import load
from kproxy.replay.serving import modelled
from kproxy.replay.settings import Mode
from kproxy.tables import reading, splits
from kproxy.tables.views import VIEWS, chosen
from tests.recording.making import (
    SETTINGS,
    START_NS,
    arrow_table,
    conversation,
    opened,
    oracle,
    plains,
    request,
    response,
    rewrite,
    write,
)
from tests.recording.other_versions import (
    ADDED,
    MORE_FIELDS,
    NARROWER,
    NO_MORE,
    OF_EXCHANGES,
    OF_FRAMES,
    REVERSED,
    WIDER,
    Row,
    Table,
    more,
    remade,
    seed_of,
    widened,
    without,
)
from tests.recording.test_formats import digest, said

FORMATS = Path(__file__).parent / "formats" / "2"
SOURCES = ["faults", "large", "rotated-0003", "transactions"]
CHANGES = {"added": ADDED, "reversed": REVERSED, "wider": WIDER, "narrower": NARROWER}
TABLES = {"/kafka/frames": FRAMES, "/kafka/exchanges": EXCHANGES}
MORE_NAMES = {field.name for field in MORE_FIELDS}


def one_line(error: RecordingError) -> str:
    """What an error says, which must be one line of a length that can be read."""
    text = str(error)
    assert "\n" not in text and len(text) < 400
    return text


def rows(path: Path) -> list[ExchangeRow]:
    """What a file says of its exchanges, without their bodies."""
    return [each.row._replace(fault_ids=list(each.row.fault_ids)) for each in recording.read(path)]


def outputs(capsys: pytest.CaptureFixture[str], path: Path) -> list[str]:
    """All that people are shown of a file, whatever its name."""
    number = max(each.number for each in recording.read(path))
    commands = [["show", "--json"], ["show"], ["stats"], ["scan"], ["why", f"number:{number}"]]
    told: list[str] = []
    for command, *options in commands:
        code = main([command, str(path), *options])
        out, err = capsys.readouterr()
        assert code == 0, err
        told.append((out + err).replace(str(path), "FILE"))
    return told


def in_spark(path: Path) -> dict[str, list[Row]]:
    """All that Spark has of a file, whatever its name."""
    (stretch,) = splits.stretches(splits.find([str(path)]))
    return {
        view: [
            row
            for batch in reading.record_batches(stretch, view, columns)
            for row in batch.to_pylist()
        ]
        for view in VIEWS
        if (columns := [each for each in chosen(view, None) if each.name != "file"])
    }


def served(path: Path) -> tuple[int, list[str], int]:
    """What a replaying broker has of a file."""
    loaded = load(recording.read(path), modelled(Mode.STATE))
    ends = [
        partition.log.end_offset
        for topic in loaded.cluster.topics.values()
        for partition in topic.partitions.values()
    ]
    return loaded.exchanges, list(loaded.cluster.topics), sum(ends)


# ---------------------------------------------------------------- columns that are not ours


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", SOURCES)
def test_a_file_with_other_columns_says_the_same(
    name: str, change: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = tmp_path / "alone"  # without the other parts of its recording, as what is made of it
    alone.mkdir()
    source = Path(shutil.copy(FORMATS / f"{name}.mcap", alone))
    path = remade(source, tmp_path / f"{name}.mcap", CHANGES[change])
    verify(path)
    assert oracle(path)
    assert rows(path) == rows(source)
    assert digest(recording.read(path)) == digest(recording.read(source))
    assert plains(recording.entries(path)) == plains(recording.entries(source))
    assert outputs(capsys, path) == outputs(capsys, source)
    assert in_spark(path) == in_spark(source)
    assert served(path) == served(source)


def test_pieces_splices_and_notes_survive_other_columns(tmp_path: Path) -> None:
    source = write(tmp_path / "a.mcap", conversation())
    for name, change in CHANGES.items():
        path = remade(source, tmp_path / f"{name}.mcap", change)
        assert plains(recording.entries(path)) == plains(recording.entries(source))


def test_columns_that_a_file_lacks_have_their_defaults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lacking = ("error_code", "node_id", "max_wait_ms", "queued_ns", "fault_ids", "response_sent_ns")
    tables = {
        "/kafka/frames": without(OF_FRAMES, "notes", "sent_ns", "splices", "flags"),
        "/kafka/exchanges": without(OF_EXCHANGES, *lacking),
    }
    source = FORMATS / "faults.mcap"
    path = remade(source, tmp_path / "faults.mcap", tables)
    verify(path)
    defaults: dict[str, Any] = dict.fromkeys(lacking, 0)
    defaults |= {"error_code": ERROR_NOT_LOOKED, "node_id": NO_NODE, "fault_ids": []}
    assert rows(path) == [row._replace(**defaults) for row in rows(source)]
    frames = [[each.request_frame, each.response_frame] for each in recording.read(path)]
    assert frames == [[e.request_frame, e.response_frame] for e in recording.read(source)]
    assert outputs(capsys, path)
    assert len(in_spark(path)["exchanges"]) == len(frames)
    assert served(path)[0] == len(frames)


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        *(("/kafka/frames", name) for name in ("number", "connection", "side", "data", "sizes")),
        ("/kafka/frames", "heads"),
        *(("/kafka/exchanges", name) for name in ("number", "connection")),
    ],
)
def test_a_file_without_a_column_that_none_lacks_is_refused(
    topic: str, name: str, tmp_path: Path
) -> None:
    table = without(TABLES[topic].fields, name)
    path = remade(FORMATS / "login.mcap", tmp_path / "a.mcap", {topic: table})
    with pytest.raises(RecordingError, match=f"{topic} has no column {name}") as raised:
        list(recording.read(path))
    one_line(raised.value)


def test_every_column_has_a_default_or_is_in_every_file(tmp_path: Path) -> None:
    """Without any other column a file is still read."""
    always = {"number", "connection", "side", "sizes", "heads", "data"}
    tables = {
        topic: Table(tuple(field for field in table.fields if field.name in always))
        for topic, table in TABLES.items()
    }
    path = remade(FORMATS / "login.mcap", tmp_path / "a.mcap", tables)
    assert len(list(recording.read(path))) == 9
    assert len(list(recording.entries(path))) > 18


def test_a_column_of_another_kind_is_refused(tmp_path: Path) -> None:
    fields = tuple(
        ArrowField("queued_ns", "binary") if field.name == "queued_ns" else field
        for field in OF_EXCHANGES
    )
    table = Table(fields, lambda row: row | {"queued_ns": b"soon"})
    path = remade(FORMATS / "login.mcap", tmp_path / "a.mcap", {"/kafka/exchanges": table})
    with pytest.raises(RecordingError, match="queued_ns") as raised:
        list(recording.read(path))
    one_line(raised.value)


def test_values_that_we_have_no_room_for_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = widened(OF_EXCHANGES, request_flags="int32")
    table = Table(fields, lambda row: row | {"request_flags": row["request_flags"] | 1 << 20})
    path = remade(FORMATS / "login.mcap", tmp_path / "a.mcap", {"/kafka/exchanges": table})
    with pytest.raises(RecordingError, match=r"request_flags .* newer kproxy") as raised:
        list(recording.read(path))
    one_line(raised.value)
    assert main(["show", str(path)]) == 1
    assert "request_flags" in capsys.readouterr().err


def test_a_few_bytes_are_no_million_rows(tmp_path: Path) -> None:
    """Columns of one byte, and the others lacking: memory stays in proportion."""
    fields = tuple(
        attrs.evolve(field, type="int8")
        for field in OF_EXCHANGES
        if field.name in ("number", "connection")
    )
    count = 20_000_000
    parts, _ = Schema(*fields).encode([count] * 2, [bytes(count)], [bytes(count)])
    message = memoryview(b"".join(parts))
    columns = table_columns(Channel.EXCHANGES, Schema(*fields).message)
    tracemalloc.start()
    with pytest.raises(ValueError, match="20000000 rows"):
        columns.columns(message)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


# ---------------------------------------------------------------- what other tools make of them


def test_other_tools_keep_the_schema(tmp_path: Path) -> None:
    source = FORMATS / "transactions.mcap"
    path = remade(source, tmp_path / "a.mcap", ADDED)
    copy = rewrite(path, tmp_path / "b.mcap", chunk_size=4000)
    assert rows(copy) == rows(source)
    assert digest(recording.read(copy)) == digest(recording.read(source))
    bare = rewrite(path, tmp_path / "c.mcap", metadata=False)
    assert digest(recording.read(bare)) == digest(recording.read(source))


def test_the_stream_of_a_file_has_its_own_schema(tmp_path: Path) -> None:
    path = remade(FORMATS / "login.mcap", tmp_path / "a.mcap", ADDED)
    with RecordingFile(path) as file:
        stream = b"".join(file.arrow_stream("exchanges"))
    table = pyarrow.ipc.open_stream(stream).read_all()
    assert table.equals(arrow_table(path, "/kafka/exchanges"))
    assert set(table.column_names) > MORE_NAMES


# ---------------------------------------------------------------- recover keeps them


def unknown(path: Path, topic: str) -> list[Row]:
    """What the columns that are not ours say in a table, and which row it is."""
    kept = MORE_NAMES | {"number", "side"}
    return [
        {key: value for key, value in row.items() if key in kept}
        for row in arrow_table(path, topic).to_pylist()
    ]


@pytest.mark.parametrize("change", CHANGES)
def test_recover_completes_a_file_with_other_columns(
    change: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = remade(FORMATS / "rotated.mcap", tmp_path / "whole.mcap", CHANGES[change])
    schemas = [each.data for each in oracle(whole) if isinstance(each, mcap.records.Schema)]
    data = whole.read_bytes()
    chunks = [each for each in oracle(whole) if isinstance(each, mcap.records.ChunkIndex)]
    path = tmp_path / "torn.mcap"
    cuts = {each.chunk_start_offset + each.chunk_length - 5 for each in chunks[1:]}
    added = 0
    for end in sorted(cuts):
        path.write_bytes(data[:end])
        before = digest(recording.read(path))
        told, _ = said(capsys, "recover", path)
        assert "completed; " in told
        verify(path)
        assert [
            each.data for each in oracle(path) if isinstance(each, mcap.records.Schema)
        ] == schemas
        assert digest(recording.read(path)) == before
        assert len(rows(path)) == len(arrow_table(path, "/kafka/exchanges"))
        if change == "added":
            for topic in TABLES:
                for row in unknown(path, topic):
                    said_of = {key: row[key] for key in MORE_NAMES}
                    assert said_of in (more(seed_of(row)), NO_MORE)
                    added += said_of == NO_MORE
    assert added or change != "added"


def test_recover_says_what_has_no_room_in_the_files_own_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a file of which only a column of one byte says which exchanges there are."""
    answered = [request(1, b"x" * 30), response(1, b"y" * 30)]
    source = write(tmp_path / "a.mcap", [answered, [request(300, b"x" * 30)]])
    exchanges = Table(widened(OF_EXCHANGES, number="int8"), lambda row: row | {"number": 1})
    path = remade(source, tmp_path / "b.mcap", {"/kafka/exchanges": exchanges})
    second = [each for each in oracle(path) if isinstance(each, mcap.records.ChunkIndex)][1]
    end = second.chunk_start_offset + second.chunk_length
    path.write_bytes(path.read_bytes()[:end])
    torn = path.read_bytes()
    assert main(["recover", str(path)]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "number has values that are too large" in err
    assert path.read_bytes() == torn
    assert [each.number for each in recording.read(path)] == [1, 300]


# ---------------------------------------------------------------- export keeps them


def exported(
    capsys: pytest.CaptureFixture[str], to: Path, *paths: Path, wanted: Iterable[str] = ()
) -> Path:
    """Cut a recording out of files."""
    code = main(["export", *map(str, paths), *wanted, "--to", str(to)])
    _, err = capsys.readouterr()
    assert code == 0, err
    verify(to)
    return to


@pytest.mark.parametrize("name", SOURCES)
def test_export_keeps_columns_that_are_not_ours(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = FORMATS / f"{name}.mcap"
    path = remade(source, tmp_path / "a.mcap", ADDED)
    to = exported(capsys, tmp_path / "b.mcap", path)
    plain = exported(capsys, tmp_path / "c.mcap", source)
    assert digest(recording.read(to)) == digest(recording.read(plain))
    fields = arrow_table(to, "/kafka/exchanges").schema
    given_fields = arrow_table(path, "/kafka/exchanges").schema
    assert {each.name: each.type for each in fields} == {
        each.name: each.type for each in given_fields
    }
    kept = {row["number"]: row for row in unknown(to, "/kafka/exchanges")}
    assert kept == {row["number"]: row for row in unknown(path, "/kafka/exchanges")}
    check_runs(path, to)
    again = exported(capsys, tmp_path / "d.mcap", to)
    assert unknown(again, "/kafka/frames") == unknown(to, "/kafka/frames")


def check_runs(path: Path, to: Path) -> None:
    """Check that what a row says of its frames is said of each of them."""
    said_of: dict[bytes, list[Row]] = {}
    for row in arrow_table(path, "/kafka/frames").to_pylist():
        ends = [0, *itertools.accumulate(row["sizes"] or [len(row["data"])])]
        for start, end in itertools.pairwise(ends):
            values = {key: row[key] for key in MORE_NAMES}
            said_of.setdefault(row["data"][start:end], []).append(values)
    found = arrow_table(to, "/kafka/frames").to_pylist()
    assert found
    for row in found:
        assert {key: row[key] for key in MORE_NAMES} in said_of[row["data"]]


def test_an_export_with_a_filter_keeps_them_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = remade(FORMATS / "transactions.mcap", tmp_path / "a.mcap", ADDED)
    to = exported(capsys, tmp_path / "b.mcap", path, wanted=["api:Produce"])
    found = unknown(to, "/kafka/exchanges")
    assert 3 <= len(found) < 38
    for row in found:
        assert {key: row[key] for key in MORE_NAMES} == more(seed_of(row))


def test_files_with_different_columns_become_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first has none, the second all, the third some, one of them wider than it was."""
    names = ["rotated.mcap", "rotated-0002.mcap", "rotated-0003.mcap"]
    wider = (ArrowField("small", "int64"), ArrowField("later", "int16"))

    def later(row: Row) -> Row:
        return row | {"small": 1 << 40, "later": 3}

    third = {topic: Table((*table.fields, *wider), later) for topic, table in TABLES.items()}
    changes: list[dict[str, Table]] = [{}, ADDED, third]
    paths = [
        remade(FORMATS / name, tmp_path / name, change)
        for name, change in zip(names, changes, strict=True)
    ]
    to = exported(capsys, tmp_path / "one.mcap", *paths)
    plain = exported(capsys, tmp_path / "plain.mcap", *(FORMATS / name for name in names))
    assert digest(recording.read(to)) == digest(recording.read(plain))
    numbers = [{row.number for row in rows(path)} for path in paths]
    for row in arrow_table(to, "/kafka/exchanges").to_pylist():
        said_of = {key: row[key] for key in (*MORE_NAMES, "later")}
        (place,) = [nth for nth, some in enumerate(numbers) if row["number"] in some]
        nothing = NO_MORE | {"later": 0}
        expected = [nothing, more(seed_of(row)) | {"later": 0}, nothing]
        expected[2] = nothing | {"small": 1 << 40, "later": 3}
        assert said_of == expected[place]
    assert arrow_table(to, "/kafka/frames").schema.field("small").type == pyarrow.int64()
    assert {row["later"] for row in arrow_table(to, "/kafka/frames").to_pylist()} == {0, 3}


def test_columns_that_contradict_each_other_are_not_made_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["rotated.mcap", "rotated-0002.mcap"]
    paths = []
    for name, type_, value in zip(names, ("int64", "binary"), (1, b"one"), strict=True):
        table = Table(
            (*OF_EXCHANGES, ArrowField("both", type_)),
            lambda row, value=value: row | {"both": value},
        )
        paths.append(remade(FORMATS / name, tmp_path / name, {"/kafka/exchanges": table}))
    to = tmp_path / "one.mcap"
    assert main(["export", *map(str, paths), "--to", str(to)]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "both" in err and "export them one by one" in err
    assert not to.exists()


# ---------------------------------------------------------------- notes of a newer kproxy


def test_the_next_file_repeats_what_it_does_not_know_of_connections(tmp_path: Path) -> None:
    run = Recording(tmp_path / "run.mcap", **SETTINGS, rotate_bytes=1, rotate_ns=None)
    run.write([opened(3, tls={"cipher": "x", "later": [1, {"a": None}]}, quic=True)])
    more_said = {"event": "renamed", "connection": 3, "tls": {"alpn": "kafka"}, "since": 5}
    run.write([Note("connections", START_NS + 1, more_said)])
    run.write([request(1, b"x" * 30)])
    run.close()
    *_, last = run.paths
    (first, *_) = [each for each in recording.entries(last) if isinstance(each, Note)]
    tls = {"cipher": "x", "later": [1, {"a": None}], "alpn": "kafka"}
    assert first.body["event"] == "open"
    assert {key: first.body[key] for key in ("tls", "quic", "since")} == {
        "tls": tls, "quic": True, "since": 5,
    }  # fmt: skip


# ---------------------------------------------------------------- the version


def of_version(path: Path, version: str, kproxy_min: str) -> Path:
    """Make a file of a format version."""
    about = {"format_version": version, "kproxy_min": kproxy_min}
    return remade(FORMATS / "login.mcap", path, about=about)


COMMANDS: dict[str, Callable[[Path, Path], list[str]]] = {
    "show": lambda path, folder: [str(path)],
    "stats": lambda path, folder: [str(path)],
    "tail": lambda path, folder: [str(path)],
    "why": lambda path, folder: [str(path), "number:1"],
    "scan": lambda path, folder: [str(path)],
    "recover": lambda path, folder: [str(path)],
    "replay": lambda path, folder: [str(path)],
    "export": lambda path, folder: [str(path), "--to", str(folder / "out.mcap")],
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("native", [True, False])
def test_every_command_says_which_kproxy_reads_a_newer_file(
    command: str, native: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = of_version(tmp_path / "x.mcap", "3", "0.7")
    if not native:
        path = rewrite(path, tmp_path / "y.mcap")
    data = path.read_bytes()
    code = main([command, *COMMANDS[command](path, tmp_path)])
    out, err = capsys.readouterr()
    assert (code, out) == (1, "")
    expected = f"{path}: has format version 3: it needs kproxy 0.7 or newer, this is {__version__}"
    assert err == f"kproxy {command}: {expected}\n"
    assert path.read_bytes() == data and not (tmp_path / "out.mcap").exists()


@pytest.mark.parametrize(
    "said_min", ["", "0.7\nrm -rf", "soon", "9" * 100, "\x1b[2J", __version__, "0.0.9"]
)
def test_a_newer_file_that_does_not_say_needs_a_newer_kproxy(said_min: str, tmp_path: Path) -> None:
    path = of_version(tmp_path / "x.mcap", "3", said_min)
    with pytest.raises(RecordingError) as raised:
        info(path)
    expected = f"has format version 3: it needs a newer kproxy than {__version__}"
    assert str(raised.value) == f"{path}: {expected}"


def test_spark_says_it_too(tmp_path: Path) -> None:
    path = of_version(tmp_path / "x.mcap", "4", "1.12.3")
    with pytest.raises(RecordingError, match=r"version 4: it needs kproxy 1\.12\.3 or newer"):
        splits.stretches(splits.find([str(path)]))


def test_an_older_file_is_to_be_recorded_again(tmp_path: Path) -> None:
    path = of_version(tmp_path / "x.mcap", "1", "0.1.0")
    with pytest.raises(RecordingError, match="version 1, this kproxy reads 2: record it again"):
        info(path)


def test_files_say_which_kproxy_reads_them(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mcap", conversation())
    records = oracle(path)
    (metadata,) = [each for each in records if isinstance(each, mcap.records.Metadata)]
    channels = [each for each in records if isinstance(each, mcap.records.Channel)]
    assert len(channels) == 8
    said_min = {each.metadata["kproxy_min"] for each in (metadata, *channels)}
    assert said_min == {"0.1.0"}
    assert info(path).metadata["kproxy_min"] == "0.1.0"
