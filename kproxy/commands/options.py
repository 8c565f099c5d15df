"""Options as they are declared, and the types of their values.

A declaration is the text of a help page, which `declare` gives to argparse::

    --fail-fast  HELP          a switch
    --record FILE  HELP        a value of the type that FILE says (`_KINDS`); else a text
    --mode {all,none}  HELP    one of these
    --fault RULE …  HELP       may be repeated
    --held SIZE = 1MiB  HELP   this value if it is not given

A type takes the text that was typed and returns the value. An invalid text is a ValueError, one
line with the valid form; `Parser` puts the name of the option before it. `units` and `addresses`
have more of them.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import os
import re
import textwrap
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kproxy.addresses import Address, parse_address, parse_port
from kproxy.units import parse_bytes, parse_seconds

if TYPE_CHECKING:
    from kproxy.exchange.filter import Filter

CAPTURES = Path("recordings/captures")
"""The folder for recordings without a name of the user's; git ignores it."""

RECORDING_SUFFIX = ".mcap"

_ROTATE_BYTES_MIN = 64 << 10
_ROTATE_SECONDS_MIN = 1.0
_TOML_BYTES_MAX = 16 << 20


class UsageError(Exception):
    """The options are wrong in a way that argparse cannot find, such as in combination."""

    exit_code = 2


def listen_address(text: str) -> Address:
    """Parse HOST:PORT to listen at; port 0 means any free port."""
    return parse_address(text, port_min=0)


def host(text: str) -> str:
    """Parse a host, an IPv6 address with or without brackets."""
    name = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    bracketed = f"[{name}]" if ":" in name else name
    if not name:
        raise ValueError("the host is missing")
    if parse_address(f"{bracketed}:1")[0] != name or name.count(":") == 1:
        raise ValueError(f"{text!r} is not a host")
    return name


def node_port(text: str) -> tuple[int, int]:
    """Parse ID=PORT: a node id and the port of its listener."""
    node_id, equals, port_text = text.partition("=")
    if not (equals and node_id.isascii() and node_id.isdigit()):
        raise ValueError(f"{text!r} is not ID=PORT, as in 1=19101")
    return int(node_id), parse_port(port_text)


def count(text: str, *, least: int = 1) -> int:
    """Parse a whole number."""
    if not (text.isascii() and text.isdigit() and int(text) >= least):
        raise ValueError(f"{text!r} is not a number of at least {least}")
    return int(text)


def rotation(text: str) -> tuple[int | None, float | None]:
    """Parse SIZE,TIME, or off for each or both: bytes and seconds after which a file ends."""
    rotate_bytes: int | None = None
    rotate_seconds: float | None = None
    parts = [each for each in text.split(",") if each != "off"]
    for part in parts:
        with contextlib.suppress(ValueError):
            rotate_bytes = parse_bytes(part)
            continue
        with contextlib.suppress(ValueError):
            rotate_seconds = parse_seconds(part)
            continue
        raise ValueError(f"{part!r} is not a size or a duration, as in 1GiB,1h")
    if (rotate_bytes is not None) + (rotate_seconds is not None) < len(parts):
        raise ValueError(f"{text!r}: give one size and one duration, as in 1GiB,1h")
    if (rotate_bytes is not None and rotate_bytes < _ROTATE_BYTES_MIN) or (
        rotate_seconds is not None and rotate_seconds < _ROTATE_SECONDS_MIN
    ):
        raise ValueError(f"{text!r} is too small; at least 64KiB and 1s")
    return rotate_bytes, rotate_seconds


def local_file(text: str) -> Path:
    """Parse the path of a file on this machine."""
    if "://" in text:  # it may have a password: it is not echoed
        raise ValueError("give the path of a local file instead of a URL")
    return Path(text)


def new_file(text: str) -> Path:
    """Parse the path of a file to be written."""
    if not text:
        raise ValueError("names no file")
    return local_file(text)


def new_recording(text: str) -> Path:
    """Parse the path of a recording to be written."""
    path = new_file(text)
    if path.suffix not in ("", RECORDING_SUFFIX):
        what = f"{text!r} does not end in {RECORDING_SUFFIX}, as recordings do"
        raise ValueError(f"{what}; kproxy export makes other files of them")
    return path


