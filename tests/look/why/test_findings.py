"""Findings: each is true of the recording, and where it is not proven there is none."""

from __future__ import annotations

import attrs
import pytest

from kproxy.exchange import notes
from kproxy.exchange.entries import NO_RESPONSE, WITHHELD
from kproxy.exchange.filter import parse
from kproxy.look.why.findings import Finding, Findings, Harm
from kproxy.look.why.source import StorySource
from kproxy.wire.protocol.record_batch import Record
from kproxy.wire.protocol.records import encode_batch
from tests.exchange.batches import marker
from tests.exchange.bodies import produce_request, produce_response
from tests.exchange.making import START_NS, unanswered
from tests.look.why.test_key import batch, commit, fetch, metadata, produce
from tests.look.why.test_transactional_id import end, initialize
from tests.look.why.test_transactional_id import produce as produce_in_transaction
from tests.look.why.traffic import Traffic, beat, ends, join, leave, numbered, sync


def found(traffic: Traffic, tmp_path, kind: str = "") -> list[Finding]:
    return found_in(traffic.recorded(tmp_path), kind)


def found_in(path, kind: str = "") -> list[Finding]:
    findings = Findings()
    source = StorySource([path], lambda done: None)
    for item in source.read(parse(""), findings.history.noted.note):
        findings.add(item)
    return [each for each in findings.found() if not kind or each.kind == kind]


def one(traffic: Traffic, tmp_path, kind: str) -> Finding:
    (finding,) = found(traffic, tmp_path, kind)
    return finding


# ---- what was written


def spread(traffic: Traffic, *counts: int, client: str = "shop") -> None:
    """Write so many records to the partitions, in many requests."""
    for partition, count in enumerate(counts):
        for nth in range(0, count, 10):
            keys = [b""] * min(10, count - nth)
            traffic.add(traffic.number, *produce(partition, nth, *keys), client=client)


def test_a_hot_partition(tmp_path):
    traffic = Traffic()
    traffic.add(0, *metadata(4))
    spread(traffic, 10, 160, 20, 10)
    finding = one(traffic, tmp_path, "hot partition")
    assert finding.text == (
        "orders[1] got 160 of 200 records written to orders (80 %), one of 4 partitions (last #18)."
    )
    assert finding.command(["a b.mcap"]) == "kproxy why 'a b.mcap' topic:orders"


@pytest.mark.parametrize("counts", [(50, 60, 40, 50), (0, 90, 0, 0), (60, 10, 10, 0)])
def test_partitions_that_are_not_hot(tmp_path, counts):
    traffic = Traffic()
    traffic.add(0, *metadata(4))
    spread(traffic, *counts)
    assert not found(traffic, tmp_path, "hot partition")


def by_partitioner(traffic: Traffic, client: str, name: str, keys: int) -> None:
    from kproxy.exchange.partitioners import placements

    for nth in range(keys):
        key = b"key-%d" % nth
        partition = placements(key, 8)[name]
        traffic.add(traffic.number, *produce(partition, traffic.number, key), client=client)


def test_keys_that_two_clients_place_differently(tmp_path):
    traffic = Traffic()
    traffic.add(0, *metadata(8))
    by_partitioner(traffic, "java", "murmur2", 30)
    by_partitioner(traffic, "c", "CRC32", 30)
    finding = one(traffic, tmp_path, "key on two partitions")
    assert finding.harm is Harm.DATA and len(finding.numbers) == 2
    assert finding.text.startswith("Key key-0 was written to orders[")
    assert "java (127.0.0.1) places keys as murmur2 does" in finding.text
    assert "c (127.0.0.1) places keys as CRC32 does" in finding.text
    assert finding.words == ("why", "topic:orders", "key:key-0")


def test_keys_that_moved_because_there_are_more_partitions(tmp_path):
    traffic = Traffic()
    traffic.add(0, *metadata(8))
    traffic.add(1, *produce(1, 0, b"alice"))
    traffic.add(2, *metadata(12))
    traffic.add(3, *produce(2, 0, b"alice"))
    traffic.add(4, *produce(3, 0, b"bob", error=10))
    traffic.add(5, *produce(4, 0, b"bob"))
    assert not found(traffic, tmp_path, "key on two partitions")


