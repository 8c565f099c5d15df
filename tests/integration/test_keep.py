"""`kproxy run --keep` as an operator leaves it on, over restarts: the folder stays small."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import confluent_kafka

from kproxy import recording
from tests.bed import proxies
from tests.bed.waiting import until

KEEP_BYTES = 4 << 20
CONTROL = ("--quiet", "--control", "127.0.0.1:0")


def folder_bytes(folder: Path) -> int:
    """The size of all recordings in a folder."""
    size = 0
    for path in folder.glob("*.mcap"):
        with contextlib.suppress(FileNotFoundError):  # it was removed just now
            size += path.stat().st_size
    return size


def produce(bootstrap: str, size_bytes: int) -> None:
    """Produce this much, in requests of 100 kB."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for _ in range(size_bytes // 100_000):
        producer.produce("orders", value=os.urandom(100_000))
        producer.flush(10)


def removed(proxy: proxies.Proxy) -> int:
    """How many files were removed by now, as the metrics say."""
    return int(proxy.metrics()["kproxy_files_removed_total"])


def test_the_folder_stays_within_the_limit_over_restarts(mock_brokers: str, tmp_path: Path) -> None:
    keep = "--keep", "4MiB", "--keep-matching", "api:Metadata", *CONTROL
    with proxies.running(mock_brokers, tmp_path, *keep) as proxy:
        for _ in range(6):
            produce(proxy.bootstrap, 2_000_000)
            until(lambda: folder_bytes(tmp_path) <= KEEP_BYTES, "the oldest files are gone")
        first = removed(proxy)
    assert first > 1 and f"; {first} files removed" in proxy.log and "is lost" not in proxy.log
    assert "recording.mcap (part 1, " in proxy.log
    kept = sorted(tmp_path.glob("*-kept.mcap"))
    assert kept[-1].name == "recording-kept.mcap"
    apis = {exchange.api for path in kept for exchange in recording.read(path)}
    assert "Metadata" in apis and "Produce" not in apis
    shown = subprocess.run(
        [proxies.KPROXY, "show", tmp_path], capture_output=True, text=True, timeout=60
    )
    (said,) = shown.stderr.splitlines()
    assert said.endswith(f"parts 1 to {first} were removed by --keep 4MiB")

    again = tmp_path / "again.mcap"
    with proxies.running(mock_brokers, tmp_path, *keep, "--record", str(again)) as proxy:
        produce(proxy.bootstrap, 8_000_000)
        until(lambda: folder_bytes(tmp_path) <= KEEP_BYTES, "those of the run before are gone, too")
        assert removed(proxy) > 1
        for path in tmp_path.glob("recording*-kept.mcap"):  # told of the ports of the run before
            path.unlink()
    assert not list(tmp_path.glob("recording-0???.mcap"))


def test_readers_say_when_kproxy_was_not_recording(mock_brokers: str, tmp_path: Path) -> None:
    for name, how in (("a", signal.SIGKILL), ("b", signal.SIGTERM), ("c", signal.SIGINT)):
        path = tmp_path / f"{name}.mcap"
        command = ["run", "--bootstrap", mock_brokers, "--record", str(path), "--keep", "4MiB"]
        with proxies.started(command, path, tmp_path / f"{name}.log") as proxy:
            produce(proxy.bootstrap, 100_000)
            until(
                lambda path=path: any(
                    each.api == "Produce" for each in recording.read(path, told=lambda note: None)
                ),
                "it is recorded",
            )
            proxy.process.send_signal(how)
            proxy.code = -how if how == signal.SIGKILL else 0
            proxy.process.wait(20)
    for command in ("show", "why", "stats"):
        told = subprocess.run(
            [proxies.KPROXY, command, tmp_path], capture_output=True, text=True, timeout=60
        ).stderr
        pauses = [line.partition(" to ")[2][21:] for line in told.splitlines() if " to 2" in line]
        assert pauses == ["it was killed, or the machine went down", "it was stopped by SIGTERM"]
