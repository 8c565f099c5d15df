"""`kproxy demo --fault RULE`: a producer and a consumer under fault rules, without a broker.

::

    producer, group consumer ─▶ kproxy with rules ─▶ librdkafka's mock cluster (three brokers)
                                   └─▶ a recording, and the exchanges as they pass

The mock cluster is part of confluent-kafka. Unlike a recording as the broker, it accepts whatever
clients do under faults, such as writing records twice. It answers ApiVersions 3+ with a malformed
error; kproxy passes that on and records it unchanged.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TextIO

import confluent_kafka

from kproxy.demo import RECORDS, DemoFailed, produce, show_through_kproxy, subscribed
from kproxy.levels import Level
from kproxy.look.lines.output import TextOutput
from kproxy.net import serve
from kproxy.proxy.faults import Rules, table
from kproxy.proxy.settings import Settings

_BROKERS = 3
_WAIT_SECONDS = 12.0
_LISTEN_ON_SECONDS = 1.0
_CLOSE_SECONDS = 10.0
_QUIET = {"log_level": 0}


def run(path: Path, out: TextIO, rules: Rules) -> int:
    """Run the experiment, leave the recording at `path`; return the exit code."""
    # The mock cluster lives inside the client that asks for it, under addresses of its own.
    owner = confluent_kafka.Producer(
        {"bootstrap.servers": "-", "test.mock.num.brokers": _BROKERS, **_QUIET}
    )
    brokers = owner.list_topics(timeout=_WAIT_SECONDS).brokers.values()
    settings = Settings([(broker.host, broker.port) for broker in brokers])
    output = TextOutput(out)
    options = serve.Options(settings, record_path=path, rules=rules)

    def log(text: str, level: Level = "info", /) -> None:
        output.put(f"kproxy: {text}\n")

    try:
        result = show_through_kproxy(output, options, _work, log)
    except DemoFailed as error:
        print(f"kproxy demo: {error}", file=sys.stderr)
        return 1
    if result is None:
        output.put(f"\nEnded before the clients were done.\n\nRecorded: {path}\n")
        output.finish()
        return 1
    delivered, consumed = result
    twice = sum(count == 2 for count in consumed.values())
    got = f"{len(consumed)} of {RECORDS} records" + (f", {twice} of them twice" if twice else "")
    output.put(f"\nThe producer was told that {delivered} of {RECORDS} records are written;\n")
    output.put(f"the consumer got {got}.\n\n{table(rules.rules)}\n\nRecorded: {path}\n")
    output.finish()
    return 0


def _work(address: str) -> tuple[int, Counter[bytes]]:
    """Run the clients; return the number of delivered records, and the consumed ones."""
    delivered = produce(address)
    consumer = subscribed(address)
    consumed = _consume(consumer)
    closing = threading.Thread(target=_close, args=(consumer,), daemon=True)
    closing.start()
    closing.join(_CLOSE_SECONDS)  # librdkafka may wait for ever
    return delivered, consumed


def _consume(consumer: confluent_kafka.Consumer) -> Counter[bytes]:
    """Read in a group; return how often each record came.

    After the last record, read on for a moment, to find duplicates.
    """
    consumed: Counter[bytes] = Counter()
    until = time.monotonic() + _WAIT_SECONDS
    while time.monotonic() < until:
        message = consumer.poll(0.2)
        if message is None or message.error() is not None:
            continue
        complete = len(consumed) == RECORDS
        consumed[message.value() or b""] += 1
        if len(consumed) == RECORDS and not complete:
            until = time.monotonic() + _LISTEN_ON_SECONDS
    return consumed


def _close(consumer: confluent_kafka.Consumer) -> None:
    """Commit, and leave the group."""
    with contextlib.suppress(confluent_kafka.KafkaException):  # which may be what was broken
        consumer.commit(asynchronous=False)
    consumer.close()