def drop_response(traffic: Traffic, rule: str = "cut") -> None:
    last = traffic.entries[-1]
    traffic.entries[-1] = attrs.evolve(
        last, fault_ids=[1], flags=WITHHELD, sent_ns=0, withheld=True
    )
    rules = [{"fault_id": 1, "name": rule, "rule": "api=Produce"}]
    traffic.entries.append(notes.fault_rules(START_NS, 1, rules))


@pytest.mark.parametrize(("epoch", "sequence", "is_twice"), [(1, 0, True), (0, 4, False)])
def test_records_that_an_idempotent_producer_wrote_twice(tmp_path, epoch, sequence, is_twice):
    traffic = Traffic()
    for nth, (its, first) in enumerate([(0, 4), (epoch, sequence)]):
        sent = encode_batch(
            [Record(0, 0, b"k", b"%d" % each) for each in range(4)],
            producer_id=7, producer_epoch=its, base_sequence=first,
        )  # fmt: skip
        answer = produce_response({0: 5 + 4 * nth * is_twice})
        traffic.add(100 * nth, "Produce", 8, produce_request({0: sent}), answer, client="shop")
        if not nth:
            drop_response(traffic)
    told = "".join(each.text for each in found(traffic, tmp_path, "records written twice"))
    assert told == is_twice * (
        "4 records of orders[0] were written twice by shop (127.0.0.1): with another epoch, the"
        " broker does not know them again."
    )


def test_a_retry_that_is_answered_before_what_it_repeats(tmp_path):
    traffic = Traffic()
    traffic.add(0, *produce(0, 7, b"a"), client="shop")  # another record: no retry of anything
    traffic.add(50, *produce(0, 5, b"b"), took_ms=3000, client="shop")
    traffic.entries[-1] = attrs.evolve(traffic.entries[-1], client_ended=True)
    traffic.add(1050, *produce(0, 8, b"b", b"c"), connection=2, client="shop")
    traffic.add(1100, *produce(0, 10, b"b"), connection=2, client="other")
    assert one(traffic, tmp_path, "records written twice").evidence[0] == (
        "Produce #2 of shop (127.0.0.1) wrote 1 record to orders[0]@5, #3 the same, among others,"
        " to @8; the response to #2 was sent to a client that had ended its side."
    )
    assert "1.0 s later client shop sent the same records again, among others, with Produce #3" in (
        "\n".join(traffic.story(tmp_path, "number", "2"))
    )


def test_what_was_never_answered_may_be_written_twice(tmp_path):
    traffic = Traffic()
    for number, key in enumerate((b"a", b"b")):
        traffic.add(number, *produce(0, 5, key), client="shop")
        traffic.entries[-1] = unanswered(traffic.entries[-2])
    traffic.add(100, *produce(0, 7, b"a", b"b"), connection=2, client="shop")
    finding = one(traffic, tmp_path, "records maybe written twice")
    assert finding.text == (
        "1 record of orders[0] may have been written twice: Produce #1 was never answered."
    )
    assert " ".join(finding.evidence) == (
        "Produce #1 of shop (127.0.0.1) at 22:13:20.000 was never answered; 1 record of it for"
        " orders[0] came again with #3, and the broker wrote it to @7. If it had taken #1, too, it"
        " is there twice: no answer says so, and #1 has no sequence numbers. So it was with 1 more"
        " request for orders."
    )
    assert finding.numbers == (1, 3) and finding.topic == "orders"


@pytest.mark.parametrize(
    "why",
    ["never sent", "kept by a rule", "no retry", "refused again", "idempotent", "acks=0", "at end"],
)
def test_what_cannot_be_there_twice(tmp_path, why: str):
    traffic = Traffic()
    api, version, body, answer = produce(0, 5, b"a")
    if why == "acks=0":
        body.acks = 0
    if why == "idempotent":
        body.topic_data[0].partition_data[0].records = numbered(4, 0, 0)
    traffic.add(0, api, version, body, answer, client="shop")
    asked = traffic.entries[-2]
    if why == "never sent":
        asked = attrs.evolve(asked, sent_ns=0)
    elif why in ("kept by a rule", "acks=0"):
        asked = attrs.evolve(asked, flags=WITHHELD if why == "kept by a rule" else NO_RESPONSE)
    traffic.entries[-2:] = [asked] if why in ("acks=0", "at end") else [asked, unanswered(asked)]
    if why != "no retry":
        error = 6 if why == "refused again" else 0
        again = produce(0, 7, b"a", error=error)
        again[2].topic_data[0].partition_data[0].records = (
            body.topic_data[0].partition_data[0].records
        )
        traffic.add(100, *again, connection=2, client="shop")
    assert not found(traffic, tmp_path, "records maybe written twice")


