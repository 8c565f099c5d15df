"""`kproxy why transactional_id:X`: what each transaction wrote, and who fenced a producer."""

from __future__ import annotations

from typing import Any

from kproxy.wire.protocol import messages as M
from kproxy.wire.protocol import records
from kproxy.wire.protocol.record_batch import Record
from tests.exchange.bodies import produce_request, produce_response
from tests.look.why.traffic import Traffic, body


def batch(count: int, epoch: int, sequence: int, producer_id: int = 7) -> bytes:
    found = [Record(i, 0, b"k", b"v", ()) for i in range(count)]
    return records.encode_batch(
        found,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )


def initialize(epoch: int, error: int = 0, own: tuple[int, int] = (-1, -1), producer_id: int = 7):
    asked = M.InitProducerIdRequest(
        transactional_id="pay",
        transaction_timeout_ms=60_000,
        producer_id=own[0],
        producer_epoch=own[1],
    )
    answer = M.InitProducerIdResponse(
        error_code=error, producer_id=producer_id, producer_epoch=epoch
    )
    return "InitProducerId", 4, asked, answer


def produce(epoch: int, sequence: int, offset: int, count: int = 3, error: int = 0):
    asked = produce_request({0: batch(count, epoch, sequence)}, transactional_id="pay")
    return "Produce", 9, asked, produce_response({0: -1 if error else offset}, error)


def add(epoch: int, *partitions: int, error: int = 0):
    given = {"transactional_id": "pay", "producer_id": 7, "producer_epoch": epoch}
    given |= {"topics": [{"name": "orders", "partitions": list(partitions)}]}
    older = {f"v3_and_below_{name}": value for name, value in given.items()}
    results = [{"partition_index": each, "partition_error_code": error} for each in partitions]
    found = [{"name": "orders", "results_by_partition": results}]
    told = body("AddPartitionsToTxnResponse", results_by_topic_v3_and_below=found)
    return "AddPartitionsToTxn", 3, body("AddPartitionsToTxnRequest", **older), told


def end(epoch: int, committed: bool = True, error: int = 0, version: int = 3, **raised: Any):
    asked = M.EndTxnRequest(
        transactional_id="pay", producer_id=7, producer_epoch=epoch, committed=committed
    )
    return "EndTxn", version, asked, M.EndTxnResponse(error_code=error, **raised)


def told(traffic: Traffic, tmp_path) -> list[str]:
    return traffic.story(tmp_path, "transactional_id", "pay")


def test_transactions_that_were_committed_and_aborted(tmp_path):
    traffic = Traffic()
    traffic.add(0, *initialize(0), client="shop")
    traffic.add(10, *add(0, 0, 1), client="shop")
    traffic.add(20, *produce(0, 0, 5), client="shop")
    traffic.add(21, *produce(0, 0, 5), client="shop")  # sent again: the broker knows it
    offsets = M.AddOffsetsToTxnRequest(
        transactional_id="pay", producer_id=7, producer_epoch=0, group_id="billing"
    )
    traffic.add(22, "AddOffsetsToTxn", 3, offsets, M.AddOffsetsToTxnResponse(), client="shop")
    where = {"partition_index": 2, "committed_offset": 40}
    asked = body(
        "TxnOffsetCommitRequest", transactional_id="pay", group_id="billing", producer_id=7,
        topics=[{"name": "in", "partitions": [where]}],
    )  # fmt: skip
    traffic.add(25, "TxnOffsetCommit", 3, asked, M.TxnOffsetCommitResponse(), client="shop")
    traffic.add(50, *end(0), client="shop")
    traffic.add(100, *produce(0, 3, 9, count=1), client="shop")
    traffic.add(130, *end(0, committed=False), client="shop")
    assert told(traffic, tmp_path) == [
        (
            "Transactional id pay: 1 producer in the recording; 2 transactions (1 committed,"
            " 1 aborted); the longest took 41.0 ms (until EndTxn #7)."
        ),
        (
            "22:13:20.000 shop (127.0.0.1) initializes it: producer id 7, epoch 0, transaction"
            " timeout 60.0 s (InitProducerId #1)."
        ),
        (
            "22:13:20.010 transaction 1, begun with AddPartitionsToTxn #2: orders[0] 3 records"
            " @5..7, orders[1] added; offsets of group billing: in[2@40]; committed with"
            " EndTxn #7 after 41.0 ms."
        ),
        (
            "22:13:20.100 transaction 2, begun with Produce #8: orders[0] 1 record @9; aborted with"
            " EndTxn #9 after 31.0 ms."
        ),
    ]


