"""Streams without Spark, in a folder where everything happens: each row comes once."""

from __future__ import annotations

import json
import os
import random
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from kproxy.recording.rotation import Recording
from kproxy.spark.source import NO_LIMITS, StreamLimits
from kproxy.tables import reading
from kproxy.tables.views import chosen
from tests.recording import making
from tests.tables import storage
from tests.versions import ALL

pytest.importorskip("pyspark")

from pyspark.sql.datasource import CaseInsensitiveDict

from kproxy.spark.stream import StreamReader

_HOUR_NS = 3600 * 1_000_000_000
Row = tuple[Any, ...]


def of_row(row: dict[str, Any]) -> Row:
    """The values of a row, those of lists as texts."""
    return tuple(repr(each) if isinstance(each, list | dict) else each for each in row.values())


def record(folder: Path, stem: str, parts: int = 3, batches: int = 4) -> list[Path]:
    """Make a recording of several files, of several batches each."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Recording(folder / f"{stem}.mcap", rotate_ns=_HOUR_NS, **making.SETTINGS)
    number = 0
    for part in range(parts):
        for _ in range(batches):
            number += 1
            at_ns = making.START_NS + part * _HOUR_NS + number * 1_000_000
            asked = making.request(number, os.urandom(3000), received_ns=at_ns, sent_ns=at_ns)
            made.write([asked, making.response(number, os.urandom(3000), received_ns=at_ns + 1)])
    made.close()
    return made.paths


@attrs.define(eq=False)
class Query:
    """A query and its checkpoint, as Spark keeps it."""

    path: Path | str
    limits: StreamLimits = NO_LIMITS
    view: str = "exchanges"
    names: Sequence[str] = ("recording", "number")
    offset: dict[str, Any] = attrs.field(factory=dict[str, Any])
    rows: Counter[Row] = attrs.field(factory=Counter[Row])
    batches: list[int] = attrs.field(factory=list[int])
    """The number of rows of each batch."""
    reader: StreamReader = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Go on in another process."""
        schema: Any = None
        self.reader = StreamReader((str(self.path),), self.view, schema, 1 << 27, self.limits)

    def plan(self) -> dict[str, Any]:
        """Plan a batch: Spark writes it into its checkpoint before it reads."""
        start = json.loads(json.dumps(self.offset))
        return json.loads(json.dumps(self.reader.latestOffset(start)))

    def batch(self, killed: bool = False) -> bool:
        """Read a batch; return whether there was one. `killed` in the middle, it comes again."""
        end = self.plan()
        if end == self.offset:
            return False
        if killed:
            self.restart()
        self.batches.append(0)
        for partition in self.reader.partitions(self.offset, end):
            for stretch in getattr(partition, "stretches"):  # noqa: B009
                columns = chosen(self.view, self.names)
                for found in reading.record_batches(stretch, self.view, columns):
                    self.rows.update(map(of_row, found.to_pylist()))
                    self.batches[-1] += len(found)
        self.offset = end
        return True

    def all(self) -> None:
        """Read all that is there."""
        while self.batch():
            assert len(self.batches) < 1000, "it never ends"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """The files of two recordings, one of two parts, and a file without an id."""
    folder = tmp_path_factory.mktemp("sources")
    paths = [*record(folder, "a", 2), *record(folder, "b", 1)]
    batches = [[making.request(n, b"ask"), making.response(n, b"ok")] for n in range(1, 5)]
    return [path.read_bytes() for path in (*paths, making.write(folder / "none.mcap", batches))]


_STEPS = ("grow", "grow", "grow", "finish", "move", "swap", "swap", "copy", "delete")
"""What may happen to a file."""


