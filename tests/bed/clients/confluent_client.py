"""The job with confluent-kafka (librdkafka)."""

from __future__ import annotations

import time

import confluent_kafka
import job
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    Producer,
    TopicPartition,
    admin,
)


def settings(bootstrap: str, work: dict, **more) -> dict:
    """A client configuration for this job."""
    config = {"bootstrap.servers": bootstrap, **work["config"], **more}
    if "oauth_token" in config:
        token = config.pop("oauth_token")
        config["oauth_cb"] = lambda _: (token, time.time() + 3600)
    return config


def connect(bootstrap: str, work: dict) -> dict:
    """Ask for the brokers until they come, or an error says why they do not."""
    saw: list[str] = []

    def report(error: confluent_kafka.KafkaError) -> None:
        saw.append(error.str())

    client = admin.AdminClient(settings(bootstrap, work, error_cb=report, log_level=0))
    deadline = time.monotonic() + 5
    while not saw and time.monotonic() < deadline:
        client.poll(0.05)
        try:
            client.list_topics(timeout=0.2)
        except confluent_kafka.KafkaException:
            continue
        return {"saw": None}
    return {"saw": saw[0] if saw else "nothing"}


def wait(futures) -> list:
    """The results of a future or of a dictionary of them."""
    pending = futures.values() if isinstance(futures, dict) else [futures]
    return [each.result(timeout=20) for each in pending]


def create(bootstrap: str, work: dict) -> dict:
    """Create the two topics."""
    prefix = work["prefix"]
    client = admin.AdminClient(settings(bootstrap, work))
    topics = [
        admin.NewTopic(f"{prefix}-records", 2, 1),
        admin.NewTopic(f"{prefix}-ledger", 1, 1),
    ]
    wait(client.create_topics(topics))
    return {}


def produce(bootstrap: str, work: dict) -> dict:
    """Produce the records of every compression, each by a producer of its own."""
    failures, delivered = [], []

    def report(error, message) -> None:
        (failures if error else delivered).append(str(error or message.offset()))

    for compression in work["compressions"]:
        more = {"compression.codec": compression, "linger.ms": 5}
        producer = Producer(settings(bootstrap, work, **more))
        for key, value, headers in job.records(compression):
            producer.produce(
                f"{work['prefix']}-records",
                value=value,
                key=key,
                headers=[tuple(each) for each in headers],
                on_delivery=report,
            )
        producer.flush(20)
    if failures:
        raise RuntimeError(failures[0])
    return {"produced": len(delivered)}


def steady(bootstrap: str, work: dict) -> dict:
    """Produce for some seconds by one producer."""
    producer = Producer(settings(bootstrap, work))
    for number in range(job.STEADY_COUNT):
        producer.produce(f"{work['prefix']}-records", str(number))
        producer.flush(20)
        time.sleep(job.STEADY_PAUSE_SECONDS)
    return {"produced": job.STEADY_COUNT - len(producer)}


def group(bootstrap: str, work: dict) -> dict:
    """Read everything back as a classic group and commit."""
    more = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}
    return _consume(bootstrap, work, f"{work['prefix']}-classic", more)


def group848(bootstrap: str, work: dict) -> dict:
    """Read everything back as a KIP-848 group and commit."""
    return _consume(bootstrap, work, f"{work['prefix']}-new", {"group.protocol": "consumer"})


def _consume(bootstrap: str, work: dict, group_id: str, more: dict) -> dict:
    own = {
        "group.id": group_id,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings(bootstrap, work, **own, **more))
    topic = f"{work['prefix']}-records"
    consumer.subscribe([topic])
    expected = sum(len(job.records(each)) for each in work["compressions"])
    found = []
    deadline = time.monotonic() + 30
    while len(found) < expected and time.monotonic() < deadline:
        for message in consumer.consume(expected, timeout=0.5):
            if message.error():
                raise RuntimeError(str(message.error()))
            found.append(job.seen(message.key(), message.value(), message.headers()))
    consumer.commit(asynchronous=False)
    partitions = consumer.committed(consumer.assignment(), timeout=10)
    consumer.close()
    return {
        "records": found,
        "committed": sum(max(0, each.offset) for each in partitions),
    }


