"""Recordings are opened once, and known again from an index that is never trusted."""

from __future__ import annotations

import os
import pickle
import random
import tracemalloc
from array import array
from pathlib import Path
from typing import Any

import attrs
import pytest
from zlib_ng.zlib_ng import crc32

from kproxy.recording import Recording, RecordingError
from kproxy.replay import index_file, opening
from kproxy.replay.loaded import CommittingGroups, Loaded
from kproxy.replay.opening import Wanted, open_broker, open_recorded
from kproxy.replay.report import Report
from kproxy.replay.settings import Mode, ReplaySettings
from kproxy.wire.protocol import codes, messages
from tests.bed import logged, needs
from tests.recording import making
from tests.replay.making import ORDERS_ID, Playing, Recorded, batch, fetch, produce
from tests.replay.test_compared import Did


@attrs.frozen
class Planted:
    """What makes a file when it is unpickled."""

    path: str

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.path, "w")


DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"


@pytest.fixture(autouse=True)
def indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every recording is large."""
    monkeypatch.setattr(opening, "INDEXED_BYTES_MIN", 0)


def plain(loaded: Loaded) -> Any:
    """All that was loaded, as a value that compares."""
    cluster = loaded.cluster
    topics = {
        topic.topic_id: (
            topic.name,
            topic.internal,
            topic.created,
            [
                (
                    each.index,
                    each.leader_id,
                    each.leader_epoch,
                    each.log.start_offset,
                    each.log.last_start_offset,
                    each.log.end_offset,
                    [batch.raw for batch in each.log.batches()],
                    [batch.raw for batch, _ in each.log.produced()],
                    [(one.first_offset, one.last_offset) for one in each.log.transactions],
                )
                for each in topic.partitions.values()
            ],
        )
        for topic in cluster.all_topics
    }
    others = {key: [attr.request for attr in each] for key, each in loaded.others.items()}
    return (
        topics,
        {name: topic.topic_id for name, topic in cluster.topics.items()},
        others,
        cluster.racks,
        cluster.names,
        cluster.coordinators,
        loaded.committed,
        loaded.groups,
        loaded.committing,
        loaded.produced,
        loaded.refused,
        loaded.unplaced,
        loaded.lacking,
        loaded.producer_id_max,
    )


def everything() -> Recorded:
    """A recording with all that an index must hold."""
    admin = messages.DescribeAclsRequest(), messages.DescribeAclsResponse(resources=[])
    recorded = Did()
    recorded.metadata(partitions=2, nodes=2).stood("g", 1)
    recorded.wrote_in("t", "i", at=10).committed("g", 1, within="t").ended("t").committed("h", 1)
    kind = messages.MetadataResponse
    absent = kind.MetadataResponseTopic(error_code=3, name="absent")
    recorded.add(12, messages.MetadataRequest(topics=[]), kind(topics=[absent]))
    recorded.fetched(batch("a", "b") + batch("c", base_offset=2))
    recorded.produced(batch("x"), base_offset=3).produced(batch("y"), 0, partition=1)
    recorded.produced(batch("t"), 1, partition=1, log_append_time_ms=77)
    recorded.produced(batch("w", transactional=True, producer_id=5, producer_epoch=0), 4)
    gap = batch("g", base_offset=8)
    recorded.produced(batch("gone"), 7, partition=1).fetched(gap, offset=7, partition=1)
    return recorded.add(9, produce(batch("lost"), acks=0)).add(3, *admin)


def created_again(recorded: Recorded) -> Recorded:
    """The same, and "orders" is deleted and created again."""
    deleted = messages.DeleteTopicsResponse.DeletableTopicResult(name="orders", topic_id=ORDERS_ID)
    request = messages.DeleteTopicsRequest(topic_names=["orders"])
    recorded.add(5, request, messages.DeleteTopicsResponse(responses=[deleted]))
    return recorded.produced(batch("again"))


def written(folder: Path, recorded: Recorded) -> Path:
    """The recording as a file."""
    return making.write(folder / "recording.mcap", [recorded.entries])


def test_what_is_read_of_a_file_is_what_exchanges_give(tmp_path: Path) -> None:
    recorded = created_again(everything())
    opened = open_recorded([written(tmp_path, recorded)], Wanted(), folder=tmp_path)
    assert plain(opened.loaded) == plain(recorded.loaded)


def test_an_index_says_all_that_the_recording_says(tmp_path: Path) -> None:
    path = written(tmp_path, created_again(everything()))
    assert everything().loaded.committing == CommittingGroups({"g"}, {"h"})
    first, second = (open_recorded([path], Wanted(), folder=tmp_path / "i") for _ in range(2))
    assert plain(second.loaded) == plain(first.loaded)
    (index,) = (tmp_path / "i").iterdir()
    assert index.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [Mode.STATE, Mode.SEMANTIC])
def test_the_second_start_reads_no_exchange(mode: Mode, tmp_path: Path) -> None:
    wanted = Wanted(mode, timing=2.0, faults=True)
    steps: list[int] = []
    told = [
        open_recorded([DEMO], wanted, lambda done, total: steps.append(done), folder=tmp_path)
        for _ in range(2)
    ]
    assert steps[-1] == DEMO.stat().st_size and steps.count(steps[-1]) == 1
    assert plain(told[1].loaded) == plain(told[0].loaded)
    assert told[1].faults == told[0].faults
    assert told[1].times == told[0].times and any(told[0].times[1])


def test_the_indexes_that_were_used_last_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "i"
    paths = [
        making.write(tmp_path / f"{number}.mcap", [everything().entries]) for number in range(4)
    ]
    indexes: list[Path] = []
    for age, path in enumerate(paths[:3]):
        open_recorded([path], Wanted(), folder=folder)
        (index,) = set(folder.iterdir()) - set(indexes)
        os.utime(index, (age, age))
        indexes.append(index)
    open_recorded(paths[:1], Wanted(), folder=folder)  # the oldest is used
    size = indexes[0].stat().st_size
    monkeypatch.setattr(index_file, "KEPT_BYTES_MAX", 3 * size + size // 2)
    open_recorded(paths[3:], Wanted(), folder=folder)
    left = set(folder.iterdir())
    assert len(left) == 3 and left & set(indexes) == {indexes[0], indexes[2]}
    monkeypatch.setattr(index_file, "KEPT_BYTES_MAX", 0)
    indexes[2].unlink()
    open_recorded(paths[2:3], Wanted(), folder=folder)
    assert set(folder.iterdir()) == {indexes[2]}, "the newest is kept, however large"


def test_a_damaged_index_is_made_anew(tmp_path: Path) -> None:
    path = written(tmp_path, everything())
    expected = plain(open_recorded([path], Wanted(), folder=tmp_path / "i").loaded)
    (index,) = (tmp_path / "i").iterdir()
    good = index.read_bytes()
    flipped = [good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :] for at in range(0, len(good), 61)]
    head = good[: 12 + int.from_bytes(good[8:12], "little")]
    planted = [head + pickle.dumps(each) for each in (Planted(str(tmp_path / "made")), array("I"))]
    planted = [each + crc32(each).to_bytes(4, "little") for each in planted]
    for bad in [*flipped, good[:-1], good[: len(good) // 2], b"", *planted]:
        index.write_bytes(bad)
        assert plain(open_recorded([path], Wanted(), folder=tmp_path / "i").loaded) == expected
        assert index.read_bytes() == good
    assert not (tmp_path / "made").exists(), "it makes nothing but its own classes"


def test_what_a_recording_lacks_is_told_at_first_and_counted(tmp_path: Path) -> None:
    recorded, said = Recorded().metadata(partitions=12), list[str]()
    for partition in range(12):
        recorded.fetched(batch("a"), partition=partition)
        recorded.fetched(batch("b", base_offset=5), 5, partition)
    path = written(tmp_path, recorded)
    open_broker([path], ReplaySettings(), Wanted(), Report(), logged.to(said), said.append)
    assert len(said) == 11 and "lacks orders[0]: 4 offsets" in said[0], said
    assert said[-1] == "… and 2 more that it lacks"


def test_an_index_of_what_the_file_was_before_is_made_anew(tmp_path: Path) -> None:
    path = written(tmp_path, everything())
    open_recorded([path], Wanted(), folder=tmp_path / "i")
    (index,) = (tmp_path / "i").iterdir()
    before, times = index.read_bytes(), os.stat(path)
    path.unlink()
    other = Recorded().metadata().fetched(batch("other"))
    written(tmp_path, other)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    opened = open_recorded([path], Wanted(), folder=tmp_path / "i")
    assert plain(opened.loaded) == plain(other.loaded)
    assert index.read_bytes() != before


def test_a_cache_that_cannot_be_written_is_said_and_done_without(tmp_path: Path) -> None:
    path = written(tmp_path, everything())
    folder, said = tmp_path / "file", []
    folder.write_text("this is no folder")
    opened = open_recorded([path], Wanted(), log=logged.to(said), folder=folder / "i")
    assert len(opened.loaded.cluster.topics) == 1
    assert len(said) == 1 and "the next start reads all of it again" in said[0]


def test_recorded_faults_are_found_whatever_was_indexed_before(tmp_path: Path) -> None:
    recorded = (
        Recorded().metadata().produced(batch("a"), -1, error_code=codes.NOT_LEADER_OR_FOLLOWER)
    )
    path = written(tmp_path, recorded)
    found = [
        len(open_recorded([path], Wanted(faults=wanted), folder=tmp_path / "i").faults)
        for wanted in (False, True, False, True)
    ]
    assert found == [0, 1, 0, 1]


@pytest.mark.parametrize("planted", ["pipe", "device", "anybody's", "folder"])
def test_an_index_that_is_not_the_users_own_file_is_not_believed(
    tmp_path: Path, planted: str
) -> None:
    path = written(tmp_path, everything())
    open_recorded([path], Wanted(), folder=tmp_path / "i")
    (index,) = (tmp_path / "i").iterdir()
    if planted == "anybody's":
        index.chmod(0o666)
    else:
        index.unlink()
    if planted == "pipe":
        os.mkfifo(index)
    elif planted == "device":
        index.symlink_to("/dev/zero")
    elif planted == "folder":
        index.mkdir()
    read: list[int] = []
    said: list[str] = []
    opened = open_recorded(
        [path], Wanted(), lambda done, _: read.append(done), said.append, tmp_path / "i"
    )
    assert len(opened.loaded.cluster.topics) == 1 and read
    assert (planted == "folder") == bool(said), "another takes its place"


def test_what_a_killed_start_has_left_is_removed_in_time(tmp_path: Path) -> None:
    path = written(tmp_path, everything())
    folder = tmp_path / "i"
    folder.mkdir()
    old, new = folder / ".index-old", folder / ".index-new"
    for each in (old, new):
        each.write_bytes(b"half of an index")
    os.utime(old, (1, 1))
    open_recorded([path], Wanted(), folder=folder)
    assert not old.exists() and new.exists(), "another may be writing it"


def test_a_user_without_a_home_has_no_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    opened = open_recorded([written(tmp_path, everything())], Wanted())
    assert len(opened.loaded.cluster.topics) == 1


def test_a_torn_recording_has_no_index(tmp_path: Path) -> None:
    path = written(tmp_path, everything())
    path.write_bytes(path.read_bytes()[:-10])
    open_recorded([path], Wanted(), folder=tmp_path / "i")
    assert not (tmp_path / "i").exists()


def test_a_recording_that_is_replaced_while_it_is_served_is_noticed(tmp_path: Path) -> None:
    large = random.Random(1).randbytes(1 << 18).hex()  # more than is read ahead
    path = written(tmp_path, Recorded().metadata().fetched(batch(large)))
    open_recorded([path], Wanted(), folder=tmp_path / "i")
    opened = open_recorded([path], Wanted(), folder=tmp_path / "i")
    data = bytearray(path.read_bytes())
    at = len(data) // 2
    data[at : at + 8] = bytes(8)
    with path.open("r+b") as file:
        file.write(data)
    playing = Playing(opened.loaded)
    assert playing.connect().fetch(0).error_code == codes.KAFKA_STORAGE_ERROR
    (finding,) = playing.report.findings
    assert "damaged" in finding.text and str(path) in finding.text


def test_what_a_consumer_asks_for_next_is_read_while_it_is_busy(tmp_path: Path) -> None:
    recorded = Recorded().metadata()
    for offset in range(3):
        data = batch(random.Random(offset).randbytes(1 << 16).hex(), base_offset=offset)
        recorded.fetched(data, offset=offset)
    path = written(tmp_path, recorded)
    open_recorded([path], Wanted(), folder=tmp_path / "i")
    loaded = open_recorded([path], Wanted(), folder=tmp_path / "i").loaded
    store, read = loaded.cluster.store, list[int]()
    read_frame = store.read_frame
    store.read_frame = lambda place: read.append(place) or read_frame(place)
    playing = Playing(loaded, taking=False)
    client = playing.connect()
    client.send(11, fetch({0: 0}, max_wait_ms=0))
    playing.pass_ms(100)
    assert len(read) == 1, "it is still waiting for the rest of the response"
    playing.take()
    assert len(read) == 2
    playing.taking = True
    client.send(11, fetch({0: 1}, max_wait_ms=0))
    assert len(read) == 2
    playing.pass_ms(1)
    assert len(read) == 3, "the response was taken at once"


def test_the_cache_is_where_the_user_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert index_file.cache_folder() == Path("/somewhere/kproxy/replay")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the standard says: to be ignored
    monkeypatch.setenv("HOME", "/home/me")
    assert index_file.cache_folder() == Path("/home/me/.cache/kproxy/replay")


def test_a_batch_takes_40_bytes_of_memory_at_most(tmp_path: Path) -> None:
    count = 20_000
    recorded = Recorded().metadata()
    for index in range(200):
        each = count // 200
        data = b"".join(batch("v", base_offset=index * each + nth) for nth in range(each))
        recorded.fetched(data, offset=index * each)
    path = written(tmp_path, recorded)
    del recorded
    open_recorded([path], Wanted(), folder=tmp_path / "i")
    tracemalloc.start()
    try:
        few = open_recorded([DEMO], Wanted(), folder=tmp_path / "i")
        before = tracemalloc.get_traced_memory()[0]
        opened = open_recorded([path], Wanted(), folder=tmp_path / "i")
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(opened.loaded.cluster.topics["orders"].partitions[0].log) == count
    assert grown <= 40 * count, f"{grown / count:.1f} bytes per batch"
    assert few


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="does not exist"):
        open_recorded([tmp_path / "none.mcap"], Wanted(), folder=tmp_path / "i")


def test_what_another_tool_has_rewritten_is_served_and_not_indexed(tmp_path: Path) -> None:
    recorded = everything()
    path = making.rewrite(written(tmp_path, recorded), tmp_path / "rewritten.mcap")
    for _ in range(2):
        opened = open_recorded([path], Wanted(), folder=tmp_path / "i")
        assert plain(opened.loaded) == plain(recorded.loaded)
    assert not (tmp_path / "i").exists()


def test_the_parts_of_a_recording_and_another_one_are_one_cluster(tmp_path: Path) -> None:
    recorded, folder = everything(), tmp_path / "r"
    folder.mkdir()
    run = Recording(folder / "run.mcap", rotate_bytes=1, **making.SETTINGS)
    for entry in recorded.entries:
        run.write([entry])
    run.close()
    assert len(run.paths) > 3
    making.write(folder / "other.mcap", [Recorded().fetched(batch("z"), partition=1).entries])
    recorded.fetched(batch("z"), partition=1)  # where batches have the same numbers
    for _ in range(2):
        opened = open_recorded([*run.paths, folder / "other.mcap"], Wanted(), folder=tmp_path)
        logs = opened.loaded.cluster.topics["orders"].partitions
        expected = recorded.loaded.cluster.topics["orders"].partitions
        for index in expected:
            found = [each.raw for each in logs[index].log.batches()]
            assert found == [each.raw for each in expected[index].log.batches()]
