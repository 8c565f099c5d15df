"""A small hostile file does not become a large program: commands under a limit of memory."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from kproxy.wire.protocol import records
from kproxy.wire.protocol.record_batch import Record
from kproxy.wire.protocol.records import encode_batch
from tests.exchange.bodies import fetch_request, fetch_response
from tests.exchange.making import request, response
from tests.exchange.test_unpacking import recorded
from tests.recording.making import write
from tests.versions import some

MEMORY_BYTES_MAX = 1 << 29
PARTITIONS = 60


def limited() -> None:
    """Limit the memory of the process that is about to start."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))


BOMBS = {
    "large values": [Record(0, 0, None, bytes(15 << 20), ())],
    "many records": [Record(0, 0, None, None, ())] * 200_000,
}


@pytest.mark.parametrize("what", BOMBS)
def test_what_a_small_file_expands_to_is_bounded(tmp_path: Path, what: str) -> None:
    bomb = records.encode_batch(BOMBS[what], compression="zstd")
    asked = request("Fetch", 11, fetch_request(dict.fromkeys(range(PARTITIONS), 0)))
    answered = response(asked, fetch_response(dict.fromkeys(range(PARTITIONS), bomb)))
    path = tmp_path / "bomb.mcap"
    write(path, [[asked, answered]])
    assert path.stat().st_size < 300_000
    program = (
        "import sys; from kproxy.look.lines import show;"
        f"show.show_json([{str(path)!r}], sys.stdout)"
    )
    with (tmp_path / "out.json").open("wb") as out:
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, preexec_fn=limited)
    assert done.returncode == 0, done.stderr
    shown = (tmp_path / "out.json").read_text()
    assert shown.count("\n") == 1 and shown.count('"partition_index"') == PARTITIONS
    assert '"records": null' in shown and '"error": ' in shown, "what is too much is said"
    assert '"records": [{"offset": 0' in shown, "what is allowed is shown"


@pytest.mark.parametrize(
    "value", some([bytes(20 << 20), b"\xff" * (20 << 20)], [b"\xff" * (20 << 20)])
)
def test_a_large_value_is_in_memory_a_few_times(tmp_path: Path, value: bytes) -> None:
    path = recorded(
        tmp_path / "one.mcap", *[encode_batch([Record(0, 0, None, value)], compression="zstd")]
    )
    for words in (
        ["show", "--json"],
        ["show", "--records", "orders", "--json"],
        ["why"],
        ["scan"],
        ["textconv"],
    ):
        command = [sys.executable, "-m", "kproxy", *words, str(path)]
        done = subprocess.run(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=limited
        )
        assert done.returncode == 0, (words, done.stderr)
