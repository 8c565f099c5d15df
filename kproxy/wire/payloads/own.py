"""A user's own decoders: functions that decode what they know.

    def decode(topic: str, part: str, data: bytes, headers) -> value or None

`part` is `key` or `value`; `headers` are names and bytes; None leaves the bytes to others. Packages
name theirs by an entry point of the group `kproxy.decoders`, in every view; pytest's setting
`kproxy_decoder` names one as `module:function`.

Invariant: nothing that a decoder does, or its import, raises here anything but PayloadError.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from kproxy.wire.payloads.plain import PayloadError, plain

GROUP = "kproxy.decoders"
_WORD_CHARS_MAX = 120

_Decode = Callable[[str, str, bytes, Sequence[tuple[str, bytes | None]]], Any]


@attrs.define(eq=False)
class OwnDecoder:
    """A function that is imported when the first bytes are to be decoded."""

    name: str
    load: Callable[[], _Decode]
    _decode: _Decode | None = attrs.field(default=None, init=False)
    _broken: str = attrs.field(default="", init=False)

    def decode(
        self, topic: str, part: str, data: bytes, headers: Sequence[tuple[str, bytes | None]]
    ) -> Any:
        """Return the plain value of some bytes, or None.

        Raises:
            PayloadError: the decoder is broken, or has raised.
        """
        if self._decode is None and not self._broken:
            try:
                self._decode = self.load()
            except Exception as error:  # whatever its module does
                self._broken = f"{self.name} cannot be imported: {_said(error)}"
        if self._decode is None:
            raise PayloadError(self._broken)
        try:
            return plain(self._decode(topic, part, data, headers))
        except PayloadError as error:
            raise PayloadError(f"{self.name}: {error}") from error
        except Exception as error:  # whatever a user's function does
            raise PayloadError(f"{self.name}: {_said(error)}") from error


def _said(error: Exception) -> str:
    """Return an exception in one short line."""
    text = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    return text if len(text) <= _WORD_CHARS_MAX else f"{text[: _WORD_CHARS_MAX - 1]}…"


@functools.cache
def installed() -> tuple[OwnDecoder, ...]:
    """Return the decoders of installed packages, by name."""
    from importlib.metadata import entry_points  # it takes a tenth of the time of a start

    found = entry_points(group=GROUP)
    return tuple(OwnDecoder(f"decoder {each.name}", each.load) for each in sorted(found))


def named(text: str) -> OwnDecoder:
    """Return the decoder that `module:function` names."""
    return OwnDecoder(f"decoder {text}", functools.partial(_imported, text))


def _imported(text: str) -> _Decode:
    module, colon, name = text.partition(":")
    if not (module and colon and name):
        raise ValueError("write module:function")
    return getattr(importlib.import_module(module), name)
