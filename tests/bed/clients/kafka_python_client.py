"""The job with kafka-python."""

from __future__ import annotations

import time

import job
import kafka
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ConfigResource,
    ConfigResourceType,
    NewPartitions,
    NewTopic,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)
from kafka.net.sasl.oauth import AbstractTokenProvider


class Token(AbstractTokenProvider):
    """A bearer token that is there already."""

    def __init__(self, token: str) -> None:
        self._token = token

    def token(self) -> str:
        """The token."""
        return self._token


def settings(bootstrap: str, work: dict, **more) -> dict:
    """A client configuration for this job."""
    config = {"bootstrap_servers": bootstrap, **job.with_ssl_context(work["config"]), **more}
    if "oauth_token" in config:
        config["sasl_oauth_token_provider"] = Token(config.pop("oauth_token"))
    return config


def connect(bootstrap: str, work: dict) -> dict:
    """Ask for the brokers."""
    try:
        client = kafka.KafkaAdminClient(**settings(bootstrap, work, bootstrap_timeout_ms=4000))
        client.describe_cluster()
        client.close()
    except kafka.errors.KafkaError as error:
        return {"saw": f"{type(error).__name__}: {error}"}
    return {"saw": None}


def create(bootstrap: str, work: dict) -> dict:
    """Create the two topics."""
    prefix = work["prefix"]
    client = kafka.KafkaAdminClient(**settings(bootstrap, work))
    client.create_topics([NewTopic(f"{prefix}-records", 2, 1), NewTopic(f"{prefix}-ledger", 1, 1)])
    client.close()
    return {}


def produce(bootstrap: str, work: dict) -> dict:
    """Produce the records of every compression, each by a producer of its own."""
    produced = 0
    for compression in work["compressions"]:
        kind = None if compression == "none" else compression
        producer = kafka.KafkaProducer(
            **settings(bootstrap, work, compression_type=kind, linger_ms=5)
        )
        pending = [
            producer.send(
                f"{work['prefix']}-records",
                None if value is None else value.encode(),
                None if key is None else key.encode(),
                headers=[(name, text.encode()) for name, text in headers],
            )
            for key, value, headers in job.records(compression)
        ]
        produced += len([each.get(timeout=20) for each in pending])
        producer.close()
    return {"produced": produced}


def steady(bootstrap: str, work: dict) -> dict:
    """Produce for some seconds by one producer."""
    producer = kafka.KafkaProducer(**settings(bootstrap, work))
    for number in range(job.STEADY_COUNT):
        producer.send(f"{work['prefix']}-records", str(number).encode()).get(timeout=20)
        time.sleep(job.STEADY_PAUSE_SECONDS)
    producer.close()
    return {"produced": job.STEADY_COUNT}


def group(bootstrap: str, work: dict) -> dict:
    """Read everything back as a classic group and commit."""
    consumer = kafka.KafkaConsumer(
        f"{work['prefix']}-records",
        **settings(
            bootstrap,
            work,
            group_id=f"{work['prefix']}-classic",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=500,
        ),
    )
    expected = sum(len(job.records(each)) for each in work["compressions"])
    found = []
    deadline = time.monotonic() + 30
    while len(found) < expected and time.monotonic() < deadline:
        for batch in consumer.poll(timeout_ms=500).values():
            found += [job.seen(each.key, each.value, each.headers) for each in batch]
    consumer.commit()
    committed = sum(consumer.committed(each) or 0 for each in consumer.assignment())
    consumer.close()
    return {"records": found, "committed": committed}


