"""What went wrong when it was recorded goes wrong again, at the same request of its kind."""

from __future__ import annotations

import copy
import json
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kproxy.exchange import note_values
from kproxy.exchange.entries import CONNECTIONS, Note
from kproxy.exchange.pairing import pair
from kproxy.proxy.faults import Rules
from kproxy.replay.recorded_faults import RecordedFaults
from kproxy.replay.serving import modelled
from kproxy.replay.settings import Mode
from kproxy.wire.protocol import codes, messages, records
from kproxy.wire.protocol.errors import CODES
from tests.exchange import making
from tests.replay.making import ORDERS_ID, Playing, Recorded, batch, fetch, produce
from tests.replay.running import App, Live, Replayed, faults_of, loaded_of
from tests.versions import ALL

NOT_LEADER = codes.NOT_LEADER_OR_FOLLOWER
MOVED = codes.NOT_COORDINATOR


def rules(recorded: Recorded) -> list[dict[str, Any]]:
    """The rules that a recording gives, names left out."""
    faults = RecordedFaults(modelled(Mode.STATE))
    for exchange in recorded.exchanges:
        faults.add(exchange)
    found = list(faults.rules({ORDERS_ID: "orders"}, ["orders"]))
    for words in found:
        del words["name"]
    Rules(found)  # each of them can be a rule
    return found


def refused(recorded: Recorded, code: int) -> Recorded:
    """A Produce that is refused."""
    kind = messages.ProduceResponse
    one = kind.PartitionProduceResponse(index=0, error_code=code, base_offset=-1)
    topic = kind.TopicProduceResponse(name="orders", partition_responses=[one])
    return recorded.add(9, produce(batch("a")), kind(responses=[topic]))


def heartbeat(recorded: Recorded, code: int, **more: Any) -> Recorded:
    request = messages.HeartbeatRequest(group_id="g", member_id="m", generation_id=1)
    return recorded.add(4, request, messages.HeartbeatResponse(error_code=code, **more))


def test_nothing_went_wrong() -> None:
    assert rules(Recorded().metadata().produced(batch("a")).fetched(batch("a"))) == []


def test_an_error_comes_at_the_same_produce_of_its_partition() -> None:
    recorded = Recorded().metadata().produced(batch("a")).produced(batch("x"), partition=1)
    refused(refused(recorded, NOT_LEADER), NOT_LEADER).produced(batch("b"), base_offset=1)
    assert rules(recorded) == [
        {
            "api": "Produce",
            "topic": "orders",
            "partition": 0,
            "skip": 1,
            "times": 2,
            "error": "NOT_LEADER_OR_FOLLOWER",
        }
    ]


def test_an_error_of_a_group_names_it() -> None:
    recorded = heartbeat(heartbeat(Recorded(), 0), MOVED)
    assert rules(recorded) == [
        {"api": "Heartbeat", "group": "g", "skip": 1, "times": 1, "error": "NOT_COORDINATOR"}
    ]


@pytest.mark.parametrize("name", ["REBALANCE_IN_PROGRESS", "UNKNOWN_MEMBER_ID"])
def test_what_the_state_does_by_itself_is_left_out(name: str) -> None:
    assert rules(heartbeat(Recorded(), CODES[name])) == []


def test_fetches_that_found_nothing_do_not_count() -> None:
    recorded = Recorded().metadata()
    for _ in range(5):
        recorded.fetched(b"")
    recorded.fetched(batch("a"))
    kind = messages.FetchResponse
    one = kind.PartitionData(
        partition_index=0, error_code=NOT_LEADER, high_watermark=-1, aborted_transactions=None
    )
    one.records = b""
    topic = kind.FetchableTopicResponse(topic="orders", partitions=[one])
    recorded.add(11, fetch({0: 1}), kind(responses=[topic]))
    (rule,) = rules(recorded)
    assert (rule["skip"], rule["times"], rule["partition"]) == (1, 1, 0)


def test_throttling_comes_again() -> None:
    recorded = heartbeat(heartbeat(Recorded(), 0), 0, throttle_time_ms=250)
    assert rules(recorded) == [
        {"api": "Heartbeat", "group": "g", "skip": 1, "times": 1, "throttle": "250ms"}
    ]


