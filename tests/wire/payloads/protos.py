"""Files of Protobuf as tests write them: a line for each field, without a compiler.

file("shop.proto", {"Order": ["int64 id = 1", "repeated Item items = 2"], "Item": […]})
"""

from __future__ import annotations

import base64
from typing import Any

from google.protobuf import (
    any_pb2,
    descriptor_pool,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

from kproxy.wire.payloads.schemas import Schema

SCALARS = {
    name.removeprefix("TYPE_").lower(): value
    for name, value in FieldDescriptorProto.Type.items()
    if name not in ("TYPE_GROUP", "TYPE_MESSAGE", "TYPE_ENUM")
}


def file(
    name: str, messages: dict[str, Any], imports: tuple[str, ...] = (), package: str = "shop"
) -> FileDescriptorProto:
    """Return a file of proto3; a dict among messages is an enum."""
    made = FileDescriptorProto(name=name, package=package, syntax="proto3", dependency=imports)
    for each, fields in messages.items():
        if isinstance(fields, dict):
            enum = made.enum_type.add(name=each)
            for symbol, number in fields.items():
                enum.value.add(name=symbol, number=number)
        else:
            _message(made.message_type.add(), each, fields)
    return made


def _message(message: DescriptorProto, name: str, fields: list[str]) -> None:
    message.name = name
    for line in fields:
        left, _, number = line.rpartition(" = ")
        *label, kind, field = left.split()
        repeated = label == ["repeated"]
        added = message.field.add(name=field, number=int(number), label=3 if repeated else 1)
        if kind in SCALARS:
            added.type = SCALARS[kind]  # type: ignore[assignment]
        else:
            added.type_name = kind
            enum = kind[0].islower() and "." not in kind
            added.type = 14 if enum else 11


def classes(*files: FileDescriptorProto) -> dict[str, Any]:
    """Return the message classes of the last file, by their names; the files import each other, or
    what the library has."""
    pool = descriptor_pool.DescriptorPool()
    for known in (any_pb2, struct_pb2, timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    for each in files:
        pool.AddSerializedFile(each.SerializeToString())
    found = pool.FindFileByName(files[-1].name).message_types_by_name
    return {name: message_factory.GetMessageClass(each) for name, each in found.items()}


def schema(*files: FileDescriptorProto) -> Schema:
    """Return the schema of files, dependencies first."""
    data = FileDescriptorSet(file=files).SerializeToString()
    return Schema("PROTOBUF", base64.b64encode(data).decode())


def parsed(name: str, data: bytes) -> FileDescriptorProto:
    """Return a file as it was registered, with its name: registries do not keep that."""
    made = FileDescriptorProto.FromString(data)
    made.name = name
    return made
