"""The filter language: what it means, what a mistake is told, what it needs."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kproxy import recording
from kproxy.exchange.arriving import ArrivingRequest
from kproxy.exchange.filter import Filter, FilterError, Need, parse
from kproxy.exchange.filter.keys import KEYS
from kproxy.exchange.filter.terms import Combination, Not
from kproxy.wire.protocol import messages
from tests.exchange import filters
from tests.exchange.making import START_NS, request

EXCHANGES = filters.exchanges()


def numbers(text: str) -> list[int]:
    """The exchanges of the demo's recording that a filter means."""
    found = parse(text)
    return [each.number for each in EXCHANGES[8:] if found.matches(each)]


# ── what it means ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("number:8", [8]),
        ("api:produce", [8, 10]),
        ("api:Produce topic:orders", [8, 10]),
        ("api:Produce topic:other", []),
        ("api:Produce or api:JoinGroup", [8, 10, 23]),
        ("api:Produce,JoinGroup", [8, 10, 23]),
        ("api:*Group", [23, 25, 42]),
        ("group:bill* not api:FindCoordinator", [23, 25, 26, 27, 41, 42]),
        ("(api:Produce or api:Fetch) partition:3", [8, 37, 40]),
        ("api:Produce partition:..1", [10]),
        ("value:*paid* api:Produce", [8, 10]),
        ("value:*paid* number:30..", [37, 38]),
        ("api_key:0", [8, 10]),
        ("number:3..4 AND api:ApiVersions", [4]),
        ("number:3..4 and NOT api:ApiVersions", [3]),
        ("number:..2", [1, 2]),
        ("broker_ms:500.. api:Fetch", [29, 40, 39]),
        ("broker_ms:0.5s.. api:Fetch", [29, 40, 39]),
        ("is:opaque", [1, 4, 5, 11, 15, 18, 30, 31]),
        ("key:* not topic:*", []),
    ],
)
def test_what_a_filter_means(text, expected):
    assert numbers(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("error:27", [1, 3]),
        ("error:rebalance*", [1, 3]),
        ("is:error", [3]),
        ("is:routine", [1]),
        ("error:REBALANCE_IN_PROGRESS", [1, 3]),
        ("is:undelivered", []),
        ("is:injected", [3]),
        ("fault:7", [3]),
        ("is:faulted", [3]),
        ("is:redacted is:truncated", [4]),
        ("is:one_way", [5]),
        ("is:unanswered", [7, 8]),
        ("api:SaslToken", [7]),
        ("node_id:2", [1, 2, 3, 4, 5, 6, 7, 8]),
        ("not node_id:*", []),
        ("client_address:127.0.0.1*", [1, 2, 3, 4, 5, 6, 7, 8]),
        ("client_id:app number:7..", [7, 8]),
        ("correlation_id:101", [1]),
        ("time:22:13 number:1", [1]),
        ("time:22:13:20.003..22:13:20.004", [3, 4]),
        ("time:22:14..", []),
        ("time:2023-11-14T22:13:20.008Z..", [8]),
        ("time:2023-11-15T00:13:20.008+02:00..", [8]),
        ("time:..2023-11-13", []),
        ("time:23:00..22:13 number:2", [2]),
    ],
)
def test_what_is_odd_can_be_found(text, expected):
    found = parse(text)
    assert sorted(each.number for each in EXCHANGES[:8] if found.matches(each)) == expected


def test_times_count_from_the_beginning():
    found = parse("time:+3ms..+4ms").starting(START_NS)
    assert sorted(e.number for e in EXCHANGES[:8] if found.matches(e)) == [3, 4]
    with pytest.raises(ValueError, match="beginning"):
        parse("time:..+3ms").matches(EXCHANGES[0])


def test_a_value_can_be_quoted():
    quoted = parse('client_id:"my app (1), \\"a\\" \\*"')
    header = messages.HeartbeatRequest()
    frame = request("Heartbeat", 4, header).data
    for client_id, meant in (('my app (1), "a" *', True), ('my app (1), "a" b', False)):
        name = client_id.encode()
        data = frame[:12] + len(name).to_bytes(2) + name
        assert quoted.matches(ArrivingRequest.of(data, 1, 1, None, "", 0)) is meant


def test_a_recording_gives_what_a_filter_means():
    read = recording.read(filters.DEMO, "api:Produce topic:orders")
    assert [each.number for each in read] == [8, 10]
    second = recording.read(filters.DEMO, parse("api:Fetch time:+3s.."))
    assert [each.number for each in second] == [37, 38, 29, 40, 39]
    with pytest.raises(FilterError):
        recording.read(filters.DEMO, "orders")


