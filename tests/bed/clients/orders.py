"""A test of an app that makes invoices of orders, as it is written for any broker.

`orders.py BOOTSTRAP PREFIX APP…` begins with topics and a group that are new, places the orders,
starts the app, and ends it (SIGTERM) when each order is in one of the app's topics:

    orders ─▶ APP, in the group `billing` ─▶ invoices, or rejected (a total below 0)

All names have the PREFIX. An order is `{"customer", "id", "at", "total"}`, of key customer, with a
header `trace`; an invoice is `{"id", "order", "at", "total"}` of the same key and header, with an
id of its own. The exit code is 1 where an order is missing `PATIENCE_SECONDS` after the one before,
or a second after the app has ended; else it is the app's own, and SIGTERM is no failure.
"""

from __future__ import annotations

import datetime
import json
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, Producer, TopicPartition, admin

TOTALS = {"c0": 11.5, "c1": 7.0, "c2": -1.0, "c3": 3.25, "c4": 9.0, "c8": 2.5}
"""By customer. The last order of each partition has an invoice, so that the last commit shows."""
PARTITIONS = {"orders": 2, "invoices": 1, "rejected": 1}
PATIENCE_SECONDS = 5


def begin_empty(
    bootstrap: str, prefix: str, partitions: Mapping[str, int], groups: Sequence[str]
) -> None:
    """Delete what an earlier run has left, and make topics anew: a replay does it again."""
    client = admin.AdminClient({"bootstrap.servers": bootstrap})
    left = [name for name in client.list_topics(timeout=10).topics if name.startswith(prefix)]
    deleted = client.delete_topics(left) if left else {}
    for each in (*deleted.values(), *client.delete_consumer_groups(list(groups)).values()):
        each.exception(30)  # it may not be there
    new = [admin.NewTopic(f"{prefix}{name}", number, 1) for name, number in partitions.items()]
    until = time.monotonic() + 10
    while new:
        made = client.create_topics(new)
        new = [each for each in new if made[each.topic].exception(30) and time.monotonic() < until]


def place(bootstrap: str, topic: str) -> None:
    """Place the orders."""
    shop = Producer({"bootstrap.servers": bootstrap, "client.id": "shop", "linger.ms": 0})
    for customer, total in TOTALS.items():
        at = datetime.datetime.now(datetime.UTC).isoformat()
        order = {"customer": customer, "id": str(uuid.uuid4()), "at": at, "total": total}
        shop.produce(topic, json.dumps(order), customer, headers={"trace": str(uuid.uuid4())})
    assert shop.flush(10) == 0


def missing(bootstrap: str, prefix: str, app: subprocess.Popen) -> set[str]:
    """Wait until each order is invoiced or rejected; return the customers of those that are not."""
    options = {"bootstrap.servers": bootstrap, "group.id": f"{prefix}test", "client.id": "test"}
    options |= {"enable.auto.commit": False, "auto.offset.reset": "earliest"}
    reader = Consumer(options)
    reader.assign([TopicPartition(f"{prefix}{name}", 0, 0) for name in ("invoices", "rejected")])
    left, until = set(TOTALS), time.monotonic() + 60
    while left and time.monotonic() < until:
        message = reader.poll(0.1)
        if message is not None and not message.error():
            left.discard((message.key() or b"").decode())
            until = time.monotonic() + PATIENCE_SECONDS
        elif app.poll() is not None:
            until = min(until, time.monotonic() + 1)
    reader.close()
    return left


def main(bootstrap: str, prefix: str, *command: str) -> int:
    """Do it; return the exit code."""
    begin_empty(bootstrap, prefix, PARTITIONS, [f"{prefix}billing"])
    place(bootstrap, f"{prefix}orders")
    with subprocess.Popen(command) as app:
        left = missing(bootstrap, prefix, app)
        app.terminate()
        code = app.wait(30)
    if left:
        print(f"neither invoiced nor rejected: {sorted(left)}", file=sys.stderr)
    return 1 if left else code if code not in (-signal.SIGTERM, 128 + signal.SIGTERM) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
