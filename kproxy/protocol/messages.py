"""A class per message of Kafka, over all its versions, made when it is first asked for.

`messages.MetadataResponse` is an attrs class with every field of every version, each with the
default of Kafka's definition; its structs are attributes of it under Kafka's names, such as
`messages.MetadataResponse.MetadataResponseBroker`. Arguments are keyword-only. What a version does
not have stays at its default when that version is decoded, and is left out when it is encoded.

A tagged struct that was not sent is None. `unknown_tags` of every struct keeps what the table does
not know, as (tag, bytes) pairs in wire order; there, too, stay the bytes of a known tag that was
sent although it has its default.

Static types: `messages.pyi`, generated from the same table.
"""

from __future__ import annotations

import functools
from typing import Any

import attrs

from kproxy.protocol import schema
from kproxy.protocol.schema import Field


@functools.cache
def message_class(name: str) -> type:
    """The class of a message, e.g. "MetadataResponse"; KeyError if there is none."""
    message = schema.named(name)
    classes: dict[str, type] = {}
    structs = {
        struct: _make(struct, f"{name}.{struct}", fields, classes)
        for struct, fields in _inner_first(message.fields).items()
    }
    made = _make(name, name, message.fields, structs)
    for struct, inner in structs.items():
        setattr(made, struct, inner)
    return made


def _inner_first(fields: tuple[Field, ...]) -> dict[str, tuple[Field, ...]]:
    found: dict[str, tuple[Field, ...]] = {}
    for field in fields:
        if field.fields and field.element not in found:
            found |= _inner_first(field.fields)
            found[field.element] = field.fields
    return found


def _make(
    name: str, qualified: str, fields: tuple[Field, ...], structs: dict[str, type]
) -> type:
    body: dict[str, Any] = {
        "__module__": __name__,
        "__qualname__": qualified,
        "__doc__": f"Kafka's {qualified}.",
        "__init__": _init,
        "__eq__": _equal,
        "__repr__": _repr,
    }
    for field in fields:
        body[field.name] = _attribute(field, structs)
    body["unknown_tags"] = attrs.field(default=())
    # Methods of its own for each class would cost most of the first use of a message: the codec
    # does not call them, so one that loops over the fields serves all classes.
    made = attrs.define(type(name, (), body), kw_only=True, init=False, eq=False, repr=False)
    structs[name] = made
    return made


def _init(self: Any, **values: Any) -> None:
    for field in self.__attrs_attrs__:
        if field.name in values:
            value = values.pop(field.name)
        else:
            default = field.default
            value = default.factory() if isinstance(default, _FACTORY) else default
        setattr(self, field.name, value)
    if values:
        raise TypeError(f"{type(self).__qualname__} has no field {next(iter(values))!r}")


_FACTORY: Any = attrs.Factory


def _equal(self: Any, other: object) -> bool:
    if other.__class__ is not self.__class__:
        return NotImplemented
    names = [field.name for field in self.__attrs_attrs__]
    return all(getattr(self, name) == getattr(other, name) for name in names)


def _repr(self: Any) -> str:
    fields = (f"{field.name}={getattr(self, field.name)!r}" for field in self.__attrs_attrs__)
    return f"{type(self).__qualname__}({', '.join(fields)})"


def _attribute(field: Field, structs: dict[str, type]) -> Any:
    default = schema.default_value(field)
    if field.is_array and default is not None:
        return attrs.field(factory=list[Any])
    if field.defaults_to_struct:
        return attrs.field(factory=structs[field.element])
    return attrs.field(default=default)


def __getattr__(name: str) -> type:
    try:
        made = message_class(name)
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    globals()[name] = made
    return made


def __dir__() -> tuple[str, ...]:
    return (*globals(), *schema.message_names())
