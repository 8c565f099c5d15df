"""Schemas from a registry that others wrote, for what serialisers wrote with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kproxy.cli import main
from tests.bed import apicurio, jvm, needs
from tests.net.registry.recorded import produced, recording, values
from tests.versions import ALL
from tests.wire.payloads import protos

pytest.importorskip("authlib", reason="confluent-kafka's clients of a schema registry need it")
pytest.importorskip("confluent_kafka")
pytestmark = pytest.mark.java

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [{"name": "id", "type": "long"}, {"name": "customer", "type": ["null", "string"]}],
}
ORDER_2 = {
    **ORDER,
    "fields": [*ORDER["fields"], {"name": "total", "type": "double", "default": 0.0}],
}
ITEM = {"type": "record", "name": "shop.Item", "fields": [{"name": "sku", "type": "string"}]}
BASKET = {
    "type": "record",
    "name": "shop.Basket",
    "fields": [{"name": "items", "type": {"type": "array", "items": "shop.Item"}}],
}
JSON = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Order", "type": "object"}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with apicurio.running(tmp_path_factory.mktemp("registry")) as address:
        yield address


def serialised(url: str) -> list[tuple[bytes, Any]]:
    """What confluent-kafka's serialisers write, and what it means."""
    from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.schema_registry.json_schema import JSONSerializer
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    money = protos.file("shop/money.proto", {"Money": ["int64 cents = 1"]})
    fields = ["string customer = 1", "Money total = 2", ".google.protobuf.Timestamp at = 3"]
    imports = ("shop/money.proto", "google/protobuf/timestamp.proto")
    order = protos.file("shop/order.proto", {"Other": [], "Order": fields}, imports)
    made = protos.classes(money, order)["Order"]
    message = made(customer="pia", total={"cents": 250})
    message.at.seconds = 1
    pia = {"customer": "pia", "total": {"cents": "250"}, "at": "1970-01-01T00:00:01Z"}
    with SchemaRegistryClient({"url": url}) as client:
        client.register_schema("item", Schema(json.dumps(ITEM), "AVRO"))
        basket = Schema(json.dumps(BASKET), "AVRO", [SchemaReference("shop.Item", "item", 1)])
        ways: list[tuple[str, Any, Any, Any]] = [
            ("avro", AvroSerializer(client, json.dumps(ORDER)), {"id": 1, "customer": "ann"}, None),
            (
                "avro",
                AvroSerializer(client, json.dumps(ORDER_2)),
                {"id": 2, "customer": None, "total": 2.5},
                None,
            ),
            ("baskets", AvroSerializer(client, basket), {"items": [{"sku": "a"}]}, None),
            ("json", JSONSerializer(json.dumps(JSON), client), {"customer": "Jürgen"}, None),
            ("protobuf", ProtobufSerializer(made, client, {}), message, pia),
        ]
        return [
            (serialiser(value, SerializationContext(topic, MessageField.VALUE)), meant or value)
            for topic, serialiser, value, meant in ways
        ]


def test_what_serialisers_registered_is_found(registry: str, tmp_path: Path) -> None:
    """Versions of a schema, references, imports, and of Protobuf a text: it has no descriptors."""
    url = f"{registry}{apicurio.CONFLUENT}"
    pairs = serialised(url)
    (path,) = recording(tmp_path / "shop.mcap", produced(*[data for data, _ in pairs]))
    assert main(["recover", str(path), "--schemas", url]) == 0
    assert values(path) == [meant for _, meant in pairs]


@pytest.mark.skipif(not ALL, reason="tests/wire/payloads reads what it writes; KPROXY_TEST_ALL=1")
def test_what_a_serialiser_of_java_registered_is_found(registry: str, tmp_path: Path) -> None:
    jars = jvm.serialiser_jars()
    source = needs.REPOSITORY / "tests" / "bed" / "clients" / "AvroSerialiser.java"
    given = [json.dumps(ORDER), json.dumps({"id": 1 << 40, "customer": {"string": "Jürgen"}})]
    url = f"{registry}/apis/registry/v3"
    command = jvm.java([jvm.compiled(source, jars), jars], "AvroSerialiser", url, *given)
    data = bytes.fromhex(needs.run_or_fail(command).strip())
    (path,) = recording(tmp_path / "shop.mcap", produced(data))
    assert main(["recover", str(path), "--schemas", f"{registry}{apicurio.CONFLUENT}"]) == 0
    assert values(path) == [{"id": 1 << 40, "customer": "Jürgen"}]
