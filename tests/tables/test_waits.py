"""How long Fetch requests may have waited, of rows that do not tell: as `kproxy show` says it."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from kproxy import recording
from kproxy.exchange.entries import FRAGMENT, MORE, Frame
from kproxy.wire import protocol
from kproxy.wire.protocol import messages
from tests.exchange import making
from tests.exchange.bodies import fetch_request, fetch_response
from tests.recording.making import write
from tests.tables.test_reading import rows

WAITED_MS, TOOK_MS = 500, 507


def fetch(max_wait_ms: int, tagged: bool = False) -> Frame:
    """A Fetch that may wait, of a client that tags its headers or not."""
    body = fetch_request({0: 0}, max_wait_ms=max_wait_ms)
    asked = making.request("Fetch", 12, body)
    if not tagged:
        return asked
    header = messages.RequestHeader(
        api_key=1, api_version=12, correlation_id=asked.correlation_id, client_id="app"
    )
    header.unknown_tags = ((99, b"trace" * 40), (100, b""))
    data = protocol.encode_request(protocol.Request(header, body))
    return attrs.evolve(asked, pieces=[data], frame_bytes=len(data))


def in_fragments(asked: Frame) -> list[Frame]:
    """A request that was written in two pieces."""
    first, last = asked.data[:9], asked.data[9:]
    return [
        attrs.evolve(asked, pieces=[first], flags=FRAGMENT | MORE, sent_ns=0),
        attrs.evolve(asked, pieces=[last], flags=FRAGMENT),
    ]


@pytest.mark.parametrize(
    ("asked", "may_wait_ms"),
    [
        ([fetch(WAITED_MS)], WAITED_MS),
        ([fetch(WAITED_MS, tagged=True)], WAITED_MS),
        (in_fragments(fetch(WAITED_MS)), WAITED_MS),
        ([fetch(0)], 0),
        ([fetch(-1)], 0),
    ],
    ids=["whole", "tagged", "fragments", "does not", "below 0"],
)
def test_fetches_wait_as_long_as_show_says(
    asked: list[Frame], may_wait_ms: int, tmp_path: Path
) -> None:
    answered = making.response(asked[-1], fetch_response({}))
    received_ns = asked[-1].sent_ns + TOOK_MS * making.MS
    late = attrs.evolve(answered, received_ns=received_ns, sent_ns=received_ns + 30_000)
    path = write(tmp_path / "a.mcap", [[making.opened(), *asked, late, making.closed()]])
    (shown,) = recording.read(path)
    expected = {"waiting_ms": shown.waiting_ms, "service_ms": shown.service_ms}
    assert expected == {"waiting_ms": may_wait_ms, "service_ms": TOOK_MS - may_wait_ms}
    assert rows([path], "exchanges", expected) == [expected]
    if len(asked) == 1:
        assert shown.row.max_wait_ms == may_wait_ms, "the row tells it, without a look at the body"
