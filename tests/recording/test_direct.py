"""What goes past the page cache is in the file as if it had gone through it."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kproxy.recording import direct
from kproxy.recording.direct import BYTES_MIN, Direct
from kproxy.recording.files import write_all
from tests.recording.making import refusing, request, write

pytestmark = pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="there is no O_DIRECT here")

BLOCK = 4096
MUCH = os.urandom(BYTES_MIN + 5 * BLOCK)


def opened(folder: Path) -> int:
    """A new file's descriptor."""
    return os.open(folder / "file", os.O_RDWR | os.O_CREAT | os.O_TRUNC)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    sizes=st.lists(st.integers(0, 3 * BLOCK + 1) | st.just(BLOCK), min_size=1, max_size=8),
    at=st.integers(0, 3 * BLOCK) | st.just(BLOCK),
)
def test_every_byte_is_where_it_belongs(tmp_path: Path, sizes, at: int) -> None:
    fd = opened(tmp_path)
    os.pwrite(fd, b"b" * at, 0)
    buffers = [MUCH[size : 2 * size] for size in sizes]
    way = Direct(fd, bytes_min=0)
    staged = stage(way, buffers, at)
    assert staged is not None and bytes(staged) == b"".join(buffers)
    way.write(staged, at)
    way.close()
    assert (tmp_path / "file").read_bytes() == b"b" * at + b"".join(buffers)
    os.close(fd)


def stage(way: Direct, parts: list[bytes], at: int) -> memoryview | None:
    """Stages parts of the size that they have."""
    return way.stage(parts, sum(map(len, parts)), at)


def spied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, int]]:
    """Collects how each piece is written: whether directly, and how much."""
    seen = []

    def spy(fd: int, data: memoryview, at: int) -> None:
        seen.append((bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT), len(data)))
        write_all(fd, data, at)

    monkeypatch.setattr(direct, "write_all", spy)
    return seen


def open_files() -> list[str]:
    """The descriptors of this process that are files."""
    return [each.path for each in os.scandir("/proc/self/fd") if os.path.isfile(each.path)]


def test_what_it_opens_is_closed_with_the_writer(tmp_path: Path) -> None:
    path = tmp_path / "much.mcap"
    write(path, [[request(1, MUCH * 4)]])
    assert not any(os.path.samefile(each, path) for each in open_files())


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_file_system_without_it_is_asked_once(tmp_path: Path, monkeypatch, number) -> None:
    asked = []
    ask = os.open

    def without(path: str, flags: int, *more: int) -> int:
        if flags & os.O_DIRECT:
            asked.append(path)
            raise OSError(number, os.strerror(number))
        return ask(path, flags, *more)

    fd = opened(tmp_path)
    way = Direct(fd)
    monkeypatch.setattr(direct.os, "open", without)
    staged = stage(way, [MUCH], 7)
    assert staged is not None
    way.write(staged, 7)
    assert os.pread(fd, len(MUCH), 7) == MUCH
    assert stage(way, [MUCH], 7) is None
    assert len(asked) == 1
    way.close()
    os.close(fd)


@pytest.mark.parametrize("call", ["memfd_create", "ftruncate", "pwritev"])
def test_what_has_no_room_in_memory_goes_through_the_page_cache(
    tmp_path: Path, monkeypatch, call: str
) -> None:
    gc.collect()  # what others have left behind
    before = os.listdir("/proc/self/fd")
    fd = opened(tmp_path)
    way = Direct(fd)
    monkeypatch.setattr(direct.os, call, refusing(errno.ENOMEM))
    assert stage(way, [MUCH], 0) is None
    monkeypatch.undo()
    assert stage(way, [MUCH] * 33, 0) is None, "more than the buffer holds"
    assert stage(way, [MUCH], 0) == MUCH
    way.close()
    os.close(fd)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_slow_disk_is_left_to_the_page_cache_for_a_while(tmp_path: Path, monkeypatch) -> None:
    seen = spied(monkeypatch)
    times = iter([0.0, 0.06, 1.0, 1.001])
    monkeypatch.setattr(direct.time, "monotonic", lambda: next(times))
    fd = opened(tmp_path)
    way = Direct(fd)
    staged = stage(way, [MUCH], 0)
    assert staged is not None
    way.write(staged, 0)
    assert (True, len(MUCH)) in seen
    for _ in range(direct.SPARED_BYTES // len(MUCH)):
        assert stage(way, [MUCH], 0) is None
    assert stage(way, [MUCH], 0) == MUCH
    way.close()
    os.close(fd)


def test_a_disk_that_refuses_is_not_asked_in_another_way(tmp_path: Path, monkeypatch) -> None:
    fd = opened(tmp_path)
    way = Direct(fd)
    staged = stage(way, [MUCH], 0)
    assert staged is not None
    monkeypatch.setattr(direct.os, "pwrite", refusing(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        way.write(staged, 0)
    monkeypatch.undo()
    way.close()
    assert not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT
    os.close(fd)


def test_a_recording_is_the_same_either_way(tmp_path: Path, monkeypatch) -> None:
    batches = [[request(number, MUCH) for number in range(first, first + 3)] for first in (1, 4)]
    seen = spied(monkeypatch)
    one = write(tmp_path / "direct.mcap", batches)
    assert sum(size for directly, size in seen if directly) > 5 * len(MUCH)
    monkeypatch.setattr(direct, "BYTES_MIN", 1 << 40)
    assert write(tmp_path / "cached.mcap", batches).read_bytes() == one.read_bytes()