@pytest.mark.parametrize(("side", "count"), [("broker", 1), ("client", 0), ("proxy", 0)])
def test_a_broker_that_hangs_up_does_so_again(side: str, count: int) -> None:
    asked = making.request("Produce", 9, produce(batch("a")))
    ended = {"event": "closed", "connection": 1, "ends": [{"side": side, "how": "eof"}]}
    note = Note(CONNECTIONS, making.START_NS, ended)
    faults = RecordedFaults(modelled(Mode.STATE))
    for exchange in pair([asked, making.unanswered(asked)]):
        faults.add(exchange)
    faults.note(note)
    found = list(faults.rules({}, ["orders"]))
    assert len(found) == count
    for words in found:
        assert words["disconnect"] is True and words["topic"] == "orders"
        assert words["times"] == 1 and "skip" not in words


def test_they_are_rules_of_the_replay() -> None:
    recorded = Recorded().metadata().produced(batch("a"))
    refused(recorded, NOT_LEADER).produced(batch("b"), base_offset=1)
    playing = Playing(recorded.loaded, rules=Rules(rules(recorded)))
    client = playing.connect()
    assert [client.produce(batch(each)).error_code for each in "abb"] == [0, NOT_LEADER, 0]


def test_a_topic_that_is_not_there_needs_no_rule() -> None:
    kind = messages.MetadataResponse
    unknown = codes.UNKNOWN_TOPIC_OR_PARTITION
    topics = [
        kind.MetadataResponseTopic(error_code=unknown, name=name) for name in ("orders", "other")
    ]
    asked = messages.MetadataRequest.MetadataRequestTopic
    request = messages.MetadataRequest(topics=[asked(name="orders"), asked(name="other")])
    recorded = Recorded().add(9, request, kind(topics=topics))
    assert [words["topic"] for words in rules(recorded)] == ["orders"]


RULES: list[dict[str, Any]] = [
    {"phase": "after", "drop": True},
    {"phase": "before", "drop": True},
    {"phase": "before", "disconnect": True},
    {"phase": "after", "disconnect": True},
    {"phase": "after", "reset": True},
    {"phase": "after", "blackhole": True},
    {"phase": "before", "slow_close": "5s"},
    {"phase": "after", "truncate": 10},
    {"phase": "before", "truncate": 30},
    {"duplicate": True},
    {"corrupt": 1},
    {"phase": "before", "error": "NOT_LEADER_OR_FOLLOWER"},
    {"phase": "after", "error": "MESSAGE_TOO_LARGE"},
    {"throttle": "2s"},
    {"latency": "300ms"},
    {"bandwidth": "1KiB"},
]


def produces_and_consumes(app: App, again: bool) -> list[Any]:
    """What an app sees that produces three records, maybe again what failed, and reads them."""
    seen: list[Any] = []
    for value in "abc":
        for _ in range(2 if again else 1):
            answer = app.ask(9, produce(batch(value)))
            if isinstance(answer, str):
                seen.append(answer)
                continue
            (found,) = answer.responses[0].partition_responses
            seen.append((found.error_code, found.base_offset, answer.throttle_time_ms))
            if not found.error_code:
                break
    found = app.ask(11, fetch({0: 0}, max_wait_ms=0)).responses[0].partitions[0]
    values = [each.value for part in records.batches(found.records) for each in part.records]
    return [*seen, values, found.high_watermark]


@pytest.mark.parametrize("words", RULES, ids=str)
@pytest.mark.parametrize("again", [True, False], ids=["again", "once"])
def test_what_a_rule_did_is_done_again(words: dict[str, Any], again: bool) -> None:
    live = Live(
        Recorded().metadata().loaded, Rules([{"api": "Produce", "skip": 1, "times": 1, **words}])
    )
    live.app.ask(12, messages.MetadataRequest(topics=None))
    seen = produces_and_consumes(live.app, again)
    recorded = live.recorded()
    loaded = loaded_of(recorded)
    rules, left_out = faults_of(recorded, loaded)
    assert left_out == [] and len(rules) == 1
    replayed = Replayed(loaded, rules=Rules(rules))
    replayed.app.ask(12, messages.MetadataRequest(topics=None))
    assert produces_and_consumes(replayed.app, again) == seen
    assert replayed.findings() == []
    assert [rule.fired for rule in replayed.rules.rules] == [1]


