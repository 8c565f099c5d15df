"""What a recording tells of the doings of fault rules: dropped, cut, held, changed, by whom."""

from __future__ import annotations

import io
from pathlib import Path

import attrs
import pytest

from kproxy import tables
from kproxy.exchange import delivered
from kproxy.exchange.entries import Entry, Side
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import parse
from kproxy.look.lines.stats_lines import show_stats
from kproxy.proxy.cluster import Cluster
from kproxy.proxy.faults import Rule, Rules, rules_note
from kproxy.proxy.settings import Settings
from kproxy.recording import Recording, read
from kproxy.wire.protocol import messages
from kproxy.wire.protocol.record_batch import Record
from kproxy.wire.protocol.records import encode_batch
from tests.exchange.bodies import fetch_request, fetch_response
from tests.proxy.playing import (
    BROKER,
    Player,
    end,
    heartbeat,
    heartbeat_answer,
    produce,
    request,
    response,
)

MS = 1_000_000
OLDER = Path(__file__).parents[1] / "recording" / "formats" / "2" / "faults.mcap"
START_NS = 1_790_000_000_000_000_000


@attrs.define(eq=False)
class Recorded:
    """A proxy with rules, one connection, and a recording of it."""

    path: Path
    play: Player
    recording: Recording

    def exchanges(self, wanted: str = "") -> list[Exchange]:
        """End the recording; return its exchanges that match a filter, by number."""
        self.play.performer.stop()
        self.recording.close()
        check_agreement(self.path)
        found = read(str(self.path), parse(wanted) if wanted else None)
        return sorted(found, key=lambda exchange: exchange.number)

    def wait(self, milliseconds: int) -> None:
        """Let time pass."""
        self.play.advance(self.play.now + milliseconds * MS)


COLUMNS = (
    "number", "undelivered", "fault_ms", "held_behind", "proxy_ms", "errors", "routine", "faults",
)  # fmt: skip
FILTERS = (
    "is:undelivered", "is:unanswered", "is:error", "is:routine", "fault_ms:1..", "proxy_ms:1..",
    "held_behind:1", "not is:undelivered", "error:*", "is:faulted",
)  # fmt: skip


def check_agreement(path: Path) -> None:
    """Check that columns, filters by columns and exchanges say the same."""
    exchanges = list(read(str(path)))
    rows = tables.read(path, columns=COLUMNS).read_all().to_pylist()
    assert rows == [{name: getattr(each, name) for name in COLUMNS} for each in exchanges]
    for wanted in FILTERS:
        matching = [each.number for each in exchanges if parse(wanted).matches(each)]
        assert [each.number for each in read(str(path), parse(wanted))] == matching, wanted


def counts(path: Path) -> str:
    """The text of `kproxy stats`, which counts by columns."""
    out = io.StringIO()
    show_stats([path], out)
    return out.getvalue()


def recorded(tmp_path: Path, *rules: Rule) -> Recorded:
    """A proxy with rules, one connection, and a recording of it."""
    path = tmp_path / "some.mcap"
    about = {"start_ns": START_NS, "schema_id": "x", "library_version": "0"}
    recording = Recording(path, **about)
    active = Rules(rules)
    play = Player(cluster=Cluster(Settings([BROKER], listen_port=19092), active))
    play.now = START_NS
    recording.write([rules_note(active, START_NS)])

    def watch(entries: list[Entry]) -> None:
        recording.write(entries)

    play.performer.watch = watch
    play.connect()
    return Recorded(path, play, recording)


def produce_answer(correlation_id: int = 1, offset: int = 25) -> bytes:
    kind = messages.ProduceResponse
    partition = kind.PartitionProduceResponse(index=0, base_offset=offset)
    topic = kind.TopicProduceResponse(name="orders", partition_responses=[partition])
    return response(0, 9, kind(responses=[topic]), correlation_id)


def numbers(exchanges: list[Exchange]) -> list[int]:
    return [exchange.number for exchange in exchanges]


def test_a_response_that_a_rule_dropped_was_not_delivered(tmp_path: Path) -> None:
    kept = recorded(tmp_path, Rule(name="eater", api="Produce", drop=True, times=1))
    kept.play.client(produce(-1) + heartbeat(2))
    kept.play.broker(produce_answer() + heartbeat_answer(2))
    dropped, other = kept.exchanges()
    assert dropped.text.endswith("→ offset 25, dropped by fault eater")
    assert dropped.undelivered and dropped.got_no_response
    assert not other.undelivered and not other.got_no_response
    for wanted in ("is:undelivered", "is:unanswered"):
        assert numbers(list(read(str(kept.path), parse(wanted)))) == [1]
    assert "1 not delivered: Produce 1; fault rules made 1 of them" in counts(kept.path)


