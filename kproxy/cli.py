"""The command `kproxy`: it runs the command that was typed, and reports errors.

Exit codes: 0 done, 2 usage errors, 1 all other errors. An error is one line on stderr that says
what is wrong, where, and what to do; a usage error also names the help of the command. Exceptions
that are such a line have the attribute `exit_code`; all others are defects.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence

from kproxy import __version__
from kproxy.commands.options import UsageError
from kproxy.commands.output import code_of, discard_output, end_errors, fail
from kproxy.commands.parser import COMMANDS, Parser, command_module, command_parser

SERVING = frozenset({"run", "replay"})
"""Commands that clients connect to: they run on even if nobody reads their output, and take a
command of the user's behind `--`."""

_OUTPUT_ERRORS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF, errno.EIO, errno.ENXIO}
)
"""Error numbers of a failed write to a stream."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (default: sys.argv); return its exit code."""
    if sys.platform == "win32":
        return fail("kproxy: Windows is not supported; use Linux, macOS or WSL", 2)
    typed = sys.argv[1:] if arguments is None else list(arguments)
    is_command = bool(typed) and typed[0] in COMMANDS
    _open_streams(needs_output=not is_command or typed[0] not in SERVING)
    name = f"kproxy {typed[0]}" if is_command else "kproxy"
    try:
        code = _command(typed) if is_command else _no_command(typed)
        sys.stdout.flush()
        return code
    except UsageError as error:
        return fail(f"{name}: {error} (see {name} --help)", 2)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has gone (| head).
        discard_output()
        return 0
    except OSError as error:
        return fail(f"{name}: {_error_text(error)}")
    except MemoryError:
        return fail(f"{name}: there is not enough memory: a filter leaves out what is large")
    except Exception as error:
        if not hasattr(error, "exit_code"):
            raise
        return fail(f"{name}: {error}", code_of(error))
    finally:
        end_errors()


def _command(typed: list[str]) -> int:
    name, *words = typed
    command: list[str] | None = None
    if name in SERVING:
        from kproxy.commands.child import split

        words, command = split(words)
    parser = command_parser(name)
    if name in SERVING:
        from kproxy.commands import config

        options = config.parse(parser, words)
    else:
        options = parser.parse(words)
    options.command, options.typed = command, words
    return command_module(name).run(options)


def _no_command(typed: list[str]) -> int:
    parser = _parser()
    if typed and typed[0].startswith("-") and typed[0] not in ("-h", "--help", "--version"):
        parser.refuse(typed[:1])  # else what follows would be a command that is echoed
    parser.parse_args(typed)
    parser.print_help()
    return 2


def _open_streams(*, needs_output: bool) -> None:
    """Replace closed standard streams, which daemons may have. Writing to the new stdout fails if
    the command needs its output, and is discarded otherwise."""
    if sys.stdout is None:
        descriptor = os.open(os.devnull, os.O_RDONLY if needs_output else os.O_WRONLY)
        sys.stdout = open(descriptor, "w", encoding="utf-8")
    sys.stderr = sys.stderr or open(os.devnull, "w")


def _error_text(error: OSError) -> str:
    """Return the text for an error of the system, other than for recordings."""
    what = error.strerror or str(error)
    if error.filename is not None:
        return f"{error.filename}: {what}"
    if error.errno in _OUTPUT_ERRORS:
        discard_output()
        return f"cannot write the output: {what}"
    return what


def _parser() -> Parser:
    """Return the parser for a command line without a command."""
    parser = Parser(
        prog="kproxy",
        description="Record what Kafka clients and brokers say to each other, and look at it.",
    )
    parser.add_argument("--version", action="version", version=f"kproxy {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.about)
    return parser
