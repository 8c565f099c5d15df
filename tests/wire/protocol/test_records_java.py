"""What we write, and what is damaged, read by Kafka's own Java client, record for record."""

from __future__ import annotations

import random
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from crc32c import crc32c

from kproxy.wire.protocol.compression import CODECS, compress
from kproxy.wire.protocol.message_sets import encode_message_set, message_bytes
from kproxy.wire.protocol.records import (
    Record,
    batches,
    encode_batch,
    end_transaction_marker,
    rebase,
)
from tests.bed import jvm

pytestmark = pytest.mark.java


DAMAGED = "damaged: "


def shown(data: bytes) -> str:
    """What RecordReader.java should print for `data`, going by our own reading of it: up to the
    first damage, which it names in its own words."""

    def text(content: bytes | None) -> str:
        return "null" if content is None else f"x{content.hex()}"

    lines = []
    found = batches(data)
    for batch in found:
        for record in batch.records:
            fields = [str(record.offset), str(record.timestamp)]
            fields += [text(record.key), text(record.value)]
            for name, value in record.headers:
                plain = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
                fields.append(f"{text(plain.encode())}={text(value)}")
            lines.append(",".join(fields) + ";")
        if batch.damage is not None:
            return f"{''.join(lines)}{DAMAGED}{batch.damage}"
    return "".join(lines) + ("" if found.damage is None else f"{DAMAGED}{found.damage}")


