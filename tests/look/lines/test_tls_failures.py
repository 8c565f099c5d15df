"""Failures of TLS, as those see them who look for the client that cannot connect."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from kproxy.cli import main
from kproxy.exchange import notes
from kproxy.exchange.endings import connection_end
from kproxy.exchange.entries import Note
from kproxy.exchange.pairing import pair
from kproxy.look.lines.lines import Folding
from kproxy.recording import Recording
from tests.exchange.making import MS, START_NS
from tests.look.lines.test_live import beat

REASON = "it does not speak TLS: set security.protocol=SSL (or SASL_SSL) in the client"
REFUSED = "no broker: kafka:9093: TLS failed: its certificate is refused: certificate has expired"
FLOOD = 100


def failed(number: int, host: str, reason: str = REASON, node_id: int | None = 2) -> list[Note]:
    """A client whose handshake fails."""
    at = START_NS + number * MS
    about = {"node_id": node_id, "client_address": f"{host}:{40_000 + number}"}
    return [
        notes.opened(number, at, about),
        notes.closed(number, at, about, "tls", reason, "client"),
    ]


def unreachable(number: int) -> list[Note]:
    """A client for which no broker agrees on TLS."""
    at = START_NS + number * MS
    about = {"node_id": 1, "client_address": f"10.0.0.1:{40_000 + number}"}
    opened, _ = failed(number, "10.0.0.1")
    return [opened, notes.closed(number, at, about, "down", REFUSED, "broker")]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A flood from one client, one failure of another, one of a broker, and two heartbeats."""
    path = tmp_path_factory.mktemp("failures") / "some.mcap"
    recording = Recording(path, start_ns=START_NS, schema_id="x", library_version="0")
    recording.write(failed(1, "10.0.0.8"))
    recording.write(beat(1, 16))
    for number in range(2, FLOOD):
        recording.write(failed(number, "10.0.0.7"))
    recording.write([*unreachable(FLOOD), *beat(2, 16)])
    recording.close()
    return path


def shown(capsys: pytest.CaptureFixture[str], *typed: str | Path) -> list[str]:
    """The lines of a command, from the words on."""
    assert main([str(each) for each in typed]) == 0
    return [" ".join(line.split()[1:]) for line in capsys.readouterr().out.splitlines()]


FAILURES = [
    f"c1→n2 TLS handshake of 10.0.0.8:40001 failed: {REASON}",
    f"c2→n2 TLS handshake of 10.0.0.7:40002 failed: {REASON}",
    f"c{FLOOD}→n1 ended by the broker (down): {REFUSED}",
    f"c{FLOOD - 1}→n2 … and {FLOOD - 3} more such from 10.0.0.7: {REASON}",
]


def test_a_flood_is_two_lines(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, "show", recorded)
    assert [line for line in lines if "Heartbeat" not in line] == FAILURES
    assert len(lines) == len(FAILURES) + 2
    assert len(shown(capsys, "show", "--all", recorded)) == FLOOD + 2


def test_stats_count_them(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = f"TLS failed on {FLOOD} connections: {REASON} ×{FLOOD - 1}; {REFUSED} ×1"
    assert main(["stats", str(recorded)]) == 0
    assert said in capsys.readouterr().out.splitlines()
    assert main(["stats", str(recorded), "is:tls_failed"]) == 0
    assert capsys.readouterr().out.splitlines() == ["no exchanges", said]


def test_a_flood_is_told_as_it_goes_on() -> None:
    """As at a terminal: a count every ten seconds, and none is lost, from however many hosts."""
    folding = Folding(folded_for=timedelta(seconds=10))
    lines: list[str] = []
    for number in range(250):  # one each 100 ms
        lines += folding.end(connection_end(failed(100 * number, "10.0.0.7")[1]))
    assert [line.partition("… and ")[2].partition(" such")[0] for line in lines[1:]] == [
        "100 more",
        "100 more",
    ]
    assert "… and 49 more such" in folding.flush()[0] and folding.flush() == []
    lines = []
    for number in range(2_400):  # twice from each
        lines += folding.end(connection_end(failed(number, f"10.0.1.{number // 2}")[1]))
    again = folding.end(connection_end(failed(2_400, "10.0.1.0")[1]))
    assert again, "memory is bounded: after 1000 others a client is forgotten"
    lines += again
    assert len(lines) + len(folding.flush()) == 2_401, "a single one has a line of its own"


def test_the_end_of_a_connection_with_requests_is_not_folded() -> None:
    folding = Folding()
    ends = [connection_end(failed(number, "10.0.0.7")[1]) for number in (1, 2, 3)]
    shown = [folding.end(ends[1]), folding.end(ends[2])]
    (exchange,) = pair(beat(1, 16))
    shown += [folding.take(exchange), [*folding.end(ends[0]), *folding.pause()]]
    assert [len(lines) for lines in shown] == [1, 0, 1, 1]
