"""The command `kproxy`: what people type, and what they are told when it cannot be done.

Exit codes: 0 done, 2 for what was typed, 1 for all the rest. An error is one line on stderr that
says what is wrong, where, and what to do; for what was typed it names the command's own help.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence

from kproxy import __version__
from kproxy.commands.options import UsageError
from kproxy.commands.output import discard_output, fail
from kproxy.commands.parser import COMMANDS, Parser, command_module, command_parser

WITHOUT_OUTPUT = frozenset({"run", "replay"})
"""Daemons: they go on where nobody reads what they write."""

_OF_OUTPUT = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF, errno.EIO, errno.ENXIO}
)
"""What writing to a stream fails with."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (default: sys.argv); return its exit code."""
    if sys.platform == "win32":
        return fail("kproxy: Windows is not supported; use Linux, macOS or WSL", 2)
    typed = sys.argv[1:] if arguments is None else list(arguments)
    known = bool(typed) and typed[0] in COMMANDS
    _open_streams(writes=not known or typed[0] not in WITHOUT_OUTPUT)
    name = f"kproxy {typed[0]}" if known else "kproxy"
    try:
        code = _command(typed) if known else _no_command(typed)
        sys.stdout.flush()
        return code
    except UsageError as error:
        return fail(f"{name}: {error} (see {name} --help)", 2)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone (| head).
        discard_output()
        return 0
    except OSError as error:
        return fail(f"{name}: {_what_failed(error)}")


def _command(typed: list[str]) -> int:
    name = typed[0]
    options = command_parser(name).parse_intermixed_args(typed[1:])
    return command_module(name).run(options)


def _no_command(typed: list[str]) -> int:
    parser = _parser()
    parser.parse_args(typed)
    parser.print_help()
    return 2


def _open_streams(*, writes: bool) -> None:
    """Have something where standard output or error are closed, as daemons have them; where output
    is what is wanted, writing it fails then."""
    if sys.stdout is None:
        reading = os.open(os.devnull, os.O_RDONLY if writes else os.O_WRONLY)
        sys.stdout = open(reading, "w", encoding="utf-8")
    sys.stderr = sys.stderr or open(os.devnull, "w")


def _what_failed(error: OSError) -> str:
    """Say what the system refused. Recordings that cannot be read are other errors."""
    what = error.strerror or str(error)
    if error.filename is not None:
        return f"{error.filename}: {what}"
    if error.errno in _OF_OUTPUT:
        discard_output()
        return f"cannot write the output: {what}"
    return what


def _parser() -> Parser:
    """The parser for when no command was typed."""
    parser = Parser(
        prog="kproxy",
        description="Record what Kafka clients and brokers say to each other, and look at it.",
    )
    parser.add_argument("--version", action="version", version=f"kproxy {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.about)
    return parser
