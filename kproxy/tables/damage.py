"""What libraries raise about the values of a damaged recording, as an error that names the file."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Concatenate, ParamSpec, TypeVar

import pyarrow as pa

from kproxy.recording import RecordingError
from kproxy.tables.splits import Stretch

_FOREIGN = (pa.ArrowException, ArithmeticError, LookupError, TypeError, ValueError)
"""What pyarrow, numpy and Python raise about values that are of another type, or do not fit."""

P = ParamSpec("P")
T = TypeVar("T")


def named(
    read: Callable[Concatenate[Stretch, P], Iterator[T]],
) -> Callable[Concatenate[Stretch, P], Iterator[T]]:
    """Have what reads a stretch say which file is damaged: the checksums of a file may be right,
    and its values such as kproxy never writes."""

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
