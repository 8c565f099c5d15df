"""`kproxy demo`: record, replay and faults at work, without a broker.

::

    1  producer, group consumer ─▶ kproxy ─▶ stand-in        recorded, and shown as it passes
    2            group consumer ─▶ the new recording         the same records, no broker
    3  producer ─▶ kproxy with a fault ─▶ the new recording  the client survives it

The stand-in is a recording of three brokers of Apache Kafka, made by `python -m
tests.bed.demo_recording` with the clients of the first step. They produce the same records again,
so the recording answers as those brokers did.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any, TextIO, TypeVar

import attrs
import confluent_kafka
import trio

from kproxy.levels import Logger, silent
from kproxy.look.lines.live import Live
from kproxy.look.lines.output import TextOutput
from kproxy.net import serve
from kproxy.net.listeners import ListenError
from kproxy.net.tls.settings import BrokerTls, ListenTls, Trust
from kproxy.proxy.faults import Rules, rule_from_flag
from kproxy.proxy.settings import Settings
from kproxy.recording import RecordingError

TOPIC = "orders"
RECORDS = 12
FAULT = "name=moved api=Produce topic=orders error=NOT_LEADER_OR_FOLLOWER times=1"

_WAIT_SECONDS = 12.0
_POLL_SECONDS = 0.1
_QUIET = {"log_level": 0}

Result = TypeVar("Result")
DemoRecord = tuple[int | None, int | None, bytes | None, bytes | None]
"""Partition, offset, key, value."""


class DemoFailed(Exception):
    """A step did not work; the text says which and why."""


@attrs.frozen
class Tls:
    """TLS between the clients, kproxy and the brokers, by kproxy's own CA."""

    ca: Path
    """The certificate of the CA."""


def _trusting(tls: Tls | None) -> dict[str, str]:
    """Return what clients are told of TLS."""
    if tls is None:
        return {}
    return {"security.protocol": "SSL", "ssl.ca.location": str(tls.ca)}


# ---- the clients


