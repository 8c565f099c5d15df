"""`kproxy why fault:NAME`: what a rule hit, what clients did, and when they were back."""

from __future__ import annotations

import io

import attrs
import pytest

from kproxy.cli import main
from kproxy.exchange import notes
from kproxy.exchange.entries import FAULTED, INJECTED, NO_RESPONSE, WITHHELD, Frame
from kproxy.look.report.light import light_data
from kproxy.look.why.stories import show_why
from kproxy.recording import Recording
from kproxy.wire.protocol import messages, records
from kproxy.wire.protocol.record_batch import Record
from tests.exchange.batches import TIMESTAMP
from tests.exchange.bodies import produce_request, produce_response
from tests.exchange.making import MS, START_NS, opened
from tests.look.why.test_key import metadata
from tests.look.why.traffic import Traffic, beat

M = messages


def produce(sequence: int, offset: int = 5, error: int = 0, acks: int = -1, epoch: int = 0):
    data = records.encode_batch(
        [Record(0, 0, b"k", b"v")], producer_id=4, producer_epoch=epoch, base_sequence=sequence
    )
    asked = produce_request({0: data})
    asked.acks = acks
    return "Produce", 8, asked, produce_response({0: offset}, error)


FAULT_IDS = {"eat": 1, "slow": 2, "slower": 3, "wrong": 4}


def fires(
    traffic: Traffic, rule: str = "eat", action: str = "drop", phase: str = "after", about=(),
    **changes,
) -> None:  # fmt: skip
    """The latest exchange is hit by a rule."""
    at = max(n for n, each in enumerate(traffic.entries) if isinstance(each, Frame))
    last, fault_id = traffic.entries[at], FAULT_IDS.get(rule, 1)
    fault_ids = sorted({*last.fault_ids, fault_id})
    traffic.entries[at] = attrs.evolve(last, fault_ids=fault_ids, **changes)
    words = {"name": rule, "api": "Produce", action: True}
    rules = {"fault_id": fault_id, "name": rule, "rule": words}
    traffic.entries.append(notes.fault_rules(START_NS, 1, [rules]))
    fired = {"action": action, "phase": phase, **dict(about)}
    note = notes.fault(last.received_ns, rule, fault_id, last.number, last.connection, **fired)
    traffic.entries.append(note)


def dropped(traffic: Traffic) -> None:
    fires(traffic, flags=WITHHELD, sent_ns=0, withheld=True)


def test_a_client_that_was_told_to_wait(tmp_path):
    traffic = Traffic()
    api, version, asked, answered = produce(0)
    answered.throttle_time_ms = 700
    traffic.add(0, api, version, asked, answered, client="shop")
    fires(traffic, action="throttle")
    traffic.add(800, *produce(1), client="shop")
    told = traffic.story(tmp_path, "fault", "eat")
    assert told[2].endswith(
        "fault eat, the client was told to wait 700 ms; it succeeded; the next Produce that"
        " succeeded was Produce #2, 800 ms later."
    )
    assert told[3:] == ["The request itself succeeded in 1 of 1 hit."]


def test_a_request_of_the_same_api_is_no_retry(tmp_path):
    traffic = Traffic()
    traffic.add(0, *produce(0), client="shop")
    dropped(traffic)
    traffic.add(100, *produce(1, error=10), client="shop")
    traffic.add(200, *beat("m", 1), client="shop")
    traffic.add(31_000, *produce(0), client="shop")
    told = traffic.story(tmp_path, "fault", "eat")
    assert told[2].endswith(
        "dropped by fault eat; it sent the same again 31.0 s later (Produce #4), which succeeded;"
        " no Produce of the client succeeded within 30.0 s of it."
    )
    assert told[3:] == [
        "The same was asked again after 1 of 1 hit, with success after 1.",
        "No request of the same API succeeded within 30.0 s after 1 hit.",
    ]


def test_what_has_no_response_is_no_success(tmp_path):
    traffic = Traffic()
    for sequence in range(3):
        traffic.add(0, *produce(sequence, acks=0)[:3], None, client="shop")
        traffic.entries[-1].flags |= NO_RESPONSE
        if sequence == 1:
            fires(traffic, phase="before")
    told = traffic.story(tmp_path, "fault", "eat")
    assert "Produce #2 of shop" in told[2]
    assert told[2].endswith("; whether a later Produce worked is not in the recording (acks=0).")
    known = "No request of the same client and API is known to have succeeded"
    assert told[3:] == [f"{known} after 1 hit."]


