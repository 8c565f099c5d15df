"""Partitioners: the same partitions as those of the clients that they are named after."""

from __future__ import annotations

import random

import pytest
from confluent_kafka import Producer

from kproxy.exchange.partitioners import murmur2, placements

KEYS = [random.Random(7).randbytes(size) for size in range(1, 60)]
VECTORS = {  # of Java's UtilsTest.testMurmur2
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def test_murmur2_is_that_of_java():
    for key, hashed in VECTORS.items():
        assert murmur2(key) == hashed & 0xFFFFFFFF


def test_murmur2_is_that_of_the_clients_in_python():
    from aiokafka.partitioner import murmur2 as aiokafka_murmur2
    from kafka.partitioner.default import murmur2 as kafka_python_murmur2

    for key in KEYS:
        assert murmur2(key) == kafka_python_murmur2(key) & 0xFFFFFFFF
        assert murmur2(key) == aiokafka_murmur2(key) & 0xFFFFFFFF


@pytest.mark.parametrize(
    ("partitioner", "name"),
    [("consistent_random", "CRC32"), ("murmur2_random", "murmur2"), ("fnv1a_random", "FNV-1a")],
)
def test_placements_are_those_of_librdkafka(partitioner, name):
    settings = {"bootstrap.servers": "mock", "test.mock.num.brokers": 1}
    producer = Producer({**settings, "partitioner": partitioner, "linger.ms": 0})
    placed = {}

    def on_delivery(error, message):
        assert error is None
        placed[message.key()] = message.partition()

    for key in KEYS:
        producer.produce("orders", key=key, value=b"", on_delivery=on_delivery)
    producer.flush(10)
    partition_count = len(producer.list_topics("orders").topics["orders"].partitions)
    assert partition_count > 1
    assert placed == {key: placements(key, partition_count)[name] for key in KEYS}
