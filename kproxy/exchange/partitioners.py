"""The partitioners of Kafka clients: the partition that each gives to a record's key.

A partitioner hashes the key and takes the remainder by the number of partitions. The three hashes
here are the defaults of nearly all clients; an app may have a partitioner of its own.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable

_32_BITS = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """Return the 32-bit MurmurHash2 of a key, with the seed of Kafka's Java client."""
    m, length = 0x5BD1E995, len(key)
    h = 0x9747B28C ^ length
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(key[at : at + 4], "little") * m & _32_BITS
        k = (k ^ k >> 24) * m & _32_BITS
        h = h * m & _32_BITS ^ k
    if rest := key[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m & _32_BITS
    h = (h ^ h >> 13) * m & _32_BITS
    return h ^ h >> 15


def fnv1a(key: bytes) -> int:
    """Return the 32-bit FNV-1a of a key, of which Go clients take the absolute value."""
    h = 0x811C9DC5
    for byte in key:
        h = (h ^ byte) * 0x01000193 & _32_BITS
    return (1 << 32) - h if h >> 31 else h


PARTITIONERS: dict[str, tuple[Callable[[bytes], int], str]] = {
    "murmur2": (
        lambda key: murmur2(key) & 0x7FFFFFFF,
        "the default of Java's client, kafka-python, aiokafka and KafkaJS",
    ),
    "CRC32": (zlib.crc32, "the default of librdkafka and of its bindings, such as confluent-kafka"),
    "FNV-1a": (fnv1a, "the default of Sarama"),
}
"""Name → hash of a key that is not empty, and the clients that use it without other settings."""


def placements(key: bytes, partition_count: int) -> dict[str, int]:
    """Return the partition that each partitioner gives to a key."""
    return {name: hash_of(key) % partition_count for name, (hash_of, _) in PARTITIONERS.items()}


def agreeing(
    key: bytes, partition: int, partition_count: int, among: Iterable[str] = tuple(PARTITIONERS)
) -> list[str]:
    """Return the names of the partitioners that give this partition to a key."""
    return [name for name in among if PARTITIONERS[name][0](key) % partition_count == partition]