# ── mistakes ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "column", "what"),
    [
        ("api:Fech", 5, "did you mean Fetch"),
        ("api:Fetch topics:a", 11, "did you mean topic"),
        ("latency:5..", 1, "did you mean broker_ms"),
        ("opaque:true", 1, "did you mean is:opaque"),
        ("error:NOT_LEADER", 7, "there is no error"),
        ("error:0", 7, "not is:error"),
        ("is:eror", 4, "did you mean error"),
        ("broker_ms:50", 11, "write a range"),
        ("broker_ms:fast..", 11, "no range"),
        ("request_bytes:1KiB..5", 15, "empty"),
        ("number:x", 8, "3..7"),
        ("api:Fetch value.a[x]:1", 18, "no path"),
        ("value.:1", 7, "no path"),
        ("value.amount:5..1", 14, "empty"),
        ("valu.id:1", 1, "no key"),
        ("value.amount>5", 1, "write value.amount:5.."),
        ("broker_ms>50", 1, "write broker_ms:50.."),
        ("api!=Fetch", 1, "write not api:Fetch"),
        ("Fetch", 1, "write api:Fetch"),
        ("opaque", 1, "write is:opaque"),
        ("topic", 1, "topic:orders-*"),
        ("orders", 1, "KEY:VALUE"),
        ("topic:", 1, "value is missing"),
        ("topic:a,", 1, "value is missing"),
        ('topic:"a', 7, "never closed"),
        ('topic:"a"b', 10, "space is missing"),
        ("topic:a\\", 8, "nothing follows"),
        ("(api:Fetch", 1, "never closed"),
        ("api:Fetch)", 10, "no ("),
        ("()", 2, "term is missing"),
        ("api:Fetch or", 11, "nothing follows"),
        ("or api:Fetch", 1, "term is missing"),
        ("not", 1, "nothing follows"),
        ("(" * 1000, 51, "more than 50"),
        ("not " * 1000, 201, "more than 50"),
        ("time:25:00", 6, "no time"),
        ("time:12:00..2023-01-01", 6, "same way"),
        ("time:+5s", 6, "write a range"),
        ("time:2024-01-01..2023-01-01", 6, "empty"),
    ],
)
def test_a_mistake_is_pointed_at(text, column, what):
    with pytest.raises(FilterError) as found:
        parse(text)
    assert what in str(found.value)
    assert (found.value.column, str(found.value)) == (
        column,
        f"column {column}: {found.value.what}",
    )
    assert "\n" not in str(found.value)


# ── what it needs ────────────────────────────────────────────────────────────────────────────


def test_what_a_place_cannot_give_is_refused_there():
    allowed = {Need.CONNECTION, Need.HEADER}
    parse("api:Fetch client_id:a").refuse_beyond(allowed, "run --only")
    with pytest.raises(FilterError, match="run --only cannot look at topic") as found:
        parse("api:Fetch topic:a").refuse_beyond(allowed, "run --only")
    assert found.value.column == 11


def test_header_terms_open_no_body(monkeypatch):
    text = "api:Fetch number:5 client_id:a node_id:1 broker_ms:1.. time:12:00.. is:redacted"
    fresh = filters.exchanges()
    monkeypatch.setattr("kproxy.wire.protocol.decode_request", pytest.fail)
    monkeypatch.setattr("kproxy.wire.protocol.decode_response", pytest.fail)
    for exchange in fresh:
        parse(text).matches(exchange)
        parse("topic:orders value:a api:JoinGroup request_bytes:1GiB..").matches(exchange)


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_examples_are_filters(key):
    assert str(parse(key.example)).startswith(key.name)


# ── a request on a live proxy ────────────────────────────────────────────────────────────────


def test_a_request_that_arrives_can_be_asked_the_same():
    topic = messages.ProduceRequest.TopicProduceData
    body = messages.ProduceRequest(transactional_id="tx", topic_data=[topic(name="orders")])
    frame = request("Produce", 9, body).data
    arriving = ArrivingRequest.of(frame, 17, 3, 2, "10.0.0.9:5001", START_NS)
    text = "api:Produce api_version:9 topic:orders transactional_id:tx client_id:app node_id:2"
    text += f" connection:3 correlation_id:101 number:17 request_bytes:{len(frame)} time:22:13"
    for part in text.split():
        assert parse(part).matches(arriving), part
        assert not parse(f"not {part}").matches(arriving)
    assert not parse("topic:other or group:* or key:*").matches(arriving)


def test_a_request_that_arrives_may_be_malformed():
    arriving = ArrivingRequest.of(b"\0\0\0\4\0\0\0\x63", 1, 1, None, "", START_NS)
    assert not parse("topic:* or client_id:* or value:*").matches(arriving)
    assert parse("api:Produce api_version:99").matches(arriving)


# ── laws ─────────────────────────────────────────────────────────────────────────────────────


@given(filters.FILTERS)
def test_a_filter_reads_back_as_it_is_written(found):
    assert parse(str(found)) == found


@given(st.text(st.sampled_from(list("()\"'\\:,*. \tornatdispe5+-T\u2003é\ud800"))) | st.text())
@example("\\")
@example("topic:\\")
def test_any_text_is_a_filter_or_a_mistake_in_it(text):
    try:
        found = parse(text)
    except FilterError as error:
        assert 1 <= error.column <= max(1, len(text))
    else:
        assert parse(str(found)) == found


@given(filters.NODES, filters.NODES)
def test_not_and_or_obey_their_laws(one, other):
    def meant(node):
        return [Filter(node).matches(exchange) for exchange in EXCHANGES]

    assert meant(Not(Not(one))) == meant(one)
    both, either = Combination((one, other), one=False), Combination((one, other), one=True)
    assert meant(Not(both)) == meant(Combination((Not(one), Not(other)), one=True))
    assert meant(Not(either)) == meant(Combination((Not(one), Not(other)), one=False))