def transactions(bootstrap: str, work: dict) -> dict:
    """Commit, abort, commit with consumer offsets; read the committed values back."""
    topic = f"{work['prefix']}-ledger"
    producer = Producer(settings(bootstrap, work, **{"transactional.id": f"{work['prefix']}-tx"}))
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, job.KEPT[0], partition=0)
    producer.produce(topic, job.KEPT[1], partition=0)
    producer.commit_transaction(20)
    producer.begin_transaction()
    producer.produce(topic, "dropped", partition=0)
    producer.flush(20)
    producer.abort_transaction(20)
    producer.begin_transaction()
    producer.produce(topic, job.KEPT[2], partition=0)
    own = {"group.id": f"{work['prefix']}-eos", "isolation.level": "read_committed"}
    reader = Consumer(settings(bootstrap, work, **own))
    offsets = [TopicPartition(topic, 0, 1)]
    producer.send_offsets_to_transaction(offsets, reader.consumer_group_metadata(), 20)
    producer.commit_transaction(20)
    reader.assign([TopicPartition(topic, 0, 0)])
    values: list = []
    deadline = time.monotonic() + 20
    while job.KEPT[2] not in values and time.monotonic() < deadline:
        message = reader.poll(0.5)
        if message is not None and not message.error():
            values.append(job.text(message.value()))
    reader.close()
    return {"values": values}


def administer(bootstrap: str, work: dict) -> dict:
    """Everything that AdminClient offers and one broker can answer."""
    prefix = work["prefix"]
    topic, group_id = f"{prefix}-records", f"{prefix}-classic"
    client = admin.AdminClient(settings(bootstrap, work))
    of_topic = admin.ConfigResource(admin.ConfigResource.Type.TOPIC, topic)
    first = TopicPartition(topic, 0)
    calls = job.Calls()
    calls("list_topics", lambda: client.list_topics(timeout=10))
    calls("describe_cluster", lambda: wait(client.describe_cluster()))
    names = confluent_kafka.TopicCollection([topic])
    calls("describe_topics", lambda: wait(client.describe_topics(names)))
    calls(
        "create_partitions",
        lambda: wait(client.create_partitions([admin.NewPartitions(topic, 3)])),
    )
    calls("describe_configs", lambda: wait(client.describe_configs([of_topic])))
    _alter(calls, client, topic)
    latest = {first: admin.OffsetSpec.latest()}
    calls("list_offsets", lambda: wait(client.list_offsets(latest)))
    calls(
        "delete_records",
        lambda: wait(client.delete_records([TopicPartition(topic, 0, 1)])),
    )
    calls("list_consumer_groups", lambda: wait(client.list_consumer_groups()))
    calls("describe_groups", lambda: wait(client.describe_consumer_groups([group_id])))
    asked = ConsumerGroupTopicPartitions(group_id)
    calls("group_offsets", lambda: wait(client.list_consumer_group_offsets([asked])))
    moved = ConsumerGroupTopicPartitions(group_id, [TopicPartition(topic, 0, 1)])
    calls("alter_offsets", lambda: wait(client.alter_consumer_group_offsets([moved])))
    calls("delete_groups", lambda: wait(client.delete_consumer_groups([group_id])))
    _secure(calls, client, topic)
    calls(
        "elect_leaders",
        lambda: wait(client.elect_leaders(confluent_kafka.ElectionType.PREFERRED)),
    )
    calls("delete_topics", lambda: wait(client.delete_topics([topic])))
    return {"calls": calls.results}


def _alter(calls: job.Calls, client: admin.AdminClient, topic: str) -> None:
    kind = admin.ConfigResource.Type.TOPIC
    entry = admin.ConfigEntry(
        "retention.ms",
        "3600000",
        incremental_operation=admin.AlterConfigOpType.SET,
    )
    change = admin.ConfigResource(kind, topic, incremental_configs=[entry])
    calls("incremental_alter", lambda: wait(client.incremental_alter_configs([change])))


def _secure(calls: job.Calls, client: admin.AdminClient, topic: str) -> None:
    rule = admin.AclBinding(
        admin.ResourceType.TOPIC,
        topic,
        admin.ResourcePatternType.LITERAL,
        "User:nobody",
        "*",
        admin.AclOperation.READ,
        admin.AclPermissionType.ALLOW,
    )
    same = admin.AclBindingFilter(
        admin.ResourceType.TOPIC,
        topic,
        admin.ResourcePatternType.LITERAL,
        None,
        None,
        admin.AclOperation.ANY,
        admin.AclPermissionType.ANY,
    )
    calls("create_acls", lambda: wait(client.create_acls([rule])))
    calls("describe_acls", lambda: wait(client.describe_acls(same)))
    calls("delete_acls", lambda: wait(client.delete_acls([same])))
    calls("describe_scram", lambda: wait(client.describe_user_scram_credentials(["bob"])))


if __name__ == "__main__":
    job.main(
        f"confluent-kafka {confluent_kafka.__version__}",
        {
            "connect": connect,
            "create": create,
            "steady": steady,
            "produce": produce,
            "group": group,
            "group848": group848,
            "transactions": transactions,
            "admin": administer,
        },
    )
