"""Transactions at the replaying broker."""

from __future__ import annotations

import attrs
import pytest

from kproxy.replay.settings import Mode, ReplaySettings, Visible
from kproxy.wire.protocol import error_name, messages
from tests.replay.making import Client, Playing, Recorded, batch, offset_fetch

CAUSAL = ReplaySettings(visible=Visible.CAUSAL)


def init(client: Client, name: str | None = "t", version: int = 4):
    request = messages.InitProducerIdRequest
    return client.ask(version, request(transactional_id=name, transaction_timeout_ms=60_000))


def begin(client: Client, identity) -> None:
    request = messages.AddPartitionsToTxnRequest
    topic = request.AddPartitionsToTxnTopic(name="orders", partitions=[0])
    body = request(
        v3_and_below_transactional_id="t",
        v3_and_below_producer_id=identity.producer_id,
        v3_and_below_producer_epoch=identity.producer_epoch,
        v3_and_below_topics=[topic],
    )
    answer = client.ask(3, body)
    (result,) = answer.results_by_topic_v3_and_below[0].results_by_partition
    assert result.partition_error_code == 0


def end(client: Client, identity, committed: bool, version: int = 3):
    request = messages.EndTxnRequest
    body = request(
        transactional_id="t",
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        committed=committed,
    )
    return client.ask(version, body)


def written(identity, *values: str) -> bytes:
    more = {"producer_id": identity.producer_id, "producer_epoch": identity.producer_epoch}
    return batch(*values, transactional=True, base_sequence=0, **more)


def test_new_records_of_a_transaction_are_read_when_it_is_committed() -> None:
    client = Playing(Recorded().metadata().loaded).connect()
    identity = init(client)
    begin(client, identity)
    client.produce(written(identity, "a"))
    assert client.values() == ["a"]
    assert client.values(isolation_level=1) == []
    assert end(client, identity, True).error_code == 0
    assert client.values(isolation_level=1) == ["a"]
    assert end(client, identity, True).error_code == 0, "a retry"


def test_an_aborted_transaction_is_listed() -> None:
    client = Playing(Recorded().metadata().loaded).connect()
    identity = init(client)
    begin(client, identity)
    client.produce(written(identity, "a"))
    end(client, identity, False)
    found = client.fetch(0, isolation_level=1)
    (aborted,) = found.aborted_transactions
    assert (aborted.producer_id, aborted.first_offset) == (identity.producer_id, 0)
    assert found.last_stable_offset == 2


def recorded(committed: bool = True) -> Recorded:
    more = {"producer_id": 5, "producer_epoch": 1, "transactional": True}
    was = Recorded().metadata().produced(batch("a", "b", **more), 0)
    body = messages.EndTxnRequest(
        transactional_id="t", producer_id=5, producer_epoch=1, committed=committed
    )
    return was.add(3, body, messages.EndTxnResponse())


def test_a_recorded_transaction_is_read_when_it_is_committed_again() -> None:
    broker = Playing(recorded().loaded, CAUSAL)
    client = broker.connect()
    identity = init(client)
    assert identity.producer_id > 5
    begin(client, identity)
    client.produce(written(identity, "a", "b"))
    assert client.values() == ["a", "b"]
    assert client.values(isolation_level=1) == []
    end(client, identity, True)
    assert client.values(isolation_level=1) == ["a", "b"]
    assert client.fetch(0).high_watermark == 3
    assert broker.report.findings == []


def test_a_transaction_that_ends_otherwise_than_recorded_is_a_finding() -> None:
    broker = Playing(recorded(committed=False).loaded, CAUSAL)
    client = broker.connect()
    identity = init(client)
    begin(client, identity)
    client.produce(written(identity, "a", "b"))
    end(client, identity, True)
    (finding,) = broker.report.findings
    assert "is committed now, and was aborted when recorded" in finding.text


def transact(client: Client, *values: str, committed: bool | None) -> None:
    """A transaction that produces values; None leaves it open."""
    identity = init(client)
    begin(client, identity)
    client.produce(written(identity, *values))
    if committed is not None:
        assert end(client, identity, committed).error_code == 0


def findings(broker: Playing) -> list[str]:
    """What is found up to the end."""
    broker.end()
    return [f"{each.kind}: {each.text}" for each in broker.report.findings]


OF_K = "differs: orders: the record of key 'k' was produced in a transaction"
ABORTED = f"{OF_K} that was aborted"
OPEN = f"{OF_K} that never ended"
PLAIN = Recorded().metadata().produced(batch("a"))


