"""Values that are made when they are asked for, once.

As `functools.cached_property`, but without the lock that this has before Python 3.12, which costs
more than most of what exchanges keep: a recording has millions of them, and each several values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

Value = TypeVar("Value")


class Lazily(Generic[Value]):
    """A method without arguments, read as an attribute; its value is kept on the object."""

    def __init__(self, make: Callable[[Any], Value]) -> None:
        self.make = make
        self.name = make.__name__
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> Lazily[Value]: ...

    @overload
    def __get__(self, owner: object, kind: type) -> Value: ...

    def __get__(self, owner: object | None, kind: type) -> Lazily[Value] | Value:
        if owner is None:
            return self
        # Found there from now on, before this is asked.
        value = owner.__dict__[self.name] = self.make(owner)
        return value