def transactions(bootstrap: str, work: dict) -> dict:
    """Commit, abort, commit with consumer offsets; read the committed values back."""
    topic = f"{work['prefix']}-ledger"
    own = {"transactional_id": f"{work['prefix']}-tx"}
    producer = kafka.KafkaProducer(**settings(bootstrap, work, **own))
    producer.init_transactions()
    producer.begin_transaction()
    for value in job.KEPT[:2]:
        producer.send(topic, value.encode(), partition=0).get(timeout=20)
    producer.commit_transaction()
    producer.begin_transaction()
    producer.send(topic, b"dropped", partition=0).get(timeout=20)
    producer.abort_transaction()
    producer.begin_transaction()
    producer.send(topic, job.KEPT[2].encode(), partition=0).get(timeout=20)
    partition = kafka.TopicPartition(topic, 0)
    offsets = {partition: kafka.OffsetAndMetadata(1, "", -1)}
    producer.send_offsets_to_transaction(offsets, f"{work['prefix']}-eos")
    producer.commit_transaction()
    producer.close()
    reader = kafka.KafkaConsumer(**settings(bootstrap, work, isolation_level="read_committed"))
    reader.assign([partition])
    reader.seek_to_beginning(partition)
    values: list = []
    deadline = time.monotonic() + 20
    while job.KEPT[2] not in values and time.monotonic() < deadline:
        for batch in reader.poll(timeout_ms=500).values():
            values += [job.text(each.value) for each in batch]
    reader.close()
    return {"values": values}


def administer(bootstrap: str, work: dict) -> dict:
    """Everything that KafkaAdminClient offers and one broker can answer."""
    topic, group_id = f"{work['prefix']}-records", f"{work['prefix']}-classic"
    client = kafka.KafkaAdminClient(**settings(bootstrap, work))
    first = kafka.TopicPartition(topic, 0)
    changed = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "3600000"})
    of_topic = ConfigResource(ConfigResourceType.TOPIC, topic)
    table = {
        "list_topics": client.list_topics,
        "describe_cluster": client.describe_cluster,
        "describe_topics": lambda: client.describe_topics([topic]),
        "create_partitions": lambda: client.create_partitions({topic: NewPartitions(3)}),
        "describe_configs": lambda: client.describe_configs([of_topic], config_filter="all"),
        "incremental_alter": lambda: client.alter_configs([changed], incremental=True),
        "alter_configs": lambda: client.alter_configs([changed], incremental=False),
        "list_config_resources": client.list_config_resources,
        "delete_records": lambda: client.delete_records({first: -1}),
        "describe_producers": lambda: client.describe_producers([first]),
        "list_groups": client.list_groups,
        "describe_groups": lambda: client.describe_groups([group_id]),
        "group_offsets": lambda: client.list_group_offsets([group_id]),
        "delete_offsets": lambda: client.delete_group_offsets(group_id, [first]),
        "delete_groups": lambda: client.delete_groups([group_id]),
        "list_transactions": client.list_transactions,
        "describe_transactions": lambda: client.describe_transactions([f"{work['prefix']}-tx"]),
        "list_reassignments": client.list_partition_reassignments,
        "describe_log_dirs": client.describe_log_dirs,
        "describe_features": client.describe_features,
        "describe_quorum": client.describe_metadata_quorum,
        "describe_scram": lambda: client.describe_user_scram_credentials(["bob"]),
        **_security(client, topic),
        "delete_topics": lambda: client.delete_topics([topic]),
    }
    calls = job.Calls()
    for name, call in table.items():
        calls(name, call)
    client.close()
    return {"calls": calls.results}


def _security(client: kafka.KafkaAdminClient, topic: str) -> dict:
    rule = ACL(
        "User:nobody",
        "*",
        ACLOperation.READ,
        ACLPermissionType.ALLOW,
        ResourcePattern(ResourceType.TOPIC, topic),
    )
    same = ACLFilter(
        None,
        None,
        ACLOperation.ANY,
        ACLPermissionType.ANY,
        ResourcePatternFilter(ResourceType.TOPIC, topic, rule.resource_pattern.pattern_type),
    )
    return {
        "create_acls": lambda: client.create_acls([rule]),
        "describe_acls": lambda: client.describe_acls(same),
        "delete_acls": lambda: client.delete_acls([same]),
    }


if __name__ == "__main__":
    job.main(
        f"kafka-python {kafka.__version__}",
        {
            "connect": connect,
            "create": create,
            "steady": steady,
            "produce": produce,
            "group": group,
            "transactions": transactions,
            "admin": administer,
        },
    )
