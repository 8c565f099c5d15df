"""Memory of large frames is kept: the kernel is asked for it once, not for every frame."""

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
