"""What a reader gives of a filter is what matches it, and headers open no body."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
from hypothesis import example, given

from kproxy.exchange.endings import connection
from kproxy.exchange.entries import FAULTED, INJECTED, NO_RESPONSE, Note
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import Filter, parse
from kproxy.recording import read
from kproxy.wire.protocol import messages
from tests.bed import needs
from tests.exchange.filters import DEMO as MOCK
from tests.exchange.filters import FILTERS
from tests.exchange.making import MS, START_NS, closed, opened, request, response, token, unanswered
from tests.recording.making import write

DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"
BEAT = messages.HeartbeatRequest(group_id="checkout")
BACK = messages.HeartbeatResponse(error_code=27)


def odd(folder: Path) -> Path:
    """A recording of exchanges each of which is odd in its way, on four connections."""
    asked = [
        request("Heartbeat", 4, BEAT, number=number, connection=number % 3 + 1)
        for number in range(1, 12)
    ]
    entries = [
        *(opened(1, node_id=2), opened(2)),
        *(asked[0], response(asked[0], BACK)),
        *(asked[1], response(asked[1], BACK, flags=INJECTED | FAULTED, fault_ids=(7,))),
        *(asked[2], response(asked[2], BACK, fault_ids=(8,))),
        attrs.evolve(asked[3], flags=NO_RESPONSE),
        *(asked[4], asked[7], unanswered(asked[4]), unanswered(asked[7])),
        *(asked[5], response(asked[5], BACK, sent_ns=0)),
        token(20, b"secret"),
        attrs.evolve(asked[6], api_version=99),
        *(attrs.evolve(asked[8], sent_ns=0), response(asked[8], BACK, request_sent_ns=0)),
        closed(2),
        *(asked[9], response(asked[9], BACK)),
    ]
    return write(folder / "odd.mcap", [entries[:9], entries[9:14], entries[14:]])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, list[Exchange]]:
    paths = odd(tmp_path_factory.mktemp("filtered")), DEMO, MOCK
    return {path: list(read(path)) for path in paths}


@given(wanted=FILTERS)
@example(wanted=parse("broker_ms:..5"))
@example(wanted=parse("not client_id:app"))
@example(wanted=parse("is:unanswered or is:faulted"))
@example(wanted=parse("not api_key:12"))
@example(wanted=parse("is:error topic:orders"))
@example(wanted=parse("is:error"))
@example(wanted=parse("is:routine"))
@example(wanted=parse("error:REBALANCE_IN_PROGRESS"))
def test_a_reader_gives_what_matches(files: dict[Path, list[Exchange]], wanted: Filter) -> None:
    for path, every in files.items():
        given = [(each.number, each.text) for each in read(path, wanted)]
        expected = [(each.number, each.text) for each in every if wanted.matches(each)]
        assert given == expected


def test_a_connection_ends_before_what_is_complete_after_it(tmp_path: Path) -> None:
    """And behind all of its own exchanges, which still know who it was."""
    asked = [request("Heartbeat", 4, BEAT, number, 1 + number % 2) for number in range(1, 7)]
    late = response(asked[0], BACK, received_ns=START_NS + 40 * MS, sent_ns=START_NS + 41 * MS)
    ended = attrs.evolve(closed(1), time_ns=START_NS + 20 * MS)
    other = response(asked[3], BACK, received_ns=START_NS + 30 * MS, sent_ns=START_NS + 31 * MS)
    entries = [opened(1), opened(2), asked[0], asked[1], asked[3], response(asked[1], BACK)]
    path = write(tmp_path / "ends.mcap", [[*entries, other, ended, late]])
    given: list[object] = []

    def told(note: Note) -> None:
        if note.body.get("event") == "closed":
            given.append(f"end of {connection(note.body)}")

    for each in read(path, told=told):
        given.append(each.number)
        assert each.client_address == f"127.0.0.1:{5000 + each.connection}"
    assert given == [2, 4, "end of 1", 1]
