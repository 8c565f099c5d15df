"""Writes `messages.pyi`, the static types of the classes that `messages` builds lazily.

Part of the maintainer's tool `kproxy.wire.protocol.generate`. A field has the type that it has in
any version of its message: one that is nullable in some version is typed `… | None`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kproxy.wire.protocol.schema import Field, Message

HEAD = '''\
"""Types of Kafka's messages. Written by `python -m kproxy.wire.protocol.generate`.

One class per message, over all its versions; its structs are attributes of it. Every argument is
keyword-only and has the default of Kafka's definition.
"""

from uuid import UUID

import attrs

Tags = tuple[tuple[int, bytes], ...]
'''

TYPES = {
    "bool": "bool",
    "int8": "int",
    "int16": "int",
    "uint16": "int",
    "int32": "int",
    "int64": "int",
    "float64": "float",
    "uuid": "UUID",
    "string": "str",
    "bytes": "bytes",
    "records": "bytes",
}


def write_stub(messages: Iterable[Message]) -> str:
    """Return the text of messages.pyi."""
    lines = [HEAD]
    for message in messages:
        lines += ["@attrs.define(kw_only=True)", f"class {message.name}:"]
        for name, fields in message.structs.items():
            lines += ["    @attrs.define(kw_only=True)", f"    class {name}:"]
            lines += ["        " + line for line in _attributes(fields, message)]
            lines.append("")
        lines += ["    " + line for line in _attributes(message.fields, message)]
        lines.append("")
    lines += ["def message_class(name: str) -> type: ...", ""]
    return "\n".join(lines)


def _attributes(fields: tuple[Field, ...], message: Message) -> Iterator[str]:
    for field in fields:
        yield f"{field.name}: {annotation(field, message)} = ..."
    yield "unknown_tags: Tags = ..."


def annotation(field: Field, message: Message) -> str:
    """Return the Python type of a field, e.g. `list[MetadataResponse.MetadataResponseTopic] |
    None`."""
    text = TYPES.get(field.element, f"{message.name}.{field.element}")
    if field.is_array:
        text = f"list[{text}]"
    struct = bool(field.fields) and not field.is_array
    absent_is_none = struct and not field.defaults_to_struct
    nullable = field.nullable_versions or field.type == "records" or field.default == "null"
    if nullable or absent_is_none:
        text += " | None"
    return text
