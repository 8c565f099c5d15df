"""A class per message of Kafka, over all its versions, made when it is first asked for.

`messages.MetadataResponse` is an attrs class with every field of every version, each with the
default of Kafka's definition; its structs are attributes of it under Kafka's names, such as
`messages.MetadataResponse.MetadataResponseBroker`. Arguments are keyword-only, and no class can be
derived from it. What a version does not have stays at its default when that version is decoded, and
is left out when it is encoded.

A tagged struct that was not sent is None. `unknown_tags` of every struct keeps what the table does
not know, as (tag, bytes) pairs in wire order; there, too, stay the bytes of a known tag that was
sent although it has its default.

Static types: `messages.pyi`, generated from the same table.
"""

from __future__ import annotations

import functools
from typing import Any

import attrs

from kproxy.wire.protocol import schema
from kproxy.wire.protocol.schema import Field


@functools.cache
def message_class(name: str) -> type:
    """Return the class of a message, e.g. "MetadataResponse"; KeyError if there is none."""
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


def _make(name: str, qualified: str, fields: tuple[Field, ...], structs: dict[str, type]) -> type:
    defaults = {field.name: _default(field, structs) for field in fields}
    defaults["unknown_tags"] = ()
    body: dict[str, Any] = {
        "__module__": __name__,
        "__qualname__": qualified,
        "__doc__": f"Kafka's {qualified}.",
        "__slots__": tuple(defaults),
        "__init__": _init,
        "__eq__": _equal,
        "__repr__": _repr,
    }
    made = structs[name] = _MessageType(name, (), body)
    made.__field_defaults__ = defaults
    return made


class _MessageType(type):
    """The type of the classes: shows each to attrs as one of its own.

    `attrs.define` takes 0.3 ms, which would be most of the first use of a message, and makes
    methods that the codec does not call. So a class is plain slots, whose three methods loop over
    the fields, and attrs's description of it is made when `attrs.fields` or the like asks.
    """

    __field_defaults__: dict[str, Any]
    """The default of each field, or an `attrs.Factory` of one."""

    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> _MessageType:
        if bases:
            raise TypeError(f"{bases[0].__qualname__} is final: its fields are what Kafka defines")
        return super().__new__(cls, name, bases, body)

    @property
    def __attrs_attrs__(cls) -> tuple[Any, ...]:
        return _attributes(cls)


@functools.cache
def _attributes(cls: _MessageType) -> tuple[Any, ...]:
    described = {name: attrs.field(default=value) for name, value in cls.__field_defaults__.items()}
    return attrs.fields(attrs.make_class(cls.__name__, described, kw_only=True))


def _init(self: Any, **values: Any) -> None:
    for name, default in self.__field_defaults__.items():
        if name in values:
            value = values.pop(name)
        else:
            value = default.factory() if isinstance(default, _FACTORY) else default
        setattr(self, name, value)
    if values:
        raise TypeError(f"{type(self).__qualname__} has no field {next(iter(values))!r}")


_FACTORY: Any = attrs.Factory


def _equal(self: Any, other: object) -> bool:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)


def _repr(self: Any) -> str:
    fields = (f"{name}={getattr(self, name)!r}" for name in self.__slots__)
    return f"{type(self).__qualname__}({', '.join(fields)})"


def _default(field: Field, structs: dict[str, type]) -> Any:
    default = schema.default_value(field)
    if field.is_array and default is not None:
        return _NEW_LIST
    if field.defaults_to_struct:
        return attrs.Factory(structs[field.element])
    return default


_NEW_LIST: Any = attrs.Factory(list)


def __getattr__(name: str) -> type:
    try:
        made = message_class(name)
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    globals()[name] = made
    return made


def __dir__() -> tuple[str, ...]:
    return (*globals(), *schema.message_names())