def test_a_producer_that_is_fenced(tmp_path):
    traffic = Traffic()
    traffic.add(0, *initialize(0), client="old")
    traffic.add(20, *produce_in_transaction(0, 0, 5), client="old")
    traffic.add(5000, *initialize(1), client="new", connection=2)
    traffic.add(6000, *end(0, error=90), client="old")
    finding = one(traffic, tmp_path, "fenced producer")
    assert finding.text == (
        "Transactional id pay: EndTxn #4 of old (127.0.0.1) is refused: PRODUCER_FENCED. It has"
        " epoch 0 (given by InitProducerId #1); new (127.0.0.1) took the transactional id at"
        " 22:13:25.000 with InitProducerId #3 and got epoch 1."
    )
    assert finding.words == ("why", "transactional_id:pay") and finding.numbers == (4,)


# ---- what was read


def member(traffic: Traffic, at: int, name: str, generation: int, *owned: int, **given) -> None:
    traffic.add(at, *join(f"m-{name}", generation, [f"m-{name}"], **given), client=name)
    traffic.add(at + 1, *sync(f"m-{name}", generation, *owned), client=name)


@pytest.mark.parametrize(
    ("is_committed", "is_left", "harms"),
    [(True, True, []), (False, True, [Harm.CURIOSITY]), (True, False, [Harm.LATENCY])],
)
def test_what_was_fetched_ahead_and_given_up_in_order(tmp_path, is_committed, is_left, harms):
    traffic = Traffic()
    member(traffic, 0, "one", 3, 0)
    traffic.add(10, *fetch(0, 100, b"a", b"b", b"c", b"d"), client="one")
    if is_committed:
        commits(traffic, 20, 102)
    if is_left:
        leaves(traffic)
    member(traffic, 1000, "two", 4, 0)
    traffic.add(1010, *fetch(0, 102 if is_committed else 100, b"c"), client="two")
    traffic.add(1020, *commit(0, 103), client="two")
    again = found(traffic, tmp_path, "fetched twice after a rebalance")
    assert [each.harm for each in again] == harms


def in_transactions(first: int, count: int, *, asked: int | None = None):
    """A Fetch of transactions of one record each, with their markers."""
    request, answer = fetch(0, first if asked is None else asked, b"k")[2:]
    answer.responses[0].partitions[0].records = b"".join(
        batch(b"k", first=first + 2 * nth) + marker(True, first + 2 * nth + 1)
        for nth in range(count)
    )
    return "Fetch", 11, request, answer


def test_markers_between_records_are_no_seek(tmp_path):
    traffic = Traffic()
    member(traffic, 0, "one", 3, 0)
    for nth in range(3):
        traffic.add(10 + nth, *in_transactions(100 + 4 * nth, 2), client="one")
    only_marker = in_transactions(112, 1)
    only_marker[3].responses[0].partitions[0].records = marker(True, 112)
    traffic.add(15, *only_marker, client="one")
    traffic.add(16, *in_transactions(113, 1), client="one")
    member(traffic, 1000, "two", 4, 0)
    for nth in range(2):
        traffic.add(1010 + nth, *in_transactions(104 + 4 * nth, 2), client="two")
    traffic.add(1015, *only_marker, client="two")
    traffic.add(1016, *in_transactions(113, 2), client="two")
    text = one(traffic, tmp_path, "fetched twice after a rebalance").whole
    assert "it. orders[0]@104..113 in generation 3 by one" in text and "likewise" not in text


def two_groups(traffic: Traffic) -> None:
    member(traffic, 0, "one", 3, 0)
    member(traffic, 2, "two", 3, 0, group_id="audit")


def seeks(traffic: Traffic) -> None:
    member(traffic, 0, "one", 3, 0)


def goes_on(traffic: Traffic) -> None:
    member(traffic, 0, "one", 3, 0)
    traffic.add(10, *fetch(0, 98, b"x", b"y", b"a", b"b"), client="one")
    member(traffic, 20, "two", 4, 0)
    traffic.add(30, *fetch(0, 102, b"c"), client="two")  # and then it seeks