def test_a_producer_that_another_one_fenced(tmp_path):
    traffic = Traffic()
    traffic.add(0, *initialize(0), client="old")
    traffic.add(10, *add(0, 0), client="old")
    traffic.add(20, *produce(0, 0, 5), client="old")
    traffic.add(5000, *initialize(1), client="new", connection=2)
    traffic.add(6000, *produce(0, 3, 9, error=47), client="old")
    traffic.add(6100, *end(0, error=90), client="old")
    _, _, *lines = told(traffic, tmp_path)
    taken = (
        "It has epoch 0 (given by InitProducerId #1); new (127.0.0.1) took the transactional id at"
        " 22:13:25.000 with InitProducerId #4 and got epoch 1."
    )
    assert lines == [
        (
            "22:13:20.010 transaction 1, begun with AddPartitionsToTxn #2: orders[0] 3 records"
            " @5..7; aborted with InitProducerId #4 after 5.0 s."
        ),
        (
            "22:13:25.000 new (127.0.0.1) initializes it: producer id 7, epoch 1, transaction"
            " timeout 60.0 s (InitProducerId #4); requests with an earlier epoch, such as epoch 0"
            " of old (127.0.0.1) (InitProducerId #1), are refused from now on."
        ),
        f"22:13:26.000 Produce #5 of old (127.0.0.1) is refused: INVALID_PRODUCER_EPOCH. {taken}",
        f"22:13:26.100 EndTxn #6 of old (127.0.0.1) is refused: PRODUCER_FENCED. {taken}",
    ]


def test_a_producer_that_raises_its_own_epoch_fences_nobody(tmp_path):
    traffic = Traffic()
    traffic.add(0, *initialize(0), client="shop")
    traffic.add(20, *initialize(1, own=(7, 0)), client="shop")
    traffic.add(30, *produce(1, 0, 5), client="shop")
    traffic.add(40, *end(1, version=5, producer_id=7, producer_epoch=2), client="shop")  # KIP-890
    traffic.add(50, *produce(2, 0, 9), client="shop")
    traffic.add(60, *end(2, version=5, producer_id=7, producer_epoch=3), client="shop")
    traffic.add(90, *produce(1, 3, 9, error=47), client="shop")
    lines = told(traffic, tmp_path)
    assert lines[0].startswith("Transactional id pay: 1 producer in the recording; 2 transactions")
    assert "shop (127.0.0.1) raises its own epoch: producer id 7, epoch 1" in lines[2]
    assert lines[-1].endswith(
        "It has epoch 1 (given by InitProducerId #2); who took the transactional id is not in the"
        " recording."
    )
    assert not [line for line in lines if "from now on" in line]


def test_a_transaction_that_was_open_for_too_long(tmp_path):
    traffic = Traffic()
    traffic.add(0, *initialize(0), client="shop")
    traffic.add(20, *produce(0, 0, 5), client="shop")
    traffic.add(70_020, *end(0, error=47), client="shop")
    lines = told(traffic, tmp_path)
    assert lines[-2].endswith(
        "its transaction had been open for 70.0 s, and brokers abort one that is open for longer"
        " than transaction.timeout.ms (60.0 s)."
    )
    assert lines[-1] == (
        "22:13:20.020 transaction begun with Produce #2: orders[0] 3 records @5..7; whether it was"
        " committed or aborted is not in the recording."
    )


def test_an_own_epoch_is_not_taken_by_another(tmp_path):
    traffic = Traffic()
    traffic.add(0, *initialize(4, own=(7, 3)), client="shop")
    traffic.add(10, *produce(3, 0, 5, error=47), client="shop")
    lines = told(traffic, tmp_path)
    assert lines[2].endswith(
        "It has epoch 3; who took the transactional id is not in the recording."
    )
