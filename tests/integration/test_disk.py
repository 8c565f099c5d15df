"""A disk that fills up, refuses in the middle or hangs: traffic goes on, and losses are counted.

The number of lost frames is the same wherever it is told: in the metrics, the exit summary and the
recording; and together with the recorded ones they are exactly the frames that passed.

The limit on the size of a file that the kernel has for every process (RLIMIT_FSIZE) stands in for
the disk: from outside, at any moment, without being root.
"""

from __future__ import annotations

import re
import resource
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from kproxy import recording
from kproxy.exchange.entries import UNANSWERED, Note
from tests.bed import beats, proxies
from tests.bed.waiting import until

pytestmark = pytest.mark.skipif(
    not hasattr(resource, "prlimit"), reason="limits of another process need Linux"
)

CONTROL = ("--control", "127.0.0.1:0")


def limit_files(proxy: proxies.Proxy, limit_bytes: int) -> None:
    """No file of the proxy may grow beyond this."""
    pid = proxy.process.pid
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit_bytes, hard))


def lost(proxy: proxies.Proxy) -> int:
    """How many frames are lost by now."""
    return int(proxy.metrics()["kproxy_frames_lost_total"])


def recorded(path: Path) -> tuple[Counter[bytes], int, int]:
    """The frames in a recording, and how many frames and bytes it says are lost."""
    frames: Counter[bytes] = Counter()
    frames_lost = bytes_lost = 0
    for entry in recording.entries(path):
        if isinstance(entry, Note):
            if entry.body["event"] == "lost":
                frames_lost += entry.body["frames"]
                bytes_lost += entry.body["bytes"]
        elif not entry.flags & UNANSWERED:
            frames[entry.data] += 1
    return frames, frames_lost, bytes_lost


def summed_up(proxy: proxies.Proxy) -> tuple[int, int]:
    """Recorded and lost frames, as the last line of the log says."""
    found = re.search(r"recorded (\d+) frames(?:, (\d+) frames LOST)? in ", proxy.log)
    assert found, proxy.log
    return int(found[1]), int(found[2] or 0)


def check(proxy: proxies.Proxy, hearts: beats.Hearts) -> None:
    """What is recorded was sent, and what was sent and is not recorded was counted as lost."""
    frames, frames_lost, bytes_lost = recorded(proxy.recording)
    sent = hearts.frames()
    assert max(frames.values()) == 1 and frames.keys() <= sent
    missing = sent - frames.keys()
    assert summed_up(proxy) == (len(frames), len(missing))
    assert (frames_lost, bytes_lost) == (len(missing), sum(map(len, missing)))
    shown = subprocess.run(
        [proxies.KPROXY, "show", proxy.recording], capture_output=True, text=True, timeout=60
    )
    told = re.findall(
        r"^kproxy show: (\d+) frames \(.*are not in the recording", shown.stderr, re.MULTILINE
    )
    assert shown.returncode == 0 and sum(map(int, told)) == len(missing)


def test_a_disk_that_refuses_in_the_middle_costs_what_is_counted(tmp_path: Path) -> None:
    with beats.broker() as broker, proxies.running(broker, tmp_path, *CONTROL) as proxy:
        with beats.Hearts(proxy.port) as hearts:
            until(lambda: proxy.metrics()["kproxy_recording_bytes_total"] > 50_000, "it records")
            assert lost(proxy) == 0
            for _ in range(2):
                limit_files(proxy, 1000)
                before = lost(proxy)
                until(lambda floor=before + 500: lost(proxy) > floor, "frames are lost")
                limit_files(proxy, resource.RLIM_INFINITY)
                before = proxy.metrics()["kproxy_frames_recorded_total"]
                until(
                    lambda floor=before + 500: (
                        proxy.metrics()["kproxy_frames_recorded_total"] > floor
                    ),
                    "it records again",
                )
            hearts.stop()
        counted = until(lambda: settled(proxy, hearts), "all is recorded or lost")
        proxy.code = 1
        proxy.stop()
        check(proxy, hearts)
        assert counted == summed_up(proxy)[1] > 1000
        assert proxy.log.count("File too large; the proxy goes on and counts") == 2
        assert "the recording goes on; " in proxy.log


def settled(proxy: proxies.Proxy, hearts: beats.Hearts) -> int | None:
    """The number of frames lost, when the fate of every frame is known."""
    metrics = proxy.metrics()
    frames_lost = metrics["kproxy_frames_lost_total"]
    sent = 2 * sum(hearts.beats)
    known = frames_lost + metrics["kproxy_frames_recorded_total"]
    return int(frames_lost) if known == sent else None


def test_a_full_disk_costs_what_is_counted(tmp_path: Path) -> None:
    with beats.broker() as broker, proxies.running(broker, tmp_path, *CONTROL) as proxy:
        limit_files(proxy, 200_000)
        with beats.Hearts(proxy.port) as hearts:
            until(lambda: lost(proxy) > 1000, "frames are lost")
            hearts.stop()
        counted = until(lambda: settled(proxy, hearts), "all is recorded or lost")
        assert proxy.recording.stat().st_size <= 200_000
        limit_files(proxy, 201_000)  # room for the note of what is lost
        proxy.code = 1
        proxy.stop()
        check(proxy, hearts)
        assert counted == summed_up(proxy)[1]


def test_with_record_or_die_a_full_disk_ends_the_proxy(tmp_path: Path) -> None:
    options = (*CONTROL, "--record-or-die")
    with beats.broker() as broker, proxies.running(broker, tmp_path, *options) as proxy:
        proxy.code = 1
        limit_files(proxy, 200_000)
        hearts = beats.Hearts(proxy.port)
        with pytest.raises((AssertionError, ConnectionError)), hearts:
            proxy.process.wait(timeout=30)
        lines = proxy.log.splitlines()
        others = "(metrics|page): http|before a login"
        *before, last = [line for line in lines if not re.search(others, line)]
        # Where the last batch ended so near to the limit that the summary has no room either.
        incomplete = "kproxy: cannot complete the recording (File too large); kproxy recover"
        assert before in ([], [f"{incomplete} does that later"])
        cannot = "kproxy run: cannot write the recording: File too large"
        assert re.fullmatch(rf"{cannot}; [1-9]\d* frames that passed are not recorded", last)
        frames, _, _ = recorded(proxy.recording)
        assert max(frames.values(), default=1) == 1 and frames.keys() <= hearts.frames(beyond=1)
