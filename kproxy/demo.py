"""`kproxy demo`: the whole tool at work, with nothing to install beside it.

::

    producer, group consumer ─▶ kproxy ─▶ librdkafka's mock cluster (three brokers)
                                   └─▶ a recording, and the exchanges as they pass

The mock cluster is part of confluent-kafka. It answers ApiVersions 3+ with a malformed error and
some Metadata with one byte too many; kproxy passes that on and records it as it came.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import confluent_kafka
import trio

from kproxy.net import serve
from kproxy.net.listeners import ListenError
from kproxy.proxy.settings import Settings
from kproxy.recording import RecordingError
from kproxy.view.live import Live
from kproxy.view.output import Output

_BROKERS = 3
_TOPIC = "orders"
_RECORDS = 12
_WAIT_SECONDS = 12.0
_QUIET = {"log_level": 0}


def run(path: Path, out: TextIO) -> int:
    """Run the demo, leave the recording at `path`; return the exit code."""
    # The mock cluster lives inside the client that asks for it, under addresses of its own.
    owner = confluent_kafka.Producer(
        {"bootstrap.servers": "-", "test.mock.num.brokers": _BROKERS, **_QUIET}
    )
    brokers = owner.list_topics(timeout=_WAIT_SECONDS).brokers.values()
    bootstrap = [(broker.host, broker.port) for broker in brokers]
    code = 1
    try:
        code = trio.run(_demo, bootstrap, path, out)
    except* (ListenError, RecordingError, OSError) as errors:
        print(f"kproxy demo: {errors.exceptions[0]}", file=sys.stderr)
    return code


async def _demo(bootstrap: list[tuple[str, int]], path: Path, out: TextIO) -> int:
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

    options = serve.Options(Settings(bootstrap), record_path=path)
    say(f"A mock cluster of {_BROKERS} brokers is up at {bootstrap[0][0]}:{bootstrap[0][1]}.")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_serve, options, ready, say, live, stop)
        await listening.wait()
        say(f"kproxy stands in front of it at {addresses[0]}. A producer sends {_RECORDS} records")
        say(f"to {_TOPIC!r}, and a group consumer reads them, through it:\n")
        consumed = await trio.to_thread.run_sync(_work, addresses[0])
        stop.set()
    live.finish()
    say(f"\nThe consumer got {consumed} of {_RECORDS} records. Both believed kproxy to be Kafka.")
    say("All of it is recorded. Look at it:\n")
    program = _program()
    say(f"    {program} show {path}")
    say(f"    {program} show --json {path}\n")
    say("With a cluster of yours (give your application the address that it prints):\n")
    say(f"    {program} run --bootstrap HOST:PORT")
    output.finish()
    return 0 if consumed == _RECORDS else 1


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


def _work(bootstrap: str) -> int:
    """Produce and consume through the proxy; return how many records came back."""
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
    consumed = 0
    for _ in itertools.repeat(None, int(_WAIT_SECONDS / 0.2)):
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            consumed += 1
            if consumed == _RECORDS:
                consumer.commit(asynchronous=False)
                break
    consumer.close()
    return consumed