def sent_twice(again_at: int) -> Traffic:
    """A Produce, kproxy's copy of it that the broker puts at this offset, and a later one."""
    traffic = Traffic()
    traffic.add(0, *plain(0, b"v"), client="shop")
    fires(traffic, action="duplicate", phase="before")
    traffic.add(0, *plain(0, b"v", offset=again_at), client="shop")
    asked, answered = traffic.entries[-2:]
    first = traffic.entries[2]
    about = {"correlation_id": first.correlation_id, "fault_ids": [1]}
    traffic.entries[-2] = attrs.evolve(asked, flags=INJECTED, pieces=first.pieces, **about)
    traffic.entries[-1] = attrs.evolve(answered, flags=WITHHELD, sent_ns=0, withheld=True, **about)
    traffic.add(500, *produce(1), client="shop")
    return traffic


NEVER_TOLD = "shop (127.0.0.1) was never told what became of 1 record for orders[0]."


def behind_findings(told: list[str]) -> list[str]:
    """What a story tells of the rule, behind what it has to say of harm."""
    return told[next(n for n, line in enumerate(told) if line.startswith("Rule ")) :]


def test_a_copy_that_a_broker_recognised(tmp_path):
    traffic = sent_twice(5)
    told = traffic.story(tmp_path, "fault", "eat")
    assert told[-1] == "The request itself succeeded in 1 of 1 hit."
    proved = light_data([traffic.recorded(tmp_path)]).findings
    assert "Produce without an answer" not in [each.kind for each in proved]


def versions():
    return "ApiVersions", 3, M.ApiVersionsRequest(), M.ApiVersionsResponse()


@pytest.mark.parametrize(
    ("action", "told"),
    [
        ("max_version", "The request itself succeeded in 2 of 2 hits."),
        ("stale", "No request of the same API that no rule touched succeeded before the recording"),
    ],
)
def test_a_hit_that_succeeded_again_is_not_said_to_have_failed(action, told, tmp_path):
    traffic = Traffic()
    for at in (0, 100):
        traffic.add(at, *versions(), client="shop")
        fires(traffic, action=action)
    *_, last = traffic.story(tmp_path, "fault", "eat")
    assert last.startswith(told)


def test_a_rule_is_told_as_it_is_typed(tmp_path):
    traffic = Traffic()
    traffic.add(0, *versions(), client="shop")
    words = {"name": "cap", "max_version": {"Produce": 7, "Fetch": 4}, "api": ["Produce", "Fetch"]}
    rules = {"fault_id": 1, "name": "cap", "rule": words}
    traffic.entries.append(notes.fault_rules(START_NS, 1, [rules]))
    first = traffic.story(tmp_path, "fault", "cap")[0]
    assert first.endswith("max_version={Produce=7,Fetch=4} api=[Produce,Fetch].")


def test_the_same_client_id_on_another_host(tmp_path):
    traffic = Traffic()
    traffic.add(0, *produce(0), client="worker")
    dropped(traffic)
    elsewhere = attrs.evolve(opened(3, node_id=1), time_ns=START_NS + 350 * MS)
    elsewhere.body["client_address"] = "127.0.0.2:5003"
    traffic.entries.append(elsewhere)
    traffic.add(400, *produce(7), client="worker", connection=3)
    hit = behind_findings(traffic.story(tmp_path, "fault", "eat"))[2]
    assert "no retry; no later request of the client is in the recording" in hit


def test_what_another_process_may_have_asked_is_no_retry(tmp_path):
    traffic = Traffic()
    traffic.add(0, *metadata(2), client="worker")
    dropped(traffic)
    traffic.add(500, *metadata(2), client="worker", connection=2)
    told = traffic.story(tmp_path, "fault", "eat")
    assert told[2].endswith("eat; Metadata #2 succeeded 500 ms later on connection 2, which was"
                            " open before the hit: it may be another client's.")  # fmt: skip


def left_open(tmp_path):
    """The recording of a kproxy that was killed while a rule held a response."""
    traffic = Traffic()
    traffic.add(0, *produce(0), client="shop")
    fires(traffic, "slow", "latency", fault_ns=0, sent_ns=0, about={"delay_ms": 5000.0})
    asked, answered = traffic.entries[2:4]
    traffic.entries[2] = attrs.evolve(asked, fault_ids=[], flags=FAULTED)
    traffic.entries[3] = attrs.evolve(answered, fault_ids=[], flags=FAULTED)
    traffic.add(1000, *beat("m", 1), connection=2, client="other")
    path = tmp_path / "open.mcap"
    recording = Recording(path, start_ns=START_NS, schema_id="x", library_version="0")
    recording.write(sorted(traffic.entries, key=lambda entry: entry.time_ns))
    so_far = path.read_bytes()
    recording.close()
    path.write_bytes(so_far)  # without the rows that are written at the end
    return path