def produce(bootstrap: str, tls: Tls | None = None) -> int:
    """Produce the demo's records; return how many the brokers have acknowledged."""
    delivered = 0

    def report(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        nonlocal delivered
        delivered += error is None

    common = {"bootstrap.servers": bootstrap, "client.id": "shop", **_QUIET, **_trusting(tls)}
    producer = confluent_kafka.Producer({**common, "linger.ms": 50})
    for number in range(RECORDS):
        value = f'{{"order": {number}, "state": "{"paid" if number % 3 else "new"}"}}'
        producer.produce(TOPIC, key=f"customer-{number % 4}", value=value, on_delivery=report)
    producer.flush(_WAIT_SECONDS)
    return delivered


def subscribed(bootstrap: str, tls: Tls | None = None) -> confluent_kafka.Consumer:
    """Return a consumer in the demo's group, which reads from the beginning."""
    settings = {
        "bootstrap.servers": bootstrap,
        "client.id": "billing",
        "group.id": "billing",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        **_QUIET,
        **_trusting(tls),
    }
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe([TOPIC])
    return consumer


def consume(bootstrap: str, tls: Tls | None = None) -> list[DemoRecord]:
    """Read the demo's records in a group, and commit; return them."""
    consumer = subscribed(bootstrap, tls)
    found: list[DemoRecord] = []
    for _ in itertools.repeat(None, int(_WAIT_SECONDS / _POLL_SECONDS)):
        message = consumer.poll(_POLL_SECONDS)
        if message is not None and message.error() is None:
            found.append((message.partition(), message.offset(), message.key(), message.value()))
        if len(found) == RECORDS:
            consumer.commit(asynchronous=False)
            break
    consumer.close()
    return sorted(found)


# ---- the steps


@attrs.frozen
class _Stage:
    """The output of the demo, and the name of the command to print in examples."""

    output: TextOutput
    program: str
    tls: Tls | None

    def say(self, text: str) -> None:
        """Show some lines of text."""
        self.output.put(f"{text}\n")

    def command(self, *words: str | Path) -> str:
        """Return a command as the user can type it."""
        return f"{self.program} {shlex.join(map(str, words))}"


def run(path: Path, out: TextIO, tls: Tls | None = None) -> int:
    """Run the demo, leave the recording at `path`; return the exit code."""
    output = TextOutput(out)
    stage = _Stage(output, _program(), tls)
    secured = ("--listen-tls", "auto") if tls else ()
    try:
        with _replaying(stand_in(), "--visible", "causal", *secured) as bootstrap:
            recorded = _record(stage, bootstrap, path)
        with _replaying(path, *secured) as bootstrap:
            _replay(stage, bootstrap, path, recorded)
        with _replaying(path, "--visible", "causal", *secured) as bootstrap:
            _break(stage, bootstrap)
    except DemoFailed as error:
        output.finish()
        print(f"kproxy demo: {error}", file=sys.stderr)
        return 1
    _conclude(stage, path)
    output.finish()
    return 0


def _record(stage: _Stage, bootstrap: str, path: Path) -> list[DemoRecord]:
    """Record a producer and a group consumer; return what the consumer got."""
    stage.say("1. RECORD  kproxy stands in front of three Kafka brokers: a recording of real")
    by_tls = ", by TLS on both sides" if stage.tls else ""
    stage.say(f"   ones. A producer and a group consumer work through it{by_tls}:\n")

    def work(address: str) -> list[DemoRecord]:
        produce(address, stage.tls)
        return consume(address, stage.tls)

    recorded = _run_or_fail(stage, _options(stage, bootstrap, record_path=path), work)
    if len(recorded) != RECORDS:
        raise DemoFailed(f"the consumer got {len(recorded)} of {RECORDS} records")
    stage.say(
        f"\n   The consumer got {RECORDS} of {RECORDS} records. All that passed is recorded.\n"
    )
    return recorded


def _replay(stage: _Stage, bootstrap: str, path: Path, recorded: list[DemoRecord]) -> None:
    """Have the consumer read the same records from the new recording."""
    stage.say("2. REPLAY  Those brokers are stopped. The new recording is the broker now:\n")
    secured = ("--listen-tls", "auto") if stage.tls else ()
    stage.say(f"   $ {stage.command('replay', path, *secured)}\n")
    started = time.monotonic()
    consumed = consume(bootstrap, stage.tls)
    took = time.monotonic() - started
    if consumed != recorded:
        raise DemoFailed(f"the consumer got other records from {path} than it had before")
    stage.say(
        f"   The same consumer got {RECORDS} of {RECORDS} records in {took:.1f} s: the same keys,"
    )
    stage.say("   values, partitions and offsets.\n")


def _break(stage: _Stage, bootstrap: str) -> None:
    """Inject one fault and show how the producer survives it."""
    stage.say("3. BREAK  A broker says once that it leads a partition no longer:\n")
    tls = stage.tls
    secured = ("--broker-tls-ca", tls.ca, "--listen-tls", "auto") if tls else ()
    words = ("run", "--bootstrap", bootstrap, "--fault", FAULT, *secured)
    stage.say(f"   $ {stage.command(*words)}\n")
    rules = Rules([rule_from_flag(FAULT)])
    options = _options(stage, bootstrap, rules=rules)
    delivered = _run_or_fail(stage, options, lambda address: produce(address, tls))
    if delivered != RECORDS or rules.rules[0].fired != 1:
        raise DemoFailed(f"the producer delivered {delivered} of {RECORDS} records after a fault")
    stage.say("\n   The producer asked for Metadata again, sent again, and delivered")
    stage.say(f"   {RECORDS} of {RECORDS} records, each once.\n")


def _conclude(stage: _Stage, path: Path) -> None:
    stage.say("Look at what was recorded:\n")
    stage.say(f"    {stage.command('show', path)}")
    stage.say(f"    {stage.command('show', '--json', path)}\n")
    stage.say("With a cluster of yours (give your application the address that it prints):\n")
    stage.say(f"    {stage.program} run --bootstrap HOST:PORT")


# ---- brokers and proxies


def stand_in() -> Path:
    """Return the recording that is the broker in the first step: in a checkout, or as installed."""
    checkout = Path(__file__).parents[1] / "recordings" / "demo.mcap"
    return checkout if checkout.exists() else Path(__file__).with_name("demo.mcap")


@contextlib.contextmanager
def _replaying(recording: Path, *options: str) -> Generator[str]:
    """Replay a recording in another process; yield its bootstrap address."""
    command = [sys.executable, "-P", "-m", "kproxy", "replay", str(recording), *options]
    command += ["--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    try:
        assert process.stdout is not None
        bootstrap = process.stdout.readline().strip()
        if not bootstrap:
            _, error = process.communicate(timeout=_WAIT_SECONDS)
            raise DemoFailed(f"no replay of {recording}: {error.strip()}")
        yield bootstrap
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=_WAIT_SECONDS)
        if process.returncode:
            raise DemoFailed(f"the clients differ from {recording}: {error.strip()}")
    finally:
        process.kill()
        process.communicate()


def _options(stage: _Stage, bootstrap: str, **more: Any) -> serve.Options:
    """Return what kproxy does before these brokers."""
    host, _, port = bootstrap.rpartition(":")
    if stage.tls:
        more |= {"broker_tls": BrokerTls(Trust(stage.tls.ca)), "listen_tls": ListenTls()}
    return serve.Options(Settings([(host, int(port))]), **more)


def _run_or_fail(stage: _Stage, options: serve.Options, work: Callable[[str], Result]) -> Result:
    result = show_through_kproxy(stage.output, options, work)
    if result is None:
        raise DemoFailed("it ended before the clients were done")
    return result


def show_through_kproxy(
    output: TextOutput,
    options: serve.Options,
    work: Callable[[str], Result],
    log: Logger = silent,
) -> Result | None:
    """Run kproxy and show the exchanges while `work` runs with its address; return its result, or
    None if a signal ends kproxy before.

    Raises:
        DemoFailed: kproxy cannot run.
    """
    live = Live(output)

    async def play() -> Result | None:
        stop, listening, result = trio.Event(), trio.Event(), None
        addresses: list[str] = []

        def ready(address: str) -> None:
            addresses.append(address)
            listening.set()

        async with trio.open_nursery() as nursery:

            async def until_stopped() -> None:
                await serve.serve(options, ready, log, live.watch, stop)
                nursery.cancel_scope.cancel()

            nursery.start_soon(until_stopped)
            await listening.wait()
            # The clients are left alone where a signal ends it: librdkafka may wait for ever.
            work_here = partial(work, addresses[0])
            result = await trio.to_thread.run_sync(work_here, abandon_on_cancel=True)
            stop.set()
        return result

    try:
        result = trio.run(play)
    except* (ListenError, RecordingError, OSError) as errors:
        raise DemoFailed(str(errors.exceptions[0])) from None
    live.finish()
    return result


def _program() -> str:
    """Return the command to type for kproxy: its name if on the path, else as it was called."""
    called = sys.argv[0]
    on_path = shutil.which("kproxy")
    if on_path and os.path.samefile(on_path, called):
        return "kproxy"
    return called if os.access(called, os.X_OK) else f"{sys.executable} -m kproxy"
