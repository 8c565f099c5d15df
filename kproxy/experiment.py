"""An experiment without a cluster: `kproxy demo --fault RULE`.

::

    producer, group consumer ─▶ kproxy with rules ─▶ librdkafka's mock cluster (three brokers)
                                   └─▶ a recording, and the exchanges as they pass

The rules break it, to see what the clients make of that. The mock cluster is part of
confluent-kafka. It answers ApiVersions 3+ with a malformed error and some Metadata with one byte
too many; kproxy passes that on and records it as it came.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import confluent_kafka
import trio

from kproxy.net import serve
from kproxy.net.listeners import ListenError
from kproxy.proxy.faults import Rules, table
from kproxy.proxy.settings import Settings
from kproxy.recording import RecordingError
from kproxy.view.live import Live
from kproxy.view.output import Output

_BROKERS = 3
_TOPIC = "orders"
_RECORDS = 12
_WAIT_SECONDS = 12.0
_LISTEN_ON_SECONDS = 1.0
_QUIET = {"log_level": 0}


def run(path: Path, out: TextIO, rules: Rules) -> int:
    """Run the demo with these fault rules, leave the recording at `path`; return the exit code."""
    # The mock cluster lives inside the client that asks for it, under addresses of its own.
    owner = confluent_kafka.Producer(
        {"bootstrap.servers": "-", "test.mock.num.brokers": _BROKERS, **_QUIET}
    )
    brokers = owner.list_topics(timeout=_WAIT_SECONDS).brokers.values()
    bootstrap = [(broker.host, broker.port) for broker in brokers]
    code = 1
    try:
        code = trio.run(_demo, bootstrap, path, out, rules)
    except* (ListenError, RecordingError, OSError) as errors:
        print(f"kproxy demo: {errors.exceptions[0]}", file=sys.stderr)
    return code


async def _demo(bootstrap: list[tuple[str, int]], path: Path, out: TextIO, rules: Rules) -> int:
    addresses: list[str] = []
    listening = trio.Event()
    stop = trio.Event()
    output = Output(out)
    live = Live(output)

    def ready(address: str) -> None:
        addresses.append(address)
        listening.set()

    def say(text: str) -> None:
        output.put(f"{text}\n")

    options = serve.Options(Settings(bootstrap), record_path=path, rules=rules)
    say(f"A mock cluster of {_BROKERS} brokers is up at {bootstrap[0][0]}:{bootstrap[0][1]}.")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_serve, options, ready, say, live, stop)
        await listening.wait()
        say(f"kproxy stands in front of it at {addresses[0]}. A producer sends {_RECORDS} records")
        say(f"to {_TOPIC!r}, and a group consumer reads them, through it:\n")
        seconds = _LISTEN_ON_SECONDS if rules.rules else 0
        consumed = await trio.to_thread.run_sync(_work, addresses[0], seconds)
        stop.set()
    live.finish()
    twice = sum(count == 2 for count in consumed.values())
    got = f"{len(consumed)} of {_RECORDS} records" + (f", {twice} of them twice" if twice else "")
    say(f"\nThe consumer got {got}. Both believed kproxy to be Kafka.")
    if rules.rules:
        say(f"What was broken on purpose:\n\n{table(rules.rules)}\n")
    say("All of it is recorded. Look at it:\n")
    program = _program()
    say(f"    {program} show {path}")
    say(f"    {program} show --json {path}\n")
    say("With a cluster of yours (give your application the address that it prints):\n")
    say(f"    {program} run --bootstrap HOST:PORT")
    output.finish()
    return 0 if len(consumed) == _RECORDS else 1


def _program() -> str:
    """What to type for kproxy here: its name if that is on the path, else how it was called."""
    called = sys.argv[0]
    on_path = shutil.which("kproxy")
    if on_path and os.path.samefile(on_path, called):
        return "kproxy"
    return called if os.access(called, os.X_OK) else f"{sys.executable} -m kproxy"


async def _serve(
    options: serve.Options,
    ready: Callable[[str], None],
    say: Callable[[str], None],
    live: Live,
    stop: trio.Event,
) -> None:
    await serve.serve(options, ready, say, live.watch, stop)


def _work(bootstrap: str, listen_on_seconds: float) -> Counter[bytes]:
    """Produce and consume through the proxy; return how often each record came back.

    When all have come, listen on for so long.
    """
    common = {"bootstrap.servers": bootstrap, **_QUIET}
    producer = confluent_kafka.Producer({**common, "client.id": "shop", "linger.ms": 50})
    for number in range(_RECORDS):
        value = f'{{"order": {number}, "state": "{"paid" if number % 3 else "new"}"}}'
        producer.produce(_TOPIC, key=f"customer-{number % 4}", value=value)
    producer.flush(_WAIT_SECONDS)
    consumer = confluent_kafka.Consumer(
        {
            **common,
            "client.id": "billing",
            "group.id": "billing",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([_TOPIC])
    consumed: Counter[bytes] = Counter()
    until = time.monotonic() + _WAIT_SECONDS
    while time.monotonic() < until:
        message = consumer.poll(0.2)
        if message is None or message.error() is not None:
            continue
        complete = len(consumed) == _RECORDS
        consumed[message.value()] += 1
        if len(consumed) == _RECORDS and not complete:
            until = time.monotonic() + listen_on_seconds
    if len(consumed) == _RECORDS:
        with contextlib.suppress(confluent_kafka.KafkaException):  # which is what was broken
            consumer.commit(asynchronous=False)
    consumer.close()
    return consumed