def test_a_hit_that_the_recording_leaves_open(tmp_path):
    out = io.StringIO()
    show_why([left_open(tmp_path)], "fault", "slow", out)
    assert out.getvalue().splitlines()[1:] == [
        "It touched 1 exchange: Produce 1; of shop (127.0.0.1) 1; orders[0] 1.",
        (
            "22:13:20.000 Produce #1 of shop (127.0.0.1): the recording ends while it is held; no"
            " later request of the client is in the recording, which ends 1.0 s later."
        ),
        "No request of the same API succeeded before the recording ends after 1 hit.",
    ]


def plain(partition: int, *values: bytes, offset: int = 5):
    """A Produce without idempotence: a record for each value."""
    data = records.encode_batch([Record(n, TIMESTAMP, b"k", v) for n, v in enumerate(values)])
    answer = produce_response({partition: offset})
    return "Produce", 8, produce_request({partition: data}), answer


def test_a_produce_that_is_lost_is_not_called_recovered(tmp_path):
    traffic = Traffic()
    traffic.add(0, *plain(0, b"one"), client="shop")
    dropped(traffic)
    traffic.add(30, *plain(1, b"two"), client="shop")
    told = traffic.story(tmp_path, "fault", "eat")
    assert told[0] == NEVER_TOLD
    assert behind_findings(told)[2:] == [
        (
            "22:13:20.000 Produce #1 of shop (127.0.0.1): dropped by fault eat; the client was"
            " never told, and the recording shows no retry; the next Produce that succeeded was"
            " Produce #2, 30.0 ms later, which asks something else."
        ),
        "Never told to the client, and not asked again in the recording: #1.",
        (
            "The next request of the same API, whatever it asked, succeeded after 1 of 1 hit; the"
            " longest took 30.0 ms (after #1)."
        ),
    ]
    proved = light_data([traffic.recorded(tmp_path)]).findings
    assert "Produce without an answer" in [each.kind for each in proved]


def test_a_part_that_is_sent_again(tmp_path):
    traffic = Traffic()
    traffic.add(0, *plain(0, b"one", b"two"), client="shop")
    dropped(traffic)
    traffic.add(100, *plain(0, b"two"), client="shop")
    told = traffic.story(tmp_path, "fault", "eat")
    assert "it sent a part of the same again 100 ms later (Produce #2), which succeeded" in told[2]
    again = "100 ms later client shop sent a part of the same records again with Produce #2, which"
    assert f"{again} succeeded." in traffic.story(tmp_path, "number", "1")


def test_what_was_held_behind_a_hit_and_written_again_counts(tmp_path):
    traffic = Traffic()
    traffic.add(0, *plain(0, b"a", offset=5), took_ms=3000, client="shop")
    fires(
        traffic, action="latency", fault_ns=2_900 * MS, client_ended=True, about={"delay_ms": 2900}
    )
    traffic.add(10, *plain(0, b"b", offset=6), took_ms=2995, client="shop")
    traffic.entries[-1] = attrs.evolve(
        traffic.entries[-1], client_ended=True, behind=1, fault_ns=MS
    )
    traffic.add(1000, *plain(0, b"a", b"b", offset=7), connection=2, client="shop")
    told = traffic.story(tmp_path, "fault", "eat")
    assert told[2].endswith(" So 2 records of orders were written again, by 1 request.")


def test_many_hits_are_counted_and_some_told(tmp_path):
    traffic = Traffic()
    for nth in range(150):
        traffic.add(10 * nth, *produce(nth), client="shop")
        dropped(traffic)
    told = traffic.story(tmp_path, "fault", "eat")
    assert told[1].startswith("It touched 150 exchanges: Produce 150;")
    assert len(told) == 2 + 11 + 1
    assert told[-1] == (
        "No request of the same API succeeded before the recording ends after the first 100 hits"
        " of 150."
    )


def test_a_rule_that_never_fired_and_one_that_there_is_not(tmp_path, capsys):
    traffic = Traffic()
    traffic.add(0, *produce(0), client="shop")
    about = {"fault_id": 1, "name": "never", "rule": {"api": "Fetch"}}
    traffic.entries.append(notes.fault_rules(START_NS, 1, [about]))
    assert traffic.story(tmp_path, "fault", "never") == [
        "Rule never, from 22:13:20.000: api=Fetch.",
        "It touched no exchange in the recording.",
    ]
    assert main(["why", str(traffic.recorded(tmp_path)), "fault:newer"]) == 1
    said = "there is no fault newer in the recording (did you mean never?)"
    assert capsys.readouterr().err == f"kproxy why: {said}\n"


def test_a_hit_that_is_not_in_the_recording(tmp_path):
    traffic = Traffic()
    traffic.add(0, *produce(0), client="shop")
    dropped(traffic)
    traffic.entries = [each for each in traffic.entries if not isinstance(each, Frame)]
    told = traffic.story(tmp_path, "fault", "eat")
    assert told[1:] == ["It hit #1, which is not recorded."]