def test_a_client_that_hung_up_is_no_rules_doing(tmp_path: Path) -> None:
    kept = recorded(tmp_path, Rule(name="slow", api="Produce", phase="after", latency="1s"))
    kept.play.client(produce(-1))
    kept.play.broker(produce_answer())
    kept.play.performer.reset(1, Side.CLIENT)
    (lost,) = kept.exchanges()
    assert lost.undelivered and "dropped" not in lost.text
    assert "not delivered: its connection ended first, fault slow" in lost.text
    assert "1 not delivered: Produce 1\n" in counts(kept.path)


@pytest.mark.parametrize("rule", [None, Rule(name="slow", api="Produce", latency="1s")])
def test_a_response_that_leaves_when_its_client_has_ended_is_told_as_such(
    tmp_path: Path, rule: Rule | None
) -> None:
    kept = recorded(tmp_path, *filter(None, [rule]))
    kept.play.client(produce(-1) + heartbeat(2))
    if rule is not None:  # it waits here when its client ends
        kept.play.broker(produce_answer())
    end(kept.play, Side.CLIENT)
    if rule is None:
        kept.play.broker(produce_answer())
    kept.play.broker(heartbeat_answer(2))
    kept.wait(2000)
    late, beat = kept.exchanges()
    assert late.is_late and beat.is_late
    assert "→ offset 25, sent to a client that had ended its side" in late.text
    # It may read on: a FIN says that it sends no more.
    assert not late.undelivered and "not delivered" not in counts(kept.path)


def test_a_poll_that_a_client_leaves_behind_is_no_loss_and_is_not_consumed(tmp_path: Path) -> None:
    kept = recorded(tmp_path)
    kept.play.client(request(1, 11, fetch_request({0: 5})))
    end(kept.play, Side.CLIENT)
    answer = fetch_response({0: encode_batch([Record(5, 0, None, b"v")])})
    kept.play.broker(response(1, 11, answer))
    (left,) = kept.exchanges()
    assert left.records and not left.is_late and "ended" not in left.text
    assert list(delivered.consumed([left])) == []


def test_a_cut_response_was_not_delivered_whole(tmp_path: Path) -> None:
    kept = recorded(tmp_path, Rule(name="cutter", phase="after", truncate=10))
    kept.play.client(heartbeat(1))
    kept.play.broker(heartbeat_answer(1))
    (cut,) = kept.exchanges()
    assert cut.undelivered and cut.text.endswith("→ cut off by fault cutter")


def test_a_request_that_a_rule_kept_from_the_broker(tmp_path: Path) -> None:
    kept = recorded(tmp_path, Rule(name="eater", phase="before", drop=True))
    kept.play.client(heartbeat(1))
    (lost,) = kept.exchanges()
    assert lost.text.endswith("→ never answered: kept from the broker by fault eater")
    assert lost.got_no_response and not lost.undelivered


def test_a_request_that_kproxy_answers_in_place_of_the_broker_is_answered(tmp_path: Path) -> None:
    kept = recorded(tmp_path, Rule(name="no", error="REBALANCE_IN_PROGRESS"))
    kept.play.client(heartbeat(1))
    (refused,) = kept.exchanges()
    assert refused.text.endswith("→ REBALANCE_IN_PROGRESS, injected, fault no")
    assert refused.errors and not refused.routine and not refused.got_no_response


def test_what_a_silent_connection_keeps_is_the_rules_doing(tmp_path: Path) -> None:
    kept = recorded(tmp_path, Rule(name="hole", api="Produce", blackhole=True))
    kept.play.client(heartbeat(1) + produce(-1, correlation_id=2) + heartbeat(3))
    kept.play.client(heartbeat(4) + heartbeat(5))
    kept.play.broker(heartbeat_answer(1))
    end(kept.play, Side.CLIENT)
    answered, hole, *behind = kept.exchanges()
    silenced = "a fault had silenced or ended its connection"
    assert answered.text.endswith(f"→ not delivered: {silenced}")
    assert hole.text.endswith("→ never answered: kept from the broker by fault hole")
    assert numbers(behind) == [3, 4, 5]
    assert all(each.text.endswith(f"→ never answered: {silenced}") for each in behind)


