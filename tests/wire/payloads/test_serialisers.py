"""What the serialisers of confluent-kafka write is read, with what they registered."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka.schema_registry import Schema as Posted
from confluent_kafka.schema_registry import (
    SchemaReference,
    SchemaRegistryClient,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from kproxy.exchange.topic_records import TopicRecord
from kproxy.wire.payloads.meaning import Decoded
from kproxy.wire.payloads.schemas import Schema, Schemas, note_of
from tests.bed import jvm, needs
from tests.bed.schema_registry import Registered, Registry, serving
from tests.wire.payloads import protos

IN_FRONT: dict[str, Any] = {}
IN_HEADER = {"schema.id.serializer": header_schema_id_serializer}
framings = pytest.mark.parametrize("framing", [IN_FRONT, IN_HEADER], ids=["in front", "in header"])


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with serving(user="ann:secret", first_id=100_017) as found:
        yield found


@pytest.fixture(scope="module")
def client(registry: Registry) -> Iterator[SchemaRegistryClient]:
    conf = {"url": registry.address, "basic.auth.user.info": registry.user}
    with SchemaRegistryClient(conf) as made:
        yield made


def written(
    serialiser: Callable[..., bytes | None],
    value: Any,
    registry: Registry,
    part: str = MessageField.VALUE,
) -> TopicRecord:
    """A record of what a serialiser writes."""
    headers: list[tuple[str, bytes]] = []
    data = serialiser(value, SerializationContext("orders", part, headers))
    key, value = (data, None) if part == MessageField.KEY else (None, data)
    return recorded(key, value, headers, registry)


def recorded(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes]], registry: Registry
) -> TopicRecord:
    """A record of a recording that has all schemas of a registry."""
    schemas = Schemas()
    for each in registry.registered:
        schemas.note(note_of([each.number, UUID(each.guid)], noted(registry, each)))
    return TopicRecord("orders", 0, 0, 0, key, value, tuple(headers), True, schemas=schemas)


def noted(registry: Registry, each: Registered) -> Schema:
    """A schema as a recording has it."""
    referred = registry.references(each)
    kind = each.body.get("schemaType") or "AVRO"
    if kind == "PROTOBUF":
        files = [base64.b64decode(one.body["schema"]) for _, one in referred]
        main = base64.b64decode(each.body["schema"])
        names = [name for name, _ in referred] + ["main.proto"]
        made = [protos.parsed(name, data) for name, data in zip(names, [*files, main], strict=True)]
        return protos.schema(*made)
    texts = tuple((name, one.body["schema"]) for name, one in referred)
    return Schema(kind, each.body["schema"], texts, each.subject, each.version)


ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [{"name": "id", "type": "long"}, {"name": "customer", "type": ["null", "string"]}],
}
NEW_FIELD = {"name": "total", "type": "double", "default": 0.0}
ORDER_2 = {**ORDER, "fields": [*ORDER["fields"][1:], NEW_FIELD]}


@framings
def test_avro_by_the_schema_of_its_writer(
    framing: dict[str, Any], registry: Registry, client: SchemaRegistryClient
) -> None:
    values = {"id": 17, "customer": "ann"}, {"customer": None, "total": 2.5}
    for schema, value in zip((ORDER, ORDER_2), values, strict=True):
        record = written(AvroSerializer(client, json.dumps(schema), conf=framing), value, registry)
        assert record.decoded == value
        meaning = record.meaning("value")
        assert isinstance(meaning, Decoded)
        assert meaning.by.startswith("Avro shop.Order, schema ")


@pytest.mark.java
def test_avro_of_java() -> None:
    one, other = {"id": 1 << 40, "customer": "Jürgen"}, {"customer": None, "total": 2.5}
    texts = json.dumps({**one, "customer": {"string": "Jürgen"}}), json.dumps(other)
    given = [json.dumps(ORDER), texts[0], json.dumps(ORDER_2), texts[1]]
    jars = jvm.serialiser_jars()
    source = needs.REPOSITORY / "tests" / "bed" / "clients" / "AvroSerialiser.java"
    classes = jvm.compiled(source, jars)
    with serving(first_id=700) as registry:
        url = f"{registry.address}/apis/registry/v3"
        lines = needs.run_or_fail(jvm.java([classes, jars], "AvroSerialiser", url, *given)).split()
        for line, value in zip(lines, (one, other), strict=True):
            assert recorded(None, bytes.fromhex(line), [], registry).decoded == value


def test_avro_with_references(registry: Registry, client: SchemaRegistryClient) -> None:
    item = {"type": "record", "name": "shop.Item", "fields": [{"name": "sku", "type": "string"}]}
    client.register_schema("item", Posted(json.dumps(item), "AVRO"))
    fields = [{"name": "items", "type": {"type": "array", "items": "shop.Item"}}]
    basket = json.dumps({"type": "record", "name": "shop.Basket", "fields": fields})
    posted = Posted(basket, "AVRO", [SchemaReference("shop.Item", "item", 1)])
    value = {"items": [{"sku": "a"}, {"sku": "b"}]}
    record = written(AvroSerializer(client, posted), value, registry, MessageField.KEY)
    assert record.decoded_key == value
    assert record.decoded is None


@framings
def test_protobuf_with_imports_and_nested_messages(
    framing: dict[str, Any], registry: Registry, client: SchemaRegistryClient
) -> None:
    money = protos.file("shop/money.proto", {"Money": ["int64 cents = 1"]})
    imports = ("shop/money.proto", "google/protobuf/timestamp.proto")
    fields = ["string customer = 1", "Money total = 2", ".google.protobuf.Timestamp at = 3"]
    order = protos.file("shop/order.proto", {"Other": [], "Order": fields}, imports)
    made = protos.classes(money, order)["Order"]
    message = made(customer="ann", total={"cents": 250})
    message.at.seconds = 1
    record = written(ProtobufSerializer(made, client, framing), message, registry)
    assert record.decoded == {
        "customer": "ann",
        "total": {"cents": "250"},
        "at": "1970-01-01T00:00:01Z",
    }


@framings
def test_json(framing: dict[str, Any], registry: Registry, client: SchemaRegistryClient) -> None:
    value = {"customer": "Jürgen", "total": 2.5}
    schema = json.dumps({"title": "Order", "type": "object"})
    record = written(JSONSerializer(schema, client, conf=framing), value, registry)
    assert record.decoded == value
    meaning = record.meaning("value")
    assert isinstance(meaning, Decoded)
    assert meaning.by.startswith("JSON, schema ")
