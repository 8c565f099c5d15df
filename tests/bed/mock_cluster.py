"""librdkafka's mock cluster as a program of its own: three brokers that need no Java.

`running` starts it; run as a program it prints its brokers' addresses and stays until its standard
input ends. What it is known to answer wrongly: ApiVersions 3+ (a malformed error) and Metadata 9+
(one byte too many). librdkafka, aiokafka and KafkaJS cope.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

BROKERS = 3


@contextlib.contextmanager
def running() -> Iterator[str]:
    """A mock cluster; yields its bootstrap addresses, comma-separated."""
    process = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin and process.stdout
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait(timeout=10)
        process.stdout.close()


def main() -> None:
    """Start the cluster, say where it is, wait for the end of standard input."""
    from confluent_kafka import Producer

    # The cluster lives inside the client instance that asked for it, under addresses of its own.
    quiet = {"log_level": 3}
    owner = Producer({"bootstrap.servers": "-", "test.mock.num.brokers": BROKERS, **quiet})
    brokers = owner.list_topics(timeout=10).brokers.values()
    print(",".join(f"{each.host}:{each.port}" for each in brokers), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
