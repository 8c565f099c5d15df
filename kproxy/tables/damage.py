"""Convert library errors about the values of a damaged recording into a RecordingError."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Concatenate, ParamSpec, TypeVar

import pyarrow as pa

from kproxy.recording import RecordingError
from kproxy.tables.splits import Stretch

_FOREIGN = (pa.ArrowException, ArithmeticError, LookupError, TypeError, ValueError)
"""Errors of pyarrow, numpy and Python about values of another type, or out of range."""

P = ParamSpec("P")
T = TypeVar("T")


def names_file(
    read: Callable[Concatenate[Stretch, P], Iterator[T]],
) -> Callable[Concatenate[Stretch, P], Iterator[T]]:
    """Decorate a reader of stretches so that its errors name the damaged file: values may be wrong
    even if all checksums of the file are right."""

    @functools.wraps(read)
    def reading(stretch: Stretch, /, *arguments: P.args, **more: P.kwargs) -> Iterator[T]:
        try:
            yield from read(stretch, *arguments, **more)
        except (RecordingError, MemoryError):
            raise
        except _FOREIGN as error:
            why = str(error).partition("\n")[0] or type(error).__name__
            raise RecordingError(stretch.path, None, f"is damaged: {why}") from error

    return reading