def test_time_that_a_rule_added_is_not_kproxys(tmp_path: Path) -> None:
    rule = Rule(name="slow", api="Produce", phase="after", latency="300ms")
    kept = recorded(tmp_path, rule)
    kept.play.client(produce(-1) + heartbeat(2) + heartbeat(3))
    kept.play.broker(produce_answer())
    kept.play.broker(heartbeat_answer(2))
    kept.wait(100)
    kept.play.broker(heartbeat_answer(3))
    kept.wait(1000)
    kept.play.client(heartbeat(4))
    kept.play.broker(heartbeat_answer(4))
    own, first, second, later = kept.exchanges()
    assert own.fault_ms == 300 and own.proxy_ms == 2
    assert own.text.endswith("offset 25, held 300 ms by fault slow")
    assert first.fault_ms == 299 and second.fault_ms == 198
    assert all(each.proxy_ms < 10 for each in (first, second, later))
    assert [each.held_behind for each in (own, first, second, later)] == [None, 1, 1, None]
    assert first.text.endswith(", held 299 ms behind #1, which a fault delayed")
    assert later.fault_ms == 0 and " → " not in later.text
    found = list(read(str(kept.path), parse("fault_ms:250..")))
    assert numbers(found) == [1, 2]


def test_a_delayed_request_holds_those_behind_it(tmp_path: Path) -> None:
    kept = recorded(tmp_path, Rule(name="slow", api="Produce", phase="before", latency="300ms"))
    kept.play.client(produce(-1))
    kept.play.client(heartbeat(2))
    kept.play.client(produce(0, correlation_id=3))
    kept.wait(1000)
    kept.play.broker(produce_answer() + heartbeat_answer(2))
    own, behind, one_way = kept.exchanges()
    assert own.fault_ms == 300 and own.held_behind is None
    assert behind.fault_ms == 299 and behind.held_behind == 1
    assert one_way.fault_ms == 300
    assert all((each.proxy_ms or 0) < 10 for each in (own, behind, one_way))


def test_what_leaves_at_a_rate_is_held_by_its_rule(tmp_path: Path) -> None:
    size = len(heartbeat_answer(1))
    kept = recorded(tmp_path, Rule(name="thin", api="Heartbeat", times=1, bandwidth=size * 10))
    kept.play.client(heartbeat(1) + heartbeat(2))
    kept.play.broker(heartbeat_answer(1) + heartbeat_answer(2))
    kept.wait(1000)
    own, behind = kept.exchanges()
    assert own.fault_ms and 90 < own.fault_ms <= 100 and own.held_behind is None
    assert behind.fault_ms == 100 and behind.held_behind == 1


def test_an_error_that_a_rule_put_in_behind_the_broker_is_what_the_client_was_told(
    tmp_path: Path,
) -> None:
    rule = Rule(name="liar", api="Produce", phase="after", error="MESSAGE_TOO_LARGE")
    kept = recorded(tmp_path, rule)
    kept.play.client(produce(-1))
    kept.play.broker(produce_answer())
    (told,) = kept.exchanges()
    assert told.errors == ["MESSAGE_TOO_LARGE"]
    assert "→ MESSAGE_TOO_LARGE “" in told.text
    assert told.text.endswith(", the broker said: offset 25, fault liar")
    assert told.response.responses[0].partition_responses[0].base_offset == 25
    for wanted in ("is:error", "error:MESSAGE_TOO_LARGE", "error:10"):
        assert numbers(list(read(str(kept.path), parse(wanted)))) == [1]
    assert "MESSAGE_TOO_LARGE ×1  Produce 1; the first is #1" in counts(kept.path)


def test_an_error_that_a_rule_hid_is_none_that_the_client_was_told(tmp_path: Path) -> None:
    """The other way round: the broker refuses, and a rule puts another error in its place."""
    rule = Rule(name="liar", api="Heartbeat", phase="after", error="UNKNOWN_MEMBER_ID")
    kept = recorded(tmp_path, rule)
    kept.play.client(heartbeat(1))
    kept.play.broker(heartbeat_answer(1, 27))
    (told,) = kept.exchanges()
    assert told.errors == ["UNKNOWN_MEMBER_ID"] and not told.routine
    assert "the broker said: REBALANCE_IN_PROGRESS, fault liar" in told.text


def test_of_older_recordings_no_more_is_said_than_they_tell() -> None:
    exchanges = list(read(str(OLDER)))
    touched = [each for each in exchanges if each.faults]
    assert touched and all(each.fault_ms is each.held_behind is None for each in exchanges)
    assert all(each.proxy_ms is None for each in touched)
    assert any(each.proxy_ms is not None for each in exchanges)
    assert not any("held" in each.text for each in exchanges)
    lost = [each.text for each in touched if each.undelivered]
    assert [text.rpartition("→ ")[2] for text in lost] == [
        "offset 1, not delivered, fault lost",
        "offset 2, not delivered, fault cut",
    ]