def asked_before(traffic: Traffic) -> None:
    member(traffic, 0, "one", 3, 0)
    traffic.add(10, *fetch(0, 100, b"a", b"b"), client="one")
    traffic.add(15, *fetch(0, 100, b"a", b"b"), took_ms=40, client="one", connection=2)
    member(traffic, 20, "one", 4, 0)


@pytest.mark.parametrize("before", [two_groups, seeks, goes_on, asked_before])
def test_records_that_are_fetched_again_for_another_reason(tmp_path, before):
    traffic = Traffic()
    before(traffic)
    if before is not asked_before:
        first, second = {two_groups: ("one", "two"), seeks: ("one", "one")}.get(
            before, ("two", "two")
        )
        traffic.add(100, *fetch(0, 100, b"a", b"b"), client=first)
        traffic.add(200, *fetch(0, 100, b"a", b"b"), client=second)
    assert not found(traffic, tmp_path, "fetched twice after a rebalance")


def commits(traffic: Traffic, at: int, offset: int) -> None:
    committed = commit(0, offset)
    committed[2].member_id = "m-one"
    traffic.add(at, *committed, client="one")


def leaves(traffic: Traffic) -> None:
    traffic.add(100, *leave("m-one"), client="one")
    ends(traffic, 500)


def lives(traffic: Traffic) -> None:
    ends(traffic, 500)
    traffic.add(600, *beat("m-one", 3), connection=2, client="one")


def cut_by_the_broker(traffic: Traffic) -> None:
    ends(traffic, 500, "broker")


def ends_much_later(traffic: Traffic) -> None:
    ends(traffic, 20_000)


def fetches_on(traffic: Traffic) -> None:
    traffic.add(20, *fetch(0, 103), client="one", connection=2)
    ends(traffic, 3000)


def commits_the_same_again(traffic: Traffic) -> None:
    commits(traffic, 300, 103)
    ends(traffic, 500)


@pytest.mark.parametrize(
    "after",
    [leaves, lives, cut_by_the_broker, ends_much_later, fetches_on, commits_the_same_again],
)
def test_a_commit_right_after_the_fetch_of_a_member_that_does_not_end_so(tmp_path, after):
    traffic = Traffic()
    member(traffic, 0, "one", 3, 0)
    traffic.add(10, *fetch(0, 100, b"a", b"b", b"c"), client="one")
    committed = commit(0, 103)
    committed[2].member_id = "m-one"
    traffic.add(14, *committed, client="one")
    after(traffic)
    assert not found(traffic, tmp_path, "committed, then ended")


@pytest.mark.parametrize("ends_at", [None, 1500])
def test_a_member_whose_fetch_a_rule_keeps_does_fetch(tmp_path, ends_at):
    traffic = Traffic()
    member(traffic, 0, "one", 3, 0, 1, rebalance_timeout_ms=5000)
    traffic.add(900, *fetch(0, 100, b"a"), client="one", connection=2)
    drop_response(traffic)
    if ends_at is not None:  # from then on it waits for nothing
        ends(traffic, ends_at, connection=2)
    for second in range(1, 9):
        traffic.add(1000 * second, *beat("m-one", 3), client="one")
    assert bool(found(traffic, tmp_path, "member that does not fetch")) == (ends_at is not None)


def test_a_member_that_does_not_fetch(tmp_path):
    traffic = Traffic()
    member(traffic, 0, "one", 3, 0, 1, rebalance_timeout_ms=5000)
    for second in range(1, 9):
        traffic.add(1000 * second, *beat("m-one", 3), client="one")
    assert one(traffic, tmp_path, "member that does not fetch").whole == (
        "one (127.0.0.1) of group billing fetched nothing for 8.0 s. It has orders[0,1] (SyncGroup"
        " #2), and sent heartbeats but no Fetch from 22:13:20.002 until 22:13:28.000, for longer"
        " than its rebalance timeout (5.0 s, the max.poll.interval.ms of most clients). It did not"
        " poll, or its partitions are paused, or it fetches on connections that are not recorded."
    )
    traffic.add(9000, *leave("m-one"), client="one")
    assert one(traffic, tmp_path, "member that does not fetch").topic == "orders"
    traffic.add(500, *fetch(0, 100, b"a")[:3], None, client="one")  # answered after the recording
    assert not found(traffic, tmp_path, "member that does not fetch")