def recorded_as(*ends: tuple[str, bool | None]) -> Recorded:
    """Transactions that each produced a value, and their ends."""
    was, offset = Recorded().metadata(), 0
    for number, (value, committed) in enumerate(ends, 5):
        response = messages.InitProducerIdResponse(producer_id=number, producer_epoch=1)
        was.add(4, messages.InitProducerIdRequest(transactional_id="t"), response)
        more = {"producer_id": number, "producer_epoch": 1, "transactional": True}
        was.produced(batch(value, **more), offset)
        offset += 1
        if committed is not None:
            request = messages.EndTxnRequest
            body = request(producer_id=number, producer_epoch=1, committed=committed)
            was.add(3, body, messages.EndTxnResponse())
            offset += 1
    return was


@pytest.mark.parametrize("was", [PLAIN, recorded_as(("a", True))], ids=["plain", "committed"])
@pytest.mark.parametrize(
    ("ends", "found"),
    [
        ([True], None),
        ([False], ABORTED),
        ([None], OPEN),
        ([False, True], None),
        ([False, None], OPEN),
        ([False, False], ABORTED),
    ],
)
@pytest.mark.parametrize("settings", [CAUSAL, ReplaySettings()], ids=["causal", "all"])
def test_a_record_that_was_committed_counts_when_it_is_committed(
    was: Recorded, ends: list[bool | None], found: str | None, settings: ReplaySettings
) -> None:
    broker = Playing(was.loaded, settings)
    for committed in ends:
        transact(broker.connect(), "a", committed=committed)
    assert broker.broker.state.check.lacks_records == (found is not None)
    told = findings(broker)
    assert len(told) == (found is not None)
    assert all(each.startswith(f"{found}; the recording has it committed") for each in told)


@pytest.mark.parametrize(("committed", "how"), [(False, "aborted"), (None, "left open")])
def test_a_record_that_was_not_committed_must_not_be(committed: bool | None, how: str) -> None:
    told = (
        "differs: orders[0]: the transaction at offset 0 is committed now,"
        f" and was {how} when recorded"
    )
    broker = Playing(recorded_as(("a", committed)).loaded, CAUSAL)
    transact(broker.connect(), "a", committed=True)
    assert findings(broker) == [told]
    broker = Playing(recorded_as(("a", committed)).loaded, CAUSAL)
    broker.connect().produce(batch("a"))
    outside = (
        f"differs: orders[0]: the transaction at offset 0 was {how} when recorded;"
        " what it held is committed outside of one now"
    )
    assert findings(broker) == [outside]


def test_equal_records_are_told_apart_by_the_ends_of_their_transactions() -> None:
    broker = Playing(recorded_as(("a", False), ("a", True)).loaded, CAUSAL)
    client = broker.connect()
    transact(client, "a", committed=True)
    assert client.committed() == ["a"]
    assert client.fetch(0).last_stable_offset == 2
    assert findings(broker) == []


@pytest.mark.parametrize(("committed", "count"), [(True, 1), (False, 0), (None, 1)])
def test_a_record_that_was_not_recorded_counts_unless_it_is_aborted(
    committed: bool | None, count: int
) -> None:
    broker = Playing(PLAIN.loaded, CAUSAL)
    transact(broker.connect(), "x", committed=committed)
    told = [each for each in findings(broker) if not each.startswith("not produced")]
    assert len(told) == count


def test_a_producer_that_begins_anew_has_aborted_what_was_open() -> None:
    was = recorded_as(("a", None))
    response = messages.InitProducerIdResponse(producer_id=5, producer_epoch=2)
    was.add(4, messages.InitProducerIdRequest(transactional_id="t"), response)
    more = {"producer_id": 5, "producer_epoch": 2, "transactional": True}
    was.produced(batch("b", **more), 2)
    body = messages.EndTxnRequest(producer_id=5, producer_epoch=2, committed=True)
    was.add(3, body, messages.EndTxnResponse())
    client = Playing(was.loaded).connect()
    (aborted,) = client.fetch(0, isolation_level=1).aborted_transactions
    assert (aborted.producer_id, aborted.first_offset) == (5, 0)


@pytest.mark.parametrize("producer_id", [5, 6])
def test_an_end_without_an_answer_that_is_read_late_may_have_committed(producer_id: int) -> None:
    was = recorded_as(("a", None))
    name = {"transactional_id": "t", "producer_id": 5, "producer_epoch": 1}
    was.add(3, messages.EndTxnRequest(**name, committed=True))
    response = messages.InitProducerIdResponse(producer_id=producer_id, producer_epoch=2)
    was.add(4, messages.InitProducerIdRequest(transactional_id="t"), response)
    found = Playing(was.loaded).connect().fetch(0, isolation_level=1)
    assert (found.last_stable_offset, found.aborted_transactions) == (2, [])


