"""`run --only`: what is kept is what the filter means, both halves of it, however it arrived."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kproxy.exchange.entries import Entry, Frame, FrameRun, Note, Side, each_frame
from kproxy.exchange.filter import FilterError, parse
from kproxy.exchange.pairing import pair
from kproxy.exchange.selecting import ALWAYS, EntrySelection
from kproxy.proxy.actions import RecordEntries, Send
from kproxy.proxy.cluster import Cluster
from kproxy.proxy.machine import Accepted
from kproxy.proxy.settings import Settings
from kproxy.wire.protocol import messages
from tests.proxy.playing import BROKER, heartbeat, heartbeat_answer, request, response

_KINDS = {
    12: (4, messages.HeartbeatRequest(group_id="g"), messages.HeartbeatResponse()),
    13: (4, messages.LeaveGroupRequest(group_id="g"), messages.LeaveGroupResponse()),
    18: (0, messages.ApiVersionsRequest(), messages.ApiVersionsResponse()),
    0: (9, messages.ProduceRequest(acks=0), None),
    22: (4, messages.InitProducerIdRequest(), messages.InitProducerIdResponse()),
}
_LARGE = 2 << 20
FILTERS = [
    "api:Heartbeat",
    "not api:Heartbeat",
    "client_id:app-1",
    "connection:2 or api:Produce",
    "node_id:* api:LeaveGroup",
    "client_address:10.0.0.1* number:..7",
    "request_bytes:100.. or correlation_id:3..4",
    "api:Fetch",
    "client_id:*",
    "time:+0s..+2s",
]


def passing(
    calls: list[tuple[int, int, int, int]], cut_bytes: int, begun: bool = False
) -> list[Entry]:
    """What the proxy makes of requests (connection, api key, client, size) and their answers, each
    side sent in chunks of so many bytes; without a first request, if they have `begun`."""
    cluster = Cluster(Settings([BROKER]))
    entries: list[Entry] = []
    now = 1_700_000_000_000_000_000

    def take(actions) -> None:
        for action in actions:
            if isinstance(action, Send | RecordEntries):
                entries.extend(action.entries)

    asked: dict[int, bytes] = {}
    answered: dict[int, bytes] = {}
    for position, (number, api_key, client, size) in enumerate(calls):
        version, body, answer = _KINDS[api_key]
        client_id = f"app-{client}" + "x" * size
        asked[number] = asked.get(number, b"") + request(
            api_key, version, body, position, client_id
        )
        if answer is not None:
            reply = response(api_key, version, answer, position)
            answered[number] = answered.get(number, b"") + reply
    for number in asked:
        take(cluster.accepted(Accepted(number, None, f"10.0.0.{number}:5", ("127.0.0.1", 1)), now))
        take(cluster.dialled(number, BROKER, now))
        if begun:
            cluster.receive(number, Side.CLIENT, heartbeat(99), now)
            cluster.receive(number, Side.BROKER, heartbeat_answer(99), now)
    for side, streams in ((Side.CLIENT, asked), (Side.BROKER, answered)):
        for number, data in streams.items():
            for start in range(0, len(data), cut_bytes):
                now += 1_000_000
                take(cluster.receive(number, side, data[start : start + cut_bytes], now))
    take(cluster.stop(now))
    return entries


def seen(entries: list[Entry]) -> dict[int, tuple[bytes | None, bytes | None]]:
    """The exchanges in entries, by number."""
    return {x.number: (x.request_frame, x.response_frame) for x in pair(each_frame(entries))}


_CALLS = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.sampled_from(sorted(_KINDS)),
        st.integers(0, 2),
        st.sampled_from([0, 0, 0, 90, 9000]),
    ),
    min_size=1,
    max_size=12,
)


@example([(1, 0, 0, 0), (1, 0, 1, 0)], 7, "client_id:app-1")
@example([(3, 18, 0, 0), (3, 0, 1, 0)], 100, "client_id:app-1")
@given(_CALLS, st.sampled_from([7, 100, 1000, 1 << 20]), st.sampled_from(FILTERS))
def test_what_is_kept_is_what_the_filter_means_in_whole_exchanges(calls, cut_bytes, text) -> None:
    entries = passing(calls, cut_bytes)
    wanted = parse(text).starting(1_700_000_000_000_000_000)
    kept = EntrySelection(wanted).keep(entries)
    meant = {
        x.number for x in pair(each_frame(entries)) if x.api_key in ALWAYS or wanted.matches(x)
    }
    assert seen(kept) == {n: halves for n, halves in seen(entries).items() if n in meant}
    assert [e for e in kept if isinstance(e, Note)] == [e for e in entries if isinstance(e, Note)]


def test_a_request_without_a_client_id_is_of_the_client_of_its_connection() -> None:
    cluster = Cluster(Settings([BROKER]))
    entries: list[Entry] = []
    actions = cluster.accepted(Accepted(1, None, "10.0.0.1:5", ("127.0.0.1", 1)), 1)
    actions += cluster.dialled(1, BROKER, 1)
    heartbeat = request(12, 0, messages.HeartbeatRequest(group_id="g"), 1, "app-1")
    nameless = request(12, 0, messages.HeartbeatRequest(group_id="g"), 2, None)
    shutdown = request(7, 0, messages.ControlledShutdownRequest(broker_id=1), 3, None)
    for frame in (heartbeat, nameless, shutdown):
        actions += cluster.receive(1, Side.CLIENT, frame, 2)
    for action in actions:
        entries += action.entries if isinstance(action, Send | RecordEntries) else []
    kept = EntrySelection(parse("client_id:app-1")).keep(entries)
    assert [x.number for x in pair(each_frame(kept))] == [1, 2, 3]


def test_runs_are_split_and_large_requests_left_out_in_all_their_pieces() -> None:
    calls = [(1, 12, 0, 0), (1, 13, 0, 0), (1, 12, 0, 0), (1, 12, 0, 0), (1, 13, 0, 0)]
    entries = passing(calls, 1 << 20, begun=True)
    assert any(isinstance(entry, FrameRun) and len(entry) == 2 for entry in entries), (
        "it needs runs"
    )
    for text, lengths in (("api:Heartbeat", [1, 2, 1, 2]), ("number:5", [1, 1])):
        kept = EntrySelection(parse(text)).keep(entries)
        assert [len(entry) for entry in kept if isinstance(entry, FrameRun)] == lengths
    cluster = Cluster(Settings([BROKER]))
    cluster.accepted(Accepted(1, None, "10.0.0.1:5", ("127.0.0.1", 1)), 1)
    cluster.dialled(1, BROKER, 1)
    head = request(12, 0, messages.HeartbeatRequest(group_id="g"))
    large = (_LARGE - 4).to_bytes(4) + head[4:] + bytes(_LARGE - len(head))
    pieces: list[Entry] = []
    for start in range(0, len(large), 1 << 16):
        for action in cluster.receive(1, Side.CLIENT, large[start : start + (1 << 16)], 2):
            pieces += action.entries if isinstance(action, Send | RecordEntries) else []
    frames = [entry for entry in pieces if isinstance(entry, Frame)]
    assert len(frames) > 1, "it is recorded in pieces"
    for text, meant in (("api:Fetch", []), ("api:Heartbeat", frames)):
        kept = EntrySelection(parse(text)).keep(pieces)
        assert [entry for entry in kept if isinstance(entry, Frame)] == meant


@pytest.mark.parametrize("text", ["topic:orders", "is:error", "broker_ms:5..", "api:Fetch group:g"])
def test_what_a_header_does_not_say_is_refused_where_it_stands(text: str) -> None:
    from kproxy.commands.options import header_filter

    with pytest.raises(ValueError, match=r"column \d+: --only cannot look at") as error:
        header_filter(text)
    assert isinstance(error.value.__cause__, FilterError)