class World:
    """A folder where files grow, are renamed, exchanged, copied, and deleted."""

    def __init__(self, folder: Path, sources: list[bytes], limits: StreamLimits) -> None:
        self.folder = folder
        self.sources = sources
        self.names = [f"file-{number}.mcap" for number in range(len(sources))]
        self.sizes = [0] * len(sources)
        self.query = Query(folder, limits)
        self.named = 0

    def grow(self, which: int, much: int) -> None:
        """Write some more of a file: in its place, wherever that ends."""
        self._write(which, min(len(self.sources[which]), self.sizes[which] + much))

    def finish(self, which: int, much: int) -> None:
        """Write the rest of a file."""
        self._write(which, len(self.sources[which]))

    def _write(self, which: int, size: int) -> None:
        path, here = self.folder / self.names[which], self.sizes[which]
        present = path.exists()
        with path.open("ab" if present else "wb") as file:
            file.write(self.sources[which][here if present else 0 : size])
        self.sizes[which] = size

    def move(self, which: int, much: int) -> None:
        """Rename a file; the one without an id, which is known by its name, stays."""
        path = self.folder / self.names[which]
        if which < len(self.sources) - 1:
            self.named += 1
            self.names[which] = f"moved-{self.named}.mcap"
            if path.exists():
                path.rename(self.folder / self.names[which])

    def swap(self, which: int, much: int) -> None:
        """Exchange the names of two files, or give a file the name of one that is not there."""
        count = len(self.sources) - 1
        one, other = which % count, much % count
        paths = [self.folder / self.names[each] for each in (one, other)]
        if one != other:
            aside = self.folder / "aside"
            for path, to in zip((*paths, aside), (aside, paths[0], paths[1]), strict=True):
                if path.exists():
                    path.rename(to)
            self.names[one], self.names[other] = self.names[other], self.names[one]

    def copy(self, which: int, much: int) -> None:
        """Copy a file as far as it goes."""
        path = self.folder / self.names[which]
        if path.exists() and which < len(self.sources) - 1:
            self.named += 1
            (self.folder / f"copy-{self.named}.mcap").write_bytes(path.read_bytes())

    def delete(self, which: int, much: int) -> None:
        """Delete a file; one that grows later is there again, whole."""
        (self.folder / self.names[which]).unlink(missing_ok=True)


_LIMITS = [
    NO_LIMITS, StreamLimits(1), StreamLimits(2, 3000), StreamLimits(bytes=1), StreamLimits(2)
]  # fmt: skip


@pytest.mark.parametrize("seed", range(300 if ALL else 30))
def test_each_row_comes_once_whatever_happens(
    sources: list[bytes], seed: int, tmp_path: Path
) -> None:
    some = random.Random(seed)
    world = World(tmp_path, sources, some.choice(_LIMITS))
    for _ in range(some.randint(10, 40)):
        which, much = some.randrange(len(sources)), some.randint(1, 12_000)
        getattr(world, some.choice(_STEPS))(which, much)
        then = some.choice(["batch", "batch", "restart", "killed", ""])
        if then == "restart":
            world.query.restart()
        if then:
            world.query.batch(then == "killed")
    for which in range(len(sources)):
        world.finish(which, 0)
    world.query.all()
    assert world.query.rows == Counter(_rows(world.folder, sources))
    assert not world.query.batch(), "nothing was left"
    world.query.restart()
    assert not world.query.batch(), "nor is there anything after a restart"


def _rows(folder: Path, sources: list[bytes]) -> list[Row]:
    """The rows of all sources, read at once."""
    apart = folder / "apart"
    apart.mkdir()
    for number, data in enumerate(sources):
        name = "file-3" if number == len(sources) - 1 else f"source-{number}"
        (apart / f"{name}.mcap").write_bytes(data)
    query = Query(apart)
    query.all()
    assert set(query.rows.values()) == {1} and len(query.rows) == 3 * 4 + 4
    return list(query.rows)


# ---------------------------------------------------------------- limits


def test_a_backlog_comes_in_batches_of_the_limit_and_in_order(tmp_path: Path) -> None:
    paths = record(tmp_path, "a") + record(tmp_path, "b", 2)
    sizes = [path.stat().st_size for path in paths]
    every = Query(tmp_path)
    every.all()
    assert every.batches == [5 * 4]
    by_file = Query(tmp_path, StreamLimits(1))
    by_file.all()
    assert by_file.batches == [4] * 5
    by_bytes = Query(tmp_path, StreamLimits(bytes=20_000))
    by_bytes.all()
    assert by_bytes.batches == [3, 3, 3, 3, 3, 3, 2] and min(sizes) > 20_000
    smallest = Query(tmp_path, StreamLimits(bytes=1))
    smallest.all()
    assert list(filter(None, smallest.batches)) == [1] * 20, "a chunk is the least"
    assert every.rows == by_file.rows == by_bytes.rows == smallest.rows


