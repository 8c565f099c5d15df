"""Memory of large frames is kept, and many small objects are not looked at again and again."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_ROUNDS = 20
_PAGES = 32 * 256
"""Of one round: 32 frames of 1 MiB."""
_FAULTS = f"""
import resource
from kproxy.net.allocator import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def round():
    frames = [b"x" * (1 << 20) for _ in range(32)]

if KEEP:
    keep_freed_memory()
round()
before = faults()
for _ in range({_ROUNDS}):
    round()
print(faults() - before)
"""


def _faults(keep: bool) -> int:
    code = _FAULTS.replace("KEEP", str(keep))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have no mallopt")
def test_frames_use_the_memory_of_earlier_frames() -> None:
    assert _faults(keep=True) < _PAGES
    assert _faults(keep=False) > _PAGES * _ROUNDS // 2


@pytest.mark.parametrize(("call", "times"), [("", range(500, 2000)), ("rarely()", range(1, 20))])
def test_garbage_is_looked_for_rarely(call: str, times: range) -> None:
    code = f"""
import gc
from kproxy.net.allocator import collect_garbage_rarely as rarely
{call}
before = sum(each["collections"] for each in gc.get_stats())
kept = [[] for _ in range(1_000_000)]
print(sum(each["collections"] for each in gc.get_stats()) - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) in times
