"""What we write, read by Kafka's own Java client, record for record."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from kproxy.protocol.compression import CODECS
from kproxy.protocol.message_sets import encode_message_set
from kproxy.protocol.records import (
    Record,
    batches,
    encode_batch,
    end_transaction_marker,
    rebase,
)
from tests.bed import jvm

pytestmark = pytest.mark.java


def shown(data: bytes) -> str:
    """What RecordReader.java should print for `data`, going by our own reading of it."""

    def text(content: bytes | None) -> str:
        return "null" if content is None else f"x{content.hex()}"

    lines = []
    for batch in batches(data):
        assert batch.crc_ok
        for record in batch.records:
            fields = [str(record.offset), str(record.timestamp)]
            fields += [text(record.key), text(record.value)]
            fields += [f"{text(name.encode())}={text(value)}" for name, value in record.headers]
            lines.append(",".join(fields) + ";")
    return "".join(lines)


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
    jars = jvm.client_jars("4.3.1")
    classes = jvm.compiled(Path(__file__).parent / "RecordReader.java", jars)
    done = subprocess.run(
        jvm.java([classes, jars], "RecordReader"),
        check=False,
        input="".join(f"{each.hex()}\n" for each in data),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(data)
    for each, line in zip(data, lines, strict=True):
        assert line == shown(each)
