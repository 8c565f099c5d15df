"""Protobuf: the values that bytes have by the file of the schema that wrote them.

    FileDescriptorSet ─ compiled ─▶ pool of its own ─▶ message, by its indexes ─▶ plain value

Values are Protobuf's own mapping to JSON, with the names of the .proto file: fields that have their
default are absent, 64-bit integers are texts. An Any whose type the file lacks keeps its bytes.

Invariants: the library parses, up to 100 messages deep. What it allocates is bounded before: each
two bytes may be a message with room for all of its fields.
"""

from __future__ import annotations

import base64
import importlib
import struct
from collections.abc import Callable
from typing import Any

import attrs

from kproxy.wire.payloads.framing import Framed
from kproxy.wire.payloads.plain import DEPTH_MAX, TEXT_CHARS_MAX, PayloadError, SchemaError, number
from kproxy.wire.protocol import ProtocolError
from kproxy.wire.protocol.record_fields import varint

_PARSED_BYTES_MAX = 512 << 20
_MESSAGE_BYTES = 64
_FIELD_BYTES = 16
"""The bytes that the library takes for a message, and for a field of it, set or not."""
_CHARS = 32
_INDEXES_MAX = 32
_NAME_CHARS_MAX = 200
_OWN_FILES = ("any", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")
"""Files that Protobuf itself has, in google/protobuf. Every pool has the library's, so that no
schema has others."""
_OWN_TEXTS = frozenset(
    f"google.protobuf.{name}"
    for name in (
        *("Duration", "FieldMask", "ListValue", "Struct", "Timestamp", "Value"),
        *("BoolValue", "BytesValue", "DoubleValue", "FloatValue", "StringValue"),
        *("Int32Value", "Int64Value", "UInt32Value", "UInt64Value"),
    )
)
"""Messages whose JSON is not that of their fields."""
_INT64, _UINT64 = 2, 4
"""Values of `cpp_type`."""
_FLOAT = 2
"""A value of `type`."""


def compiled(definition: str) -> Callable[[Framed], tuple[Any, str]]:
    """Return what reads the bytes of a schema: their value, and the name of their message.

    Raises:
        SchemaError: it is no FileDescriptorSet, or the library is missing.
    """
    try:
        from google.protobuf.message import DecodeError
    except ImportError:
        raise SchemaError("needs pip install 'kproxy-kafka[schemas]'") from None
    try:
        file = _File.load(definition)
    except Exception as error:  # whatever the library finds
        raise SchemaError("is none of Protobuf") from error

    def read(found: Framed) -> tuple[Any, str]:
        indexes, at = _indexes(found.rest)
        data = found.data if found.in_header else found.rest[at:]
        if (len(data) // 2 + 1) * file.message_bytes_max > _PARSED_BYTES_MAX:
            raise PayloadError("it may be a message of too much memory")
        name = file.message_name(indexes)
        try:
            message = file.message(name, data)
            value = _Copy(file).of(message, 0)
        except DecodeError as error:
            raise PayloadError(f"it is no {name[:_NAME_CHARS_MAX]}") from error
        except PayloadError:
            raise
        except Exception as error:  # such as a Timestamp beyond the year 9999
            raise PayloadError(f"{name[:_NAME_CHARS_MAX]} has no text") from error
        return value, f"Protobuf {name[:_NAME_CHARS_MAX]}{_unknown(message)}"

    return read


def _unknown(message: Any) -> str:
    """Return a word if a message has fields that its type lacks.

    Raises:
        PayloadError: it has no other.
    """
    from google.protobuf.unknown_fields import UnknownFieldSet

    unknown = len(UnknownFieldSet(message))
    if unknown and not message.ListFields():
        raise PayloadError("it has none of the schema's fields")
    return " without unknown fields" if unknown else ""


def _indexes(data: bytes) -> tuple[list[int], int]:
    """Return the message indexes in front of some bytes, and where they end."""
    try:
        count, at = _zigzag(data, 0)
        if not 0 <= count <= _INDEXES_MAX:
            raise PayloadError("its message indexes are none")
        found: list[int] = []
        for _ in range(count):
            each, at = _zigzag(data, at)
            found.append(each)
    except IndexError:
        raise PayloadError("its message indexes are cut off") from None
    except ProtocolError:
        raise PayloadError("its message indexes are none") from None
    return found or [0], at


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    found, at = varint(data, at)
    return found >> 1 ^ -(found & 1), at


# ---------------------------------------------------------------- schemas


@attrs.define(eq=False)
class _File:
    """The main file of a schema, with a pool of its own."""

    main: Any
    """Its FileDescriptorProto."""
    pool: Any
    message_bytes_max: int
    _classes: dict[str, Any] = attrs.field(factory=dict, init=False)

    @classmethod
    def load(cls, definition: str) -> _File:
        from google.protobuf import descriptor_pb2, descriptor_pool

        files = descriptor_pb2.FileDescriptorSet.FromString(
            base64.b64decode(definition, validate=True)
        )
        pool = descriptor_pool.DescriptorPool()
        for name in _OWN_FILES:
            module = importlib.import_module(f"google.protobuf.{name}_pb2")
            pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
        own = {f"google/protobuf/{name}.proto" for name in _OWN_FILES}
        fields_max = 0
        for file in files.file:
            if file.name not in own:
                pool.AddSerializedFile(file.SerializeToString())
            fields_max = max(fields_max, _fields_max(file.message_type))
        size = _MESSAGE_BYTES + _FIELD_BYTES * fields_max
        return cls(files.file[-1], pool, size)

    def message_name(self, indexes: list[int]) -> str:
        """Return the full name of a message."""
        names = [self.main.package] if self.main.package else []
        types: Any = self.main.message_type
        for index in indexes:
            if not 0 <= index < len(types):
                raise PayloadError(f"the schema has no message {indexes}")
            names.append(types[index].name)
            types = types[index].nested_type
        return ".".join(names)

    def message(self, name: str, data: bytes) -> Any:
        """Parse a message."""
        from google.protobuf import message_factory

        found = self._classes.get(name)
        if found is None:
            found = message_factory.GetMessageClass(self.pool.FindMessageTypeByName(name))
            self._classes[name] = found
        return found.FromString(data)


def _fields_max(types: Any) -> int:
    """Return the number of fields of the largest message type."""
    nested = [each.nested_type for each in types]
    return max([0, *[len(each.field) for each in types], *map(_fields_max, nested)])


# ---------------------------------------------------------------- values


class _Copy:
    """A copy of a message as a plain value; counts what it has so far."""

    def __init__(self, file: _File) -> None:
        self._file = file
        self._chars = 0

    def of(self, message: Any, depth: int) -> Any:
        """Return a message's value."""
        name = message.DESCRIPTOR.full_name
        if depth > DEPTH_MAX:
            raise PayloadError("it is nested too deeply")
        if name == "google.protobuf.Any":
            return self._any(message, depth)
        if name in _OWN_TEXTS:
            from google.protobuf import json_format

            return json_format.MessageToDict(message, preserving_proto_field_name=True)
        return self._fields(message, depth)

    def _fields(self, message: Any, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for field, value in message.ListFields():
            name = f"[{field.full_name}]" if field.is_extension else field.name
            self._count(_CHARS + len(name))
            found[name] = self._field(field, value, depth)
        return found

    def _field(self, field: Any, value: Any, depth: int) -> Any:
        if not _is_repeated(field):
            return self._one(field, value, depth)
        self._count(_CHARS * len(value))
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            of = kind.fields_by_name["value"]
            return {_key(key): self._one(of, value[key], depth) for key in value}
        return [self._one(field, each, depth) for each in value]

    def _one(self, field: Any, value: Any, depth: int) -> Any:
        if field.message_type is not None:
            return self.of(value, depth + 1)
        if field.enum_type is not None:
            symbol = field.enum_type.values_by_number.get(value)
            if symbol is None:
                return value
            self._count(len(symbol.name))
            return None if field.enum_type.full_name == _NULL_VALUE else symbol.name
        if isinstance(value, bytes):
            return base64.b64encode(value).decode()
        if isinstance(value, float):
            return number(_shortest(value) if field.type == _FLOAT else value)
        return str(value) if field.cpp_type in (_INT64, _UINT64) else value

    def _any(self, message: Any, depth: int) -> dict[str, Any]:
        """Return an Any, its message in it if the file has its type."""
        url = message.type_url
        self._count(2 * _CHARS + len(url))
        try:
            inner = self._file.message(url.rpartition("/")[2], message.value)
        except KeyError:
            return {"@type": url, "value": base64.b64encode(message.value).decode()}
        value = self.of(inner, depth + 1)
        own = inner.DESCRIPTOR.full_name in _OWN_TEXTS
        return {"@type": url, "value": value} if own else {"@type": url, **value}

    def _count(self, chars: int) -> None:
        self._chars += chars
        if self._chars > TEXT_CHARS_MAX:
            raise PayloadError("it is too large")


_NULL_VALUE = "google.protobuf.NullValue"


def _is_repeated(field: Any) -> bool:
    found = getattr(field, "is_repeated", None)  # label is no more in later versions
    return field.label == field.LABEL_REPEATED if found is None else found


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _shortest(value: float) -> float:
    """Return a float of 32 bits as the shortest number that stands for it."""
    for digits in (6, 7, 8):
        short = float(f"{value:.{digits}g}")
        if struct.unpack("<f", struct.pack("<f", short))[0] == value:
            return short
    return value
