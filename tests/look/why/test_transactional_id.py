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
