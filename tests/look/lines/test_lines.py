"""Lines on a terminal and in a pipe: aligned, in local time, one for connections that end
together."""

from __future__ import annotations

import re
import time

import pytest

from kproxy.cli import main
from kproxy.exchange import notes
from kproxy.exchange.endings import SideEnd, connection_end
from kproxy.exchange.pairing import pair
from kproxy.look.lines.lines import Folding
from kproxy.wire.protocol import messages
from tests.bed import needs
from tests.exchange.making import MS, START_NS, opened, request, response

DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"


def beat(number: int, connection: int, client: str, error_code: int = 0):
    asked = request("Heartbeat", 4, messages.HeartbeatRequest(group_id="g"), number, connection)
    about = notes.client_id(connection, START_NS, client)
    answered = response(asked, messages.HeartbeatResponse(error_code=error_code))
    return [opened(connection, node_id=1), about, asked, answered]


def ended(connection: int, time_ms: float, how: str = "stopped", reason: str = ""):
    at_ns = START_NS + round(time_ms * MS)
    ends = [SideEnd("proxy", how, at_ns)]
    return connection_end(notes.closed(connection, at_ns, {}, how, reason, None, ends))


def folded(*given, **options) -> list[str]:
    folding = Folding(**options)
    lines = [line for each in given for line in folding.take(each)]
    return [*lines, *folding.flush()]


def test_connections_that_end_together_have_one_line() -> None:
    used = [next(pair(beat(n, n, "shop" if n < 4 else "billing"))) for n in range(1, 6)]
    lines = folded(*used, *(ended(n, n) for n in range(1, 6)))
    assert len(lines) == 6
    assert lines[-1].endswith("5 connections ended by kproxy (stopped): shop ×3, billing ×2")
    assert len(folded(*used, *(ended(n, n) for n in range(1, 6)), folds=False)) == 10


@pytest.mark.parametrize(
    "client", ["a", "shop", "consumer-of-many-words-1", "x" * 200, "日本語のクライアント"]
)
def test_a_pipe_gets_aligned_lines_whatever_the_client_ids(client: str) -> None:
    lines = folded(*(next(pair(beat(n, n, name))) for n, name in enumerate(("rdkafka", client), 1)))
    assert all(re.search(r" Heartbeat v4 ", line) for line in lines)
    widths = {_columns(line[: line.index("Heartbeat v4")]) for line in lines}
    assert len(widths) == 1


def _columns(text: str) -> int:
    from unicodedata import east_asian_width

    return sum(2 if east_asian_width(each) in "WF" else 1 for each in text)


@pytest.fixture
def in_kolkata(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def shown(capsys, *words: str) -> list[str]:
    assert main(["show", str(DEMO), *words]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.usefixtures("in_kolkata")
def test_local_time_is_shown_and_read(capsys) -> None:
    """5:30 ahead of UTC; the demo was recorded at 23:32."""
    (utc,) = shown(capsys, "number:6")
    (local,) = shown(capsys, "--local", "number:6")
    assert utc.startswith("23:32:13.762") and local == utc.replace("23:32:13", "05:02:13", 1)
    every = shown(capsys, "--all", "time:..+30s")
    for typed in (
        "time:05:02..05:03",
        "time:05:02..",
        "time:..05:02",
        "time:04:00..06:00",
        "time:2026-11-22T05:02:00..2026-11-22T05:03:00",
        "time:2026-11-21T23:32:00Z..",
        "time:2026-11-22T05:02:00+05:30..",
        "time:..+30s",
    ):
        assert len(shown(capsys, "--all", "--local", typed)) == len(every), typed
    for typed in ("time:23:32..23:33", "time:..05:01", "time:2026-11-22T05:03:00Z.."):
        assert shown(capsys, "--all", "--local", typed) == [], typed
    (first, *_) = shown(capsys, "--local", "--frame", "6")
    assert first.startswith("05:02:13.762")
    assert shown(capsys, "--local", "--follow", "3")[0].startswith("05:02:13")


@pytest.mark.parametrize(
    "ends",
    [
        [ended(1, 0), ended(2, 1001)],
        [ended(1, 0), ended(2, 0, how="idle")],
        [ended(1, 0), ended(2, 0, reason="why")],
        [ended(1, 0), next(pair(beat(1, 3, "shop"))), ended(2, 0)],
    ],
)
def test_connections_that_do_not_end_together_have_their_own(ends) -> None:
    lines = folded(*ends)
    assert len(lines) == len(ends)
    assert not [line for line in lines if "connections" in line]