def toml_text(option: str, path: Path) -> str:
    """Return the text of a TOML file that an option names.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_TOML_BYTES_MAX + 1)
        if len(data) > _TOML_BYTES_MAX:
            raise UsageError(f"{option} {path}: it is too large")
        return data.decode()
    except OSError as error:
        raise UsageError(f"{option} {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UsageError(f"{path}:{line}: this is no UTF-8") from None


def folder(text: str) -> Path:
    """Parse the path of an existing folder."""
    path = Path(text)
    if not path.is_dir():
        raise ValueError(f"{text!r} is no folder")
    return path


def add_files(parser: ArgumentParser, kind: Callable[[str], object] = str) -> None:
    """Add the argument FILE…."""
    about = "recordings, or folders of them"
    parser.add_argument("files", metavar="FILE", nargs="+", type=kind, help=about)


def add_files_and_filter(
    parser: ArgumentParser,
    metavar: str = "FILE… [FILTER]",
    text: str = "recordings, or folders of them; the filter begins with the first that is no file",
) -> None:
    """Add the argument FILE… [FILTER], for `files_and_filter`."""
    parser.add_argument(
        "files_and_filter", metavar=metavar, nargs="+", help=f"{text} (kproxy help filters)"
    )


def files_and_filter(arguments: Sequence[str]) -> tuple[list[Path], Filter | None]:
    """Split the arguments FILE… [FILTER]: the filter begins with the first that is no path.

    The first argument is always a file, and so are those with the suffix of recordings.

    Raises:
        UsageError: the filter is invalid.
    """
    first = 1
    while first < len(arguments) and is_file(arguments[first]):
        first += 1
    files = [Path(text) for text in arguments[:first]]
    if first == len(arguments):
        return files, None
    try:
        return files, any_filter(" ".join(arguments[first:]))
    except ValueError as error:
        raise UsageError(str(error)) from error


def add_local(parser: ArgumentParser) -> None:
    """Add the option --local."""
    text = "--local  show times of day in the zone of this machine, and read those of the filter so"
    declare(parser.add_argument, text)


def local_filter(wanted: Filter | None, files: Sequence[Path], local: bool) -> Filter | None:
    """Return a filter whose times of day are local, if they are to be.

    Raises: RecordingError.
    """
    if wanted is None or not local:
        return wanted
    from kproxy.recording.paths import by_recording
    from kproxy.units import moment

    zone = moment(by_recording(files)[0].head.start_ns).astimezone().utcoffset()
    return wanted.local(0 if zone is None else zone // datetime.timedelta(microseconds=1) * 1000)


def any_filter(text: str, header_of: str = "") -> Filter:
    """Parse a filter; that of the option `header_of` may need only the connection and the header of
    a request."""
    from kproxy.exchange.filter import FilterError, Need, parse

    try:
        found = parse(text)
        if header_of:
            found.refuse_beyond((Need.CONNECTION, Need.HEADER), header_of)
    except FilterError as error:
        raise ValueError(f"filter {text!r}, {error}: kproxy help filters") from error
    return found


def header_filter(text: str) -> Filter:
    """Parse the filter of --only."""
    return any_filter(text, "--only")


_KINDS: dict[str, Callable[[str], object]] = {
    "FILE": Path,
    "SIZE": parse_bytes,
    "TIME": parse_seconds,
    "N": count,
    "HOST:PORT": listen_address,
}
"""The types that placeholders say."""

_DECLARED = re.compile(
    r"(?P<name>--[\w-]+)(?: (?P<value>\S+))?(?P<many> …)?(?: = (?P<default>\S+))? {2,}(?P<help>.*)"
)


def declare(add: Callable[..., object], text: str, **kinds: Callable[[str], object]) -> None:
    """Add the options of a text: `add` adds one to a parser or a group. `kinds` are the types of
    those whose placeholder does not say it."""
    for each in re.split(r"\n(?=--)", textwrap.dedent(text).strip()):
        found = _DECLARED.fullmatch(re.sub(r"\n *", " ", each))
        assert found is not None, each
        value, settings = found["value"], dict[str, Any](help=found["help"])
        if value is None:
            settings["action"] = "store_true"
        elif value.startswith("{"):
            settings["choices"] = tuple(value[1:-1].split(","))
        else:
            kind = kinds.pop(found["name"][2:].replace("-", "_"), _KINDS.get(value))
            settings |= {"metavar": value, "type": kind}
        if found["many"]:
            settings |= {"action": "append", "default": []}
        if found["default"]:
            settings["default"] = found["default"]
        add(found["name"], **settings)
    assert not kinds, kinds


def is_file(text: str) -> bool:
    """Return whether an argument is meant as a recording, whether it can be read or not.

    What no file can be called (a filter may be longer than a name), and what is not there, is none.
    """
    if text.endswith(RECORDING_SUFFIX):
        return True
    try:
        os.lstat(text)
    except ValueError:  # a NUL byte
        return False
    except OSError as error:
        return error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
    return True


def capture() -> Path:
    """Return a path for a recording without a name of the user's: named by UTC time."""
    return CAPTURES / f"{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S.%fZ}.mcap"