def test_requests_are_counted_as_they_came() -> None:
    rules = [
        {"api": "Produce", "times": 1, "duplicate": True},
        {"api": "Produce", "skip": 1, "times": 1, "drop": True},
        {"api": "Produce", "skip": 2, "times": 1, "error": "MESSAGE_TOO_LARGE"},
    ]
    live = Live(Recorded().metadata().loaded, Rules(rules))
    live.app.ask(12, messages.MetadataRequest(topics=None))
    produces_and_consumes(live.app, False)
    recorded = live.recorded()
    found, _ = faults_of(recorded, loaded_of(recorded))
    assert [words.get("skip", 0) for words in found] == [0, 1, 2]


def read_again(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a note as a reader of recordings gets it."""
    return note_values.body_of(json.dumps(body).encode())


def test_notes_of_other_programs_do_no_harm() -> None:
    live = Live(Recorded().metadata().loaded, Rules([{"api": "Produce", "drop": True, "times": 1}]))
    produces_and_consumes(live.app, False)
    recorded = live.recorded()
    for changed in ({"number": None}, {"number": 77}, {"fault_id": []}, {"action": 5}):
        notes = [
            attrs.evolve(one, body=read_again(one.body | changed))
            if isinstance(one, Note) and one.body["event"] == "fault"
            else one
            for one in recorded
        ]
        assert faults_of(notes, loaded_of(notes))[0] == []
    for rules in (None, [1], [{}], [{"fault_id": 1, "rule": {"drop": "maybe"}}]):
        notes = [
            attrs.evolve(one, body=read_again(one.body | {"rules": rules}))
            if isinstance(one, Note) and one.body["event"] == "fault_rules"
            else one
            for one in recorded
        ]
        assert faults_of(notes, loaded_of(notes)) == ([], ["drop in Produce"])


def test_what_cannot_be_done_again_is_told() -> None:
    kind = messages.SaslAuthenticateResponse
    refused = kind(error_code=codes.SASL_AUTHENTICATION_FAILED, error_message="", auth_bytes=b"")
    recorded = Recorded().add(2, messages.SaslAuthenticateRequest(auth_bytes=b""), refused)
    faults = RecordedFaults(modelled(Mode.STATE))
    for exchange in recorded.exchanges:
        faults.add(exchange)
    assert list(faults.rules({}, [])) == []
    assert faults.left_out == {"SASL_AUTHENTICATION_FAILED in SaslAuthenticate": 1}


STEPS = st.lists(st.tuples(st.integers(0, 1), st.sampled_from("ab")), min_size=1, max_size=6)
DRAWN = st.lists(
    st.fixed_dictionaries(
        {"skip": st.integers(0, 4), "times": st.integers(1, 2), "words": st.sampled_from(RULES)},
        optional={"partition": st.integers(0, 1)},
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=800 if ALL else 60, deadline=None)
@given(STEPS, DRAWN, st.booleans())
def test_what_rules_did_is_done_again(
    steps: list[tuple[int, str]], drawn: list[dict[str, Any]], again: bool
) -> None:
    given_rules = [
        {"name": f"r{number}", "api": "Produce", **each.pop("words"), **each}
        for number, each in enumerate(copy.deepcopy(drawn))
    ]
    live = Live(Recorded().metadata(partitions=2).loaded, Rules(given_rules))
    seen = produces(live.app, steps, again)
    recorded = live.recorded()
    loaded = loaded_of(recorded)
    rules, left_out = faults_of(recorded, loaded)
    assert left_out == []
    replayed = Replayed(loaded, rules=Rules(rules))
    assert produces(replayed.app, steps, again) == seen
    assert replayed.findings() == []


def produces(app: App, steps: list[tuple[int, str]], again: bool) -> list[Any]:
    """What an app sees that produces records, maybe again what failed, and reads them."""
    seen: list[Any] = []
    app.ask(12, messages.MetadataRequest(topics=None))
    for partition, value in steps:
        for _ in range(2 if again else 1):
            answer = app.ask(9, produce(batch(value), partition))
            if isinstance(answer, str):
                seen.append(answer)
                continue
            (found,) = answer.responses[0].partition_responses
            seen.append((found.error_code, found.base_offset))
            if not found.error_code:
                break
    for partition in range(2):
        asked = fetch({partition: 0}, max_wait_ms=0)
        (found,) = app.ask(11, asked).responses[0].partitions
        seen += [each.value for part in records.batches(found.records) for each in part.records]
    return seen
