"""Protobuf definitions as descriptors, so that nobody who reads a recording needs a compiler.

::

    a registry's descriptor of one file, those that it refers to ─┐
    .proto files ─ protoc ────────────────────────────────────────┴─▶ FileDescriptorSet, base64

Files stand in the set dependencies first, the one that is meant last. The compiler is Google's, in
`grpcio-tools`, as a process of its own: nothing that a registry sends is compiled in this one.
"""

from __future__ import annotations

import base64
import importlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from kproxy.net.registry.source import RegistryError
from kproxy.printable import printable
from kproxy.wire.protocol import ProtocolError
from kproxy.wire.protocol.record_fields import varint
from kproxy.wire.protocol.wire import write_varint

KIND = "PROTOBUF"
MAIN = "main.proto"
"""The name of a file that has none of its own."""
_COMPILE_SECONDS = 20
_STANDARD = re.compile(r"(google/protobuf|google/type|confluent|confluent/type)/[a-z_]+\.proto")
"""Files that registries do not have, because serialisers bring them."""
_PACKAGES = {"confluent": "confluent_kafka.schema_registry.confluent"}
_NAME, _DEPENDENCY, _FILE = b"\x0a", 3, b"\x0a"


def descriptors(definition: str, references: Sequence[tuple[str, str]]) -> str:
    """Return the set of a definition and what it refers to, as a registry has them: descriptors in
    base64, or texts.

    Raises: RegistryError.
    """
    files = {name: _descriptor(text) for name, text in references}
    main = _descriptor(definition)
    if main is None or None in files.values():
        return compiled(definition, references)
    named = {name: data for name, data in files.items() if data is not None}
    # The registry's names are its own; the files know each other by the names of references.
    every = {**named, MAIN: main}
    standard: dict[str, bytes] = {}
    for data in every.values():
        _add_standard(data, standard, every)
    parts = [*standard.values(), *(data + _named(name) for name, data in every.items())]
    return _set(parts)


def compiled(definition: str, references: Sequence[tuple[str, str]]) -> str:
    """Return the set of a text and what it imports.

    Raises: RegistryError, also when there is no compiler.
    """
    with tempfile.TemporaryDirectory(prefix="kproxy-") as name:
        folder = Path(name)
        for path, text in [*references, (MAIN, definition)]:
            pure = PurePosixPath(path)
            if pure.is_absolute() or ".." in pure.parts or "\0" in path or not pure.name:
                raise RegistryError(
                    printable(f"a schema is imported as {path!r}, which is no name")
                )
            file = folder / pure
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
            except (OSError, ValueError) as error:
                what = f"a schema is imported as {path!r}: {error}"
                raise RegistryError(printable(what.replace(name, ""))) from None
        return compiled_file(folder, MAIN)


def compiled_file(folder: Path, name: str) -> str:
    """Return the set of a file in a folder, and of what it imports there.

    Raises: RegistryError, also when there is no compiler.
    """
    try:
        compiler = importlib.import_module("grpc_tools")
    except ImportError as error:
        what = "a .proto text needs a compiler: pip install 'kproxy-kafka[schemas]'"
        raise RegistryError(what) from error
    standard = Path(compiler.__file__ or "").parent / "_proto"
    with tempfile.TemporaryDirectory(prefix="kproxy-") as made:
        out = Path(made) / "set"
        command = [
            *(sys.executable, "-m", "grpc_tools.protoc"),
            *(f"-I{folder}", f"-I{standard}", "--include_imports", f"--descriptor_set_out={out}"),
            str(folder / name),
        ]
        try:
            done = subprocess.run(
                command,
                check=False,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_COMPILE_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise RegistryError(f"{name} does not compile within {_COMPILE_SECONDS} s") from None
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().partition("\n")[0]
            raise RegistryError(printable(f"{name} does not compile: {said}"))
        return base64.b64encode(out.read_bytes()).decode()


def _descriptor(text: str) -> bytes | None:
    """Return the descriptor that a registry sent; None if it sent the text of a .proto."""
    try:
        data = base64.b64decode(text, validate=True)
        list(_fields(data))
    except (ValueError, IndexError, ProtocolError):
        return None
    return data or None


def _add_standard(data: bytes, standard: dict[str, bytes], given: dict[str, bytes]) -> None:
    """Add the files that no registry has and that a file imports, as far as they are here."""
    for number, value in _fields(data):
        name = value.decode(errors="replace") if number == _DEPENDENCY else ""
        if name in standard or name in given or not _STANDARD.fullmatch(name):
            continue
        first, *rest = name.removesuffix(".proto").split("/")
        try:
            module = importlib.import_module(
                ".".join([_PACKAGES.get(first, first), *rest]) + "_pb2"
            )
        except Exception:  # whatever is wrong with a package of others
            continue
        found: bytes = module.DESCRIPTOR.serialized_pb
        _add_standard(found, standard, given)
        standard[name] = found + _named(name)


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the fields of a descriptor that have a length.

    Raises: ValueError, IndexError, ProtocolError, when these bytes are none.
    """
    at = 0
    while at < len(data):
        key, at = varint(data, at, 10)
        if key & 7 == 0:
            _, at = varint(data, at, 10)
        elif key & 7 == 2:
            size, at = varint(data, at, 10)
            if at + size > len(data) or not key >> 3:
                raise ValueError("it ends in a field")
            yield key >> 3, data[at : at + size]
            at += size
        else:
            raise ValueError("it has a field of another kind")


def _prefixed(data: bytes) -> bytes:
    """Return bytes with their length in front."""
    return write_varint(len(data)) + data


def _named(name: str) -> bytes:
    """Return the field of a file's name; of several the last one counts."""
    return _NAME + _prefixed(name.encode())


def _set(files: Sequence[bytes]) -> str:
    return base64.b64encode(b"".join(_FILE + _prefixed(data) for data in files)).decode()