def test_a_transaction_of_which_only_records_are_known_is_taken_as_committed() -> None:
    more = {"producer_id": 5, "producer_epoch": 1, "transactional": True}
    was = Recorded().metadata().produced(batch("a", **more))
    assert Playing(was.loaded).connect().values(isolation_level=1) == ["a"]
    for committed in (True, False):
        broker = Playing(was.loaded, CAUSAL)
        transact(broker.connect(), "a", committed=committed)
        assert len(findings(broker)) == (0 if committed else 1)


@pytest.mark.parametrize("committed", [True, None])
def test_in_semantic_mode_too_it_counts_when_it_is_committed(committed: bool | None) -> None:
    was = Recorded().metadata()
    response = messages.InitProducerIdResponse(producer_id=5, producer_epoch=1)
    request = messages.InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000)
    was.add(4, request, response)
    more = {"producer_id": 5, "producer_epoch": 1, "transactional": True}
    was.produced(batch("a", **more), 0)
    body = messages.EndTxnRequest(
        transactional_id="t", producer_id=5, producer_epoch=1, committed=True
    )
    was.add(3, body, messages.EndTxnResponse())
    settings = attrs.evolve(CAUSAL, mode=Mode.SEMANTIC)
    broker = Playing(was.loaded_for(Mode.SEMANTIC), settings)
    client = broker.connect()
    identity = init(client)
    client.produce(written(identity, "a"))
    if committed:
        end(client, identity, True)
        assert client.values(isolation_level=1) == ["a"]
    assert len(findings(broker)) == (0 if committed else 1)


def test_a_second_producer_fences_the_first() -> None:
    client = Playing(Recorded().metadata().loaded).connect()
    first, second = init(client), init(client)
    assert (second.producer_id, second.producer_epoch) == (first.producer_id, 1)
    assert error_name(end(client, first, True).error_code) == "PRODUCER_FENCED"
    answer = client.produce(written(first, "a"))
    assert error_name(answer.error_code) == "INVALID_PRODUCER_EPOCH"


def test_what_a_fenced_producer_had_open_is_aborted() -> None:
    client = Playing(Recorded().metadata().loaded).connect()
    first = init(client)
    begin(client, first)
    client.produce(written(first, "a"))
    second = init(client)
    assert second.producer_id == first.producer_id
    found = client.fetch(0, isolation_level=1)
    assert [each.first_offset for each in found.aborted_transactions] == [0]
    assert found.last_stable_offset == 2, "its marker stands behind it"
    begin(client, second)
    client.produce(written(second, "b"))
    end(client, second, True)
    aborted = client.fetch(0, isolation_level=1).aborted_transactions
    assert [each.first_offset for each in aborted] == [0], "the new one commits its own alone"


def test_idempotent_producers_get_ids_of_their_own() -> None:
    client = Playing(Recorded().metadata().loaded).connect()
    assert init(client, None).producer_id != init(client, None).producer_id


def test_end_txn_5_bumps_the_epoch() -> None:
    client = Playing(Recorded().metadata().loaded).connect()
    identity = init(client)
    begin(client, identity)
    answer = end(client, identity, True, version=5)
    assert (answer.producer_id, answer.producer_epoch) == (identity.producer_id, 1)


def test_offsets_of_a_transaction_count_when_it_is_committed() -> None:
    client = Playing(Recorded().metadata().loaded).connect()
    for committed, expected in ((False, -1), (True, 7)):
        identity = init(client)
        request = messages.AddOffsetsToTxnRequest
        names = {
            "transactional_id": "t",
            "producer_id": identity.producer_id,
            "producer_epoch": identity.producer_epoch,
            "group_id": "g",
        }
        assert client.ask(3, request(**names)).error_code == 0
        request = messages.TxnOffsetCommitRequest
        one = request.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=7, committed_metadata=""
        )
        topic = request.TxnOffsetCommitRequestTopic(name="orders", partitions=[one])
        answer = client.ask(3, request(**names, topics=[topic]))
        assert answer.topics[0].partitions[0].error_code == 0
        unstable = offset_fetch("g")
        unstable.require_stable = True
        (found,) = client.ask(8, unstable).groups[0].topics[0].partitions
        assert error_name(found.error_code) == "UNSTABLE_OFFSET_COMMIT"
        end(client, identity, committed)
        (found,) = client.ask(8, unstable).groups[0].topics[0].partitions
        assert (found.error_code, found.committed_offset) == (0, expected)


def test_transactions_are_listed_and_described() -> None:
    client = Playing(Recorded().metadata().loaded).connect()
    identity = init(client)
    begin(client, identity)
    (listed,) = client.ask(0, messages.ListTransactionsRequest()).transaction_states
    assert (listed.transactional_id, listed.transaction_state) == ("t", "Ongoing")
    request = messages.DescribeTransactionsRequest
    (found,) = client.ask(0, request(transactional_ids=["t"])).transaction_states
    assert [(each.topic, each.partitions) for each in found.topics] == [("orders", [0])]
