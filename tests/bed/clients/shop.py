"""An app of two services: orders come in, invoices go out in transactions, and are posted.

::

    orders ─▶ billing: in a transaction ─▶ invoices ─▶ ledger: posts, commits ─▶ postings
                              └─▶ rejected (a dead letter topic)

Ids are UUIDs, each record has a time and a trace header; an order without lines is a tombstone. It
begins with topics and groups of its own, made anew. `shop.py BOOTSTRAP PREFIX [CHANGE]`: a
CHANGE does one thing otherwise (`CHANGES`).
"""

from __future__ import annotations

import datetime
import json
import sys
import time
import uuid

from confluent_kafka import (
    Consumer,
    Message,
    Producer,
    TopicPartition,
)
from orders import begin_empty

TOTALS = {"c0": 11.5, "c1": 7.0, "c2": -1.0, "c3": None, "c4": 3.25, "c8": 9.0}
"""By customer. The last order of each partition has an invoice, so that the last commit shows."""
CHANGES = (
    "drop", "double", "total", "topic", "null-key", "wrong-key", "extra", "header-missing",
    "header-wrong", "tombstone", "key-order", "no-transaction", "plain-commit",
    "other-transactional-id", "commit-outside", "abort", "no-commit", "commit-first", "uncommitted",
    "id-null", "id-number", "id-same", "id-other", "time-wrong", "key-plain", "group"
)  # fmt: skip

bootstrap, prefix, change = sys.argv[1], sys.argv[2], "".join(sys.argv[3:])
assert not change or change in CHANGES, change

PARTITIONS = {"orders": 2, "invoices": 1, "rejected": 1, "postings": 1}
ORDERS, INVOICES, REJECTED, POSTINGS = (f"{prefix}{name}" for name in PARTITIONS)
GROUPS = [f"{prefix}billing", f"{prefix}ledger"]


def is_(*names: str) -> bool:
    return change in names


def consumer(group: str, topic: str, isolation: str = "read_committed") -> Consumer:
    options = {
        "bootstrap.servers": bootstrap,
        "group.id": f"{prefix}{group}",
        "auto.offset.reset": "earliest",
    }
    options |= {"isolation.level": isolation, "enable.auto.commit": False, "client.id": group}
    found = Consumer(options)
    found.subscribe([topic])
    return found


def producer(client: str, **more: str) -> Producer:
    return Producer({"bootstrap.servers": bootstrap, "client.id": client, "linger.ms": 0, **more})


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat()


def new_id() -> str:
    return str(uuid.uuid4())


def place_orders() -> dict[str, str]:
    """Return the id of each order by its customer."""
    shop = producer("shop")
    ids: dict[str, str] = {}
    for customer, total in TOTALS.items():
        order_id = new_id()
        ids[customer] = order_id
        order = {"customer": customer, "id": order_id, "at": now(), "total": total}
        value = None if total is None else json.dumps(order)
        shop.produce(ORDERS, key=customer, value=value, headers={"trace": new_id()})
    assert shop.flush(10) == 0
    return ids


def next_of(source: Consumer) -> Message:
    until = time.monotonic() + 8
    while time.monotonic() < until:
        message = source.poll(0.2)
        if message is not None and not message.error():
            return message
    raise SystemExit("nothing came")


def billing() -> None:
    source = consumer("bill" if is_("group") else "billing", ORDERS)
    name = prefix + ("other" if is_("other-transactional-id") else "billing")
    sink = producer("billing", **({} if is_("no-transaction") else {"transactional.id": name}))
    if not is_("no-transaction"):
        sink.init_transactions(10)
    same = new_id()
    for place in range(len(TOTALS)):
        message = next_of(source)
        offsets = [TopicPartition(message.topic(), message.partition(), message.offset() + 1)]
        if not is_("no-transaction"):
            sink.begin_transaction()
        invoice(sink, message, same)
        if is_("no-transaction", "plain-commit"):
            sink.flush(10)
            source.commit(offsets=offsets, asynchronous=False)
        elif is_("commit-outside") and place == 1:
            source.commit(offsets=offsets, asynchronous=False)
        elif not is_("no-commit"):
            sink.send_offsets_to_transaction(offsets, source.consumer_group_metadata(), 10)
        if is_("no-transaction"):
            continue
        if is_("abort") and place == 1:
            sink.abort_transaction(10)
        else:
            sink.commit_transaction(10)
    source.close()


def invoice(sink: Producer, message: Message, same: str) -> None:
    customer, headers = (message.key() or b"").decode(), dict(message.headers() or [])
    if message.value() is None:
        if not is_("tombstone"):
            sink.produce(INVOICES, key=customer, value=None, headers=headers)
        return
    order = json.loads(message.value())
    if order["total"] < 0:
        topic = INVOICES if is_("topic") else REJECTED
        sink.produce(topic, key=customer, value=message.value(), headers=headers)
        return
    made = {"id": new_id(), "order": order["id"], "at": now(), "total": order["total"]}
    first = customer == "c0"
    made["id"] = {"id-null": None, "id-number": 17, "id-same": same}.get(change, made["id"])
    made |= {"order": new_id()} if is_("id-other") and first else {}
    made |= {"at": "soon"} if is_("time-wrong") and first else {}
    made |= {"total": 12.0} if is_("total") and first else {}
    made |= {"note": "x"} if is_("extra") and first else {}
    if is_("header-missing"):
        headers = {}
    if is_("header-wrong"):
        headers["trace"] = b"none"
    if is_("drop") and first:
        return
    key = (
        {"null-key": None, "wrong-key": f"{customer}x"}.get(change, customer) if first else customer
    )
    states = ("paid", "new") if is_("key-order") and first else ("new", "paid")
    for state in (*states, *states[-1:] * (is_("double") and first)):
        sink.produce(INVOICES, key=key, value=json.dumps({**made, "state": state}), headers=headers)


def ledger() -> None:
    isolation = "read_uncommitted" if is_("uncommitted") else "read_committed"
    source, sink = consumer("ledger", INVOICES, isolation), producer("ledger")
    expected = 2 * sum(total is not None and total >= 0 for total in TOTALS.values()) + 1
    expected += is_("topic") + is_("double") - 2 * is_("drop") - is_("tombstone")
    for _ in range(expected):
        message = next_of(source)
        if is_("commit-first"):
            source.commit(message, asynchronous=False)
        if message.value() is not None:
            made = json.loads(message.value())
            posting = {"invoice": made["id"], "total": made["total"], "at": int(time.time() * 1000)}
            key = "posting" if is_("key-plain") else new_id()
            sink.produce(POSTINGS, key=key, value=json.dumps(posting))
            assert sink.flush(10) == 0
        if not is_("commit-first"):
            source.commit(message, asynchronous=False)
    source.close()


begin_empty(bootstrap, prefix, PARTITIONS, GROUPS)
place_orders()
billing()
ledger()