def read_by_java(data: Sequence[bytes], *arguments: str) -> list[str]:
    """What RecordReader.java prints for each."""
    jars = jvm.client_jars("4.3.1")
    classes = jvm.compiled(Path(__file__).parent / "RecordReader.java", jars)
    done = subprocess.run(
        jvm.java([classes, jars], "RecordReader", *arguments, heap="512m"),
        check=False,
        input="".join(f"{each.hex()}\n" for each in data),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(data)
    return lines


def made(choose: random.Random, magic: int, codec: str) -> bytes:
    """Some records of any kind: nulls, empty ones, text, noise, now and then several blocks."""

    def content() -> bytes | None:
        size = choose.choice([0, 1, 20, 300, 80_000 if choose.random() < 0.1 else 5])
        return choose.choice([None, b"abc " * size, choose.randbytes(size)])

    base = choose.randrange(1 << 40)
    records = [
        Record(
            base + index,
            choose.randrange(1 << 42),
            content(),
            content(),
            tuple((choose.choice(["", "h", "ü"]), content()) for _ in range(choose.randrange(3))),
        )
        for index in range(choose.randrange(1, 6))
    ]
    append_time = choose.choice([None, 1_700_000_000_000])
    if magic == 2:
        data = encode_batch(records, compression=codec, log_append_time=append_time)
        return data + rebase(data, base + 100)
    return encode_message_set(records, magic=magic, compression=codec, log_append_time=append_time)


def test_java_reads_every_record_that_we_write():
    choose = random.Random(4)
    marker = end_transaction_marker(7, 1, commit=False, coordinator_epoch=3)
    data = [encode_batch([marker], producer_id=5, producer_epoch=0, control=True)]
    for magic in (0, 1, 2):
        for codec in CODECS if magic == 2 else CODECS[:4]:
            data += [made(choose, magic, codec) for _ in range(15)]
    for each, line in zip(data, read_by_java(data, "checksums"), strict=True):
        assert line == shown(each)
        assert DAMAGED not in line


# ---- damage

Pack = Callable[[bytes], bytes]
Damaged = tuple[bytes, int]
"""The compressed bytes of a batch, and the count of records in its header."""


def _flipped(choose: random.Random, data: bytes) -> bytes:
    changed = bytearray(data or b"x")
    changed[choose.randrange(len(changed))] ^= 1 << choose.randrange(8)
    return bytes(changed)


def _joined(choose: random.Random, pack: Pack, plain: bytes, count: int) -> Damaged:
    at = choose.randrange(len(plain) + 1)
    return pack(plain[:at]) + pack(plain[at:]), count


def _behind(choose: random.Random, pack: Pack, plain: bytes, count: int) -> Damaged:
    size = choose.choice([1, 3, 4, 8, 17, 18, 19, 30])
    return pack(plain) + choose.choice([bytes(size), choose.randbytes(size)]), count


DAMAGE: dict[str, Callable[[random.Random, Pack, bytes, int], Damaged]] = {
    "none": lambda choose, pack, plain, count: (pack(plain), count),
    "a bit of a record": lambda choose, pack, plain, count: (pack(_flipped(choose, plain)), count),
    "records cut": lambda choose, pack, plain, count: (
        pack(plain[: choose.randrange(len(plain) + 1)]),
        count,
    ),
    "zeros at the end": lambda choose, pack, plain, count: (
        pack(plain + bytes(choose.choice([1, 7, 11, 12, 16, 30, 61]))),
        count,
    ),
    "another count": lambda choose, pack, plain, count: (
        pack(plain),
        choose.choice([0, -1, count - 1, count + 1, 2**31 - 1]),
    ),
    "count 0, nothing": lambda choose, pack, plain, count: (b"", 0),
    "a bit of the codec": lambda choose, pack, plain, count: (_flipped(choose, pack(plain)), count),
    "codec cut": lambda choose, pack, plain, count: (
        (whole := pack(plain))[: choose.randrange(len(whole) + 1)],
        count,
    ),
    "bytes behind": _behind,
    "streams joined": _joined,
    "header twice": lambda choose, pack, plain, count: (pack(plain)[:16] + pack(plain), count),
}


def damaged(choose: random.Random, magic: int, codec: str, kind: str) -> bytes:
    """A batch of some records, damaged in one way, with the right checksum around it."""
    number = choose.choice([1, 2, 3, 5, 40])
    records = [
        Record(
            index,
            choose.choice([1000 + index, choose.randrange(-(1 << 62), 1 << 62)]),
            choose.choice([None, b"", b"k%d" % index]),
            choose.choice([None, b"value %d" % index, choose.randbytes(choose.choice([9, 900]))]),
            ((choose.choice(["", "h", "ü"]), choose.choice([None, b"x"])),) * choose.randrange(3),
        )
        for index in range(number)
    ]

    def pack(plain: bytes) -> bytes:
        return compress(codec, plain, lz4_checksum_broken=magic == 0)

    if magic == 2:
        head, plain = (whole := encode_batch(records))[21:57], whole[61:]
        payload, count = DAMAGE[kind](choose, pack, plain, number)
        base = choose.choice([head[8:16], struct.pack(">q", 2**63 - 1 - choose.randrange(9))])
        head = struct.pack(">h", CODECS.index(codec)) + head[2:8] + base + head[16:]
        checked = head[:36] + struct.pack(">i", count) + payload
        return struct.pack(">qiibI", 5, len(checked) + 9, 0, 2, crc32c(checked)) + checked
    plain = encode_message_set(records, magic=magic)
    payload, _ = DAMAGE[kind](choose, pack, plain, number)
    if codec == "none":
        return payload
    attributes = CODECS.index(codec) | choose.choice([0, 8 * magic])
    offset = choose.choice([0, number - 1, 1000])
    return message_bytes(offset, magic, attributes, 77, None, payload)


PAIRS = [(magic, codec) for magic in (0, 1, 2) for codec in CODECS[: 5 if magic == 2 else 4]]


def test_damage_hides_no_more_than_from_java():
    """The records before the damage are Java's, and so is whether there is any."""
    choose = random.Random(5)
    cases: list[tuple[int, str, str]] = []
    data: list[bytes] = []
    for kind in DAMAGE:
        for magic, codec in PAIRS:
            for _ in range(10):
                one = damaged(choose, magic, codec, kind)
                if choose.random() < 0.3:
                    one = made(choose, magic, codec) + one
                if choose.random() < 0.5:
                    one += choose.choice([bytes(choose.choice([11, 12, 61])), choose.randbytes(40)])
                cases.append((magic, codec, kind))
                data.append(one)
    seen: dict[bool, int] = {False: 0, True: 0}
    for (magic, codec, kind), each, line in zip(cases, data, read_by_java(data), strict=True):
        java, is_damaged, why = line.partition(DAMAGED)
        ours, we_say_damaged, our_why = shown(each).partition(DAMAGED)
        about = f"magic {magic}, {codec}, {kind}: {each.hex()}; Java: {why}; we: {our_why}"
        if "Dependent block" in why:
            continue  # a bit more or less, and LZ4 is of a kind that other clients read
        if magic < 2 and "end in the middle of one" in our_why:
            is_damaged = DAMAGED  # Java gives what is whole, and says nothing
        if "a message of magic" in our_why:
            is_damaged, java = DAMAGED, ours  # only a checksum tells Java of it
        assert we_say_damaged == is_damaged, about
        # Java loses what stands in its buffer once the codec finds the damage.
        assert ours.startswith(java) if codec in ("snappy", "zstd") else ours == java, about
        seen[bool(is_damaged)] += bool(java)
    assert min(seen.values()) > 150, seen
