"""What several processes make of a recording is what one makes."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import attrs
import pytest

from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import parse
from kproxy.protocol import messages
from kproxy.recording import RecordingError
from kproxy.view import spread as module
from kproxy.view.show import show_json, show_lines
from kproxy.view.spread import Work, spread
from kproxy.view.stream import Stream
from tests.exchange.making import MS, START_NS, closed, opened, request, response, unanswered
from tests.recording.making import event, write

BEAT = messages.HeartbeatRequest(group_id="checkout")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty batches on connections that come and go, one of them with a request unanswered."""
    batches: list[list] = []
    for number in range(1, 61):
        connection = (number - 1) // 6 + 1
        frame = request("Heartbeat", 4, BEAT, number, connection)
        done = (
            unanswered(frame)
            if number % 7 == 0
            else response(frame, messages.HeartbeatResponse(error_code=27 * (number % 5 == 0)))
        )
        entries: list = [opened(connection, node_id=1)] if number % 6 == 1 else []
        entries += [frame, done]
        if number % 6 == 0:
            entries.append(attrs.evolve(closed(connection), time_ns=START_NS + (number + 2) * MS))
        batches.append(entries)
    batches[30].append(event("lost", START_NS + 30 * MS, frames=3, bytes=99, reason="disk full"))
    return write(tmp_path_factory.mktemp("spread") / "many.mcap", batches)


@pytest.mark.parametrize("processes", [2, 3, 7])
@pytest.mark.parametrize(
    "wanted", [None, "is:routine", "connection:3", "is:unanswered", "api:Fetch"]
)
def test_it_is_the_same_with_processes(
    recorded: Path, processes: int, wanted: str | None, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    def shown() -> tuple[str, ...]:
        texts = []
        for folds, as_json in ((True, False), (False, False), (False, True)):
            out = io.StringIO()
            found = parse(wanted) if wanted else None
            if as_json:
                show_json([recorded], out, found)
            else:
                show_lines([recorded], out, wanted=found, folds=folds)
            texts.append(out.getvalue())
        # Clients of other tests write there, too.
        lines = capfd.readouterr().err.splitlines(keepends=True)
        return (*texts, "".join(line for line in lines if line.startswith("kproxy")))

    alone = shown()
    monkeypatch.setattr(module, "processes_for", lambda stream: processes)
    assert shown() == alone
    assert "disk full" in alone[3]
    if wanted == "api:Fetch":
        assert not alone[0] and alone[3].count("nothing of 60 exchanges matches") == 2
    else:
        assert alone[0] and "matches" not in alone[3]


def test_damage_is_found_where_it_is(recorded: Path, tmp_path: Path) -> None:
    data = bytearray(recorded.read_bytes())
    data[len(data) // 2] ^= 1
    path = tmp_path / "damaged.mcap"
    path.write_bytes(data)
    found: list[int] = []

    def take(processes: int) -> int:
        found.clear()
        with pytest.raises(RecordingError, match="is damaged"):
            for number in spread(Stream([path]), NUMBERS, processes):
                found.append(number)
        return len(found)

    assert take(1) == take(3) > 0


NUMBERS = Work[int](lambda exchanges: [each.number for each in exchanges], lambda end: ())


def test_who_has_seen_enough_leaves_no_process_behind(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    fork = os.fork

    def counted() -> int:
        pid = fork()
        started.append(pid)
        return pid

    monkeypatch.setattr(os, "fork", counted)
    found = spread(Stream([recorded]), NUMBERS, 3)
    assert next(found) == 1
    found.close()
    assert len(started) == 3
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_process_that_is_killed_is_an_error_not_an_end(recorded: Path) -> None:
    parent = os.getpid()

    def die(exchanges: Sequence[Exchange]) -> Iterable[int]:
        if any(each.number == 20 for each in exchanges) and os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return NUMBERS.of_exchanges(exchanges)

    with pytest.raises(RecordingError, match="was not read to its end"):
        list(spread(Stream([recorded]), attrs.evolve(NUMBERS, of_exchanges=die), 3))


def test_the_command_uses_them_for_what_is_large(recorded: Path, tmp_path, monkeypatch) -> None:
    stream = Stream([recorded])
    assert module.processes_for(stream) == 1
    monkeypatch.setattr(module, "LARGE_BYTES", 1)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.4, 9, 9))
    if hasattr(os, "sched_getaffinity"):
        cores = min(16, len(os.sched_getaffinity(0)))
        assert module.processes_for(stream) == cores
        assert module.processes_for(Stream([recorded], parse("api:Fetch"))) == cores
    assert module.processes_for(Stream([recorded], parse("number:7 api:Fetch"))) == 1
    load = tmp_path / "loadavg"
    monkeypatch.setattr(module, "LOAD", load)
    load.write_text("9.00 9.00 9.00 999/1000 4711")
    monkeypatch.setattr(os, "getloadavg", lambda: (999.0, 9, 9))
    assert module.processes_for(stream) == 1
    load.write_text("9.00 9.00 9.00 1/1000 4711")  # what was at work has ended since
    if hasattr(os, "sched_getaffinity"):
        assert module.processes_for(stream) == cores
    code = (
        "import os, sys; from kproxy.view import spread; spread.LARGE_BYTES = 1;"
        "os.getloadavg = lambda: (0, 0, 0);"
        "from kproxy.cli import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", code, "show", "--all", str(recorded)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.count("\n") == 70
