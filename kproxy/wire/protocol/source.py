"""Writing a Python function line by line, and making it.

The codec's functions are generated source: `FunctionSource` collects lines, keeps what the lines
refer to in a namespace, and hands out names that no other line uses. Tracebacks and debuggers see
the lines (linecache).
"""

from __future__ import annotations

import contextlib
import linecache
from collections.abc import Callable, Generator
from typing import Any

import attrs

from kproxy.wire.protocol import wire

CODES = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
"""Type → code of the struct module."""


@attrs.define(eq=False)
class FunctionSource:
    """The source of a function that is being written."""

    lines: list[str] = attrs.Factory(list)
    namespace: dict[str, Any] = attrs.Factory(dict)
    indent: str = ""
    names: int = 0
    utf8_only: bool = False
    """True if strings are read as UTF-8, which is faster than escaping other bytes."""
    inlines: bool = True
    """True if compact lengths of one byte are read in place, not by a function."""
    functions: set[str] = attrs.Factory(set)
    """The structs that have a function of their own."""
    in_steps: bool = False
    """True if the function is a generator that yields before each element of an array."""

    def __call__(self, *lines: str) -> None:
        """Append lines at the present depth."""
        indent = self.indent
        self.lines += [indent + line for line in lines]

    @contextlib.contextmanager
    def block(self, line: str) -> Generator[None]:
        """Append a line that ends in a colon, and indent what follows."""
        self(line)
        before = self.indent
        self.indent = before + " "
        yield
        self.indent = before

    @contextlib.contextmanager
    def loop(self, line: str) -> Generator[None]:
        """Append a loop over the elements of an array."""
        with self.block(line):
            self.begin_step()
            yield

    def begin_step(self) -> None:
        """Yield, if this is done in steps: what must be a generator begins with it."""
        if self.in_steps:
            self("yield")

    def name(self, prefix: str) -> str:
        """Return a name that was not returned before."""
        self.names += 1
        return f"{prefix}{self.names}"

    def constant(self, name: str, value: Any) -> str:
        """Make a value known to the lines under this name."""
        self.namespace[name] = value
        return name

    def value(self, prefix: str, value: Any) -> str:
        """Make a value known to the lines under a new name."""
        return self.constant(self.name(prefix), value)

    def unpacker(self, form: str) -> str:
        """Return the name of `Struct(form).unpack_from`."""
        return self.constant("u_" + form.replace("?", "t"), wire.unpacker(form))

    def packer(self, form: str) -> str:
        """Return the name of `Struct(form).pack`."""
        return self.constant("p_" + form.replace("?", "t"), wire.packer(form))

    def build(self, title: str, function: str) -> Callable[..., Any]:
        """Execute the lines and return the function of that name that they define."""
        text = "\n".join(self.lines) + "\n"
        filename = f"<kproxy {title}>"
        linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
        exec(compile(text, filename, "exec"), self.namespace)
        made: Callable[..., Any] = self.namespace[function]
        return made