def test_no_file_keeps_another_waiting(tmp_path: Path) -> None:
    (one,), (other,) = (record(tmp_path / stem, stem, 1, 8) for stem in "ab")
    folder, data = tmp_path / "both", [one.read_bytes(), other.read_bytes()]
    folder.mkdir()
    query = Query(folder, StreamLimits(1))
    for part in range(1, 21):  # both always have more
        for path, whole in zip((one, other), data, strict=True):
            (folder / path.name).write_bytes(whole[: len(whole) * part // 20])
        query.batch()
    counts = Counter(name for name, _ in query.rows)
    assert min(counts.values()) >= 6 and len(counts) == 2


def test_a_query_that_ends_takes_what_was_there_in_batches(tmp_path: Path) -> None:
    folder = tmp_path / "captures"
    growing, *late = record(tmp_path / "source", "a")
    whole = growing.read_bytes()
    folder.mkdir()
    (folder / growing.name).write_bytes(whole[: len(whole) // 2])
    query = Query(folder, StreamLimits(bytes=1))
    query.reader.prepareForTriggerAvailableNow()
    assert query.batch()
    for path in (growing, *late):
        (folder / path.name).write_bytes(path.read_bytes())
    query.all()
    assert query.batches == [1, 1]
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    query.all()
    assert max(query.batches) == 1 and sum(query.rows.values()) == len(query.rows) == 3 * 4


def test_before_spark_4_2_the_reader_knows_its_last_offset(tmp_path: Path) -> None:
    record(tmp_path, "a")
    limits = StreamLimits(1)
    query = Query(tmp_path, limits)
    query.batch()
    offset, reader = query.offset, query.reader
    for files in (2, 3, 3):  # it is given no offset, and a partition for each that it gave
        offset = reader.latestOffset()
        query.restart()
        assert _parts(offset) == files
    query.reader.partitions(query.offset, query.offset)  # what Spark does after a restart
    assert _parts(query.reader.latestOffset()) == 2
    query.restart()
    assert _parts(query.reader.latestOffset()) == 3, "it may be a query that ends with one batch"


def _parts(offset: dict[str, Any]) -> int:
    """How many parts of a recording an offset has read."""
    done = [text.rpartition("-")[2] for text in offset.get("", {}).values()]
    return max(map(int, done), default=0) + sum(map(bool, offset))


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        ({}, NO_LIMITS),
        ({"maxfilespertrigger": "7"}, StreamLimits(7)),
        ({"MAXBYTESPERTRIGGER": "64KiB"}, StreamLimits(bytes=65536)),
        ({"maxBytesPerTrigger": "2g", "maxFilesPerTrigger": "1"}, StreamLimits(1, 2 << 30)),
        ({"maxBytesPerTrigger": " 1500 "}, StreamLimits(bytes=1500)),
    ],
)
def test_limits_are_given_as_to_sources_of_spark(
    options: dict[str, str], limits: StreamLimits
) -> None:
    assert StreamLimits.of(CaseInsensitiveDict(options)) == limits


@pytest.mark.parametrize("name", ["maxFilesPerTrigger", "maxBytesPerTrigger"])
@pytest.mark.parametrize("text", ["0", "-1", "many", "", "0.5"])
def test_limits_that_are_none_are_said(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"is (not )?a "):
        StreamLimits.of({name: text})


# ---------------------------------------------------------------- offsets


def test_an_offset_does_not_grow_with_the_files_that_were_read(tmp_path: Path) -> None:
    paths = record(tmp_path / "source", "a", 40, 1)
    folder, sizes = tmp_path / "captures", list[int]()
    folder.mkdir()
    query = Query(folder)
    for path in [*paths[20:], *paths[:20]]:  # the older ones come later
        (folder / path.name).write_bytes(path.read_bytes())
        query.batch()
        sizes.append(len(json.dumps(query.offset)))
    assert set(query.rows.values()) == {1} and len(query.rows) == 40
    assert max(sizes) < sizes[0] + 50 and list(query.offset[""].values()) == ["1-19,21-40"]
    for path in paths[:30]:
        (folder / path.name).unlink()
    assert not query.batch()
    for path in paths[:20]:  # some come back, under other names
        (folder / f"again-{path.name}").write_bytes(path.read_bytes())
    query.restart()
    assert not query.batch()


@pytest.mark.parametrize("identity", [True, False])
@pytest.mark.parametrize("relative", [True, False])
def test_checkpoints_of_older_versions_go_on_and_shrink(
    identity: bool, relative: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = record(tmp_path, "a")
    query = Query(tmp_path)
    query.batch()
    query.offset = {
        os.path.relpath(name) if relative else name: place[:2] if identity else place[0]
        for name, place in query.offset.items()
    }
    query.restart()
    assert not query.batch()
    record(tmp_path, "b", 1)
    assert query.batch() and not query.batch()
    assert set(query.rows.values()) == {1} and len(query.rows) == 4 * 4
    assert not any(str(path) in query.offset for path in paths)


def test_a_copy_is_left_out_and_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = record(tmp_path, "a", 1)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    (tmp_path / "copy.mcap").write_bytes(whole[: len(whole) // 3])
    query = Query(tmp_path)
    query.all()
    path.unlink()
    assert not query.batch(), "the copy has less than was read"
    path.write_bytes(whole)
    query.all()
    assert set(query.rows.values()) == {1} and len(query.rows) == 4
    said = capsys.readouterr().err
    assert said.count("copy.mcap is a copy of") == 1 == said.count("\n")


# ---------------------------------------------------------------- what a trigger costs


@pytest.fixture(scope="module")
def opened() -> list[str]:
    """The recordings that this process opened."""
    found: list[str] = []

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and str(arguments[0]).endswith(".mcap"):
            found.append(Path(str(arguments[0])).name)

    sys.addaudithook(hook)
    return found


def test_a_trigger_opens_no_file_that_is_finished(tmp_path: Path, opened: list[str]) -> None:
    record(tmp_path, "a", 30, 1)
    torn = record(tmp_path / "source", "b", 1)[0].read_bytes()
    (tmp_path / "torn.mcap").write_bytes(torn[:12_000])
    query = Query(tmp_path)
    query.all()
    for start in (query.offset, {}):  # read from the beginning, all of it waits again
        query.offset = start
        query.all()
        opened.clear()
        assert not query.batch() and opened == []
    record(tmp_path, "c", 1)
    assert query.batch() and set(opened) == {"c.mcap"}
    opened.clear()
    (tmp_path / "torn.mcap").write_bytes(torn)
    assert query.batch() and set(opened) == {"torn.mcap"}
    opened.clear()
    assert not query.batch() and opened == []
    query.restart()
    assert not query.batch() and max(Counter(opened).values()) <= 2


def test_an_object_that_is_replaced_is_noticed_in_the_listing(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    one, other = (record(tmp_path / "source", stem, 1)[0] for stem in "ab")
    folder = tmp_path / "captures"
    folder.mkdir()
    with storage.serving(tmp_path) as bucket:
        query = Query(bucket.uri("captures"))
        for number, path in enumerate((one, other, one, other)):
            (folder / "a.mcap").write_bytes(path.read_bytes()[:20_000])  # of the same size
            os.utime(folder / "a.mcap", (1e9 + number, 1e9 + number))
            assert query.batch() == (number < 2)
            bucket.requests.clear()
            assert not query.batch()
            asked = [each for each in bucket.requests if "a.mcap" in each]
            assert asked == [] and len(bucket.requests) <= 3, "no request for a file"
    assert set(query.rows.values()) == {1} and len(query.rows) == 2 * 2
    assert "secret" not in json.dumps(query.offset)


def test_a_file_may_grow_between_the_listing_and_the_reading(tmp_path: Path) -> None:
    (path,) = record(tmp_path, "a", 1)
    whole = path.read_bytes()
    path.write_bytes(whole[:12_000])
    query, growing = Query(tmp_path), [True]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if growing and event == "open" and str(arguments[0]) == str(path):
            growing.clear()
            with path.open("ab") as file:
                file.write(whole[12_000:])

    sys.addaudithook(hook)
    query.all()
    assert set(query.rows.values()) == {1} and len(query.rows) == 4
