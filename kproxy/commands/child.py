"""A command of the user's, which runs while kproxy does: `kproxy run … -- COMMAND`.

::

    bootstrap address ─▶ environment, {bootstrap} in the arguments ─▶ the command ─▶ exit code
    signals to kproxy ──────────────────────────────────────────────▶      │
    kproxy has ended by itself ─────────────────────────────────────▶ SIGTERM, SIGKILL

The command has kproxy's standard streams. Call this in the main thread, which alone gets signals;
kproxy itself runs in other threads meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping, Sequence

from kproxy.commands.options import UsageError

VARIABLES = ("KAFKA_BOOTSTRAP_SERVERS", "SPRING_KAFKA_BOOTSTRAP_SERVERS", "KPROXY_BOOTSTRAP")
"""Variables of the command's environment that hold the bootstrap address."""
UNMET = 3
"""The exit code where the command succeeded, but kproxy has something to object."""

_PLACE = "{bootstrap}"
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127
"""Exit codes of shells."""
_SIGNALLED = 128
"""Added to the number of a signal: the exit code of shells for a command that it ended."""
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK_SECONDS = 0.1
"""Interval at which the end of kproxy is noticed."""
_END_SECONDS = 5.0
"""Time between SIGTERM and SIGKILL."""


class NotStarted(Exception):
    """A command that cannot be started; the text says why."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def split(typed: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Split a command line at the first `--`: kproxy's part, and the command, or None.

    Raises:
        UsageError: nothing stands behind `--`.
    """
    if "--" not in typed:
        return list(typed), None
    place = typed.index("--")
    command = list(typed[place + 1 :])
    if not command:
        raise UsageError("give a command behind --")
    return list(typed[:place]), command


def add_child_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command behind `--`."""
    group = parser.add_argument_group("the command behind --")
    group.add_argument(
        "--bootstrap-env",
        metavar="NAME",
        type=_variable,
        action="append",
        default=[],
        help="another variable for the bootstrap address, which the command finds in"
        f" {', '.join(VARIABLES)}, and in place of {_PLACE} in its arguments; may be repeated",
    )
    parser.set_defaults(command=None)


def _variable(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
        raise ArgumentTypeError(f"{text!r}: give the name of a variable")
    return text


def environment(bootstrap: str, more: Sequence[str]) -> Mapping[str, str]:
    """Return our environment with the bootstrap address; `more` are further variables."""
    return {**os.environ, **dict.fromkeys((*VARIABLES, *more), bootstrap)}


def run_child(
    command: Sequence[str], bootstrap: str, more: Sequence[str], alive: Callable[[], bool]
) -> int:
    """Run a command to its end; return its exit code. It is ended where kproxy is not `alive`.

    Raises:
        NotStarted: there is no such command.
    """
    words = [word.replace(_PLACE, bootstrap) for word in command]
    with _signals() as pending:
        try:
            process = subprocess.Popen(words, env=environment(bootstrap, more))
        except (FileNotFoundError, NotADirectoryError):
            text = f"{words[0]}: there is no such command"
            raise NotStarted(text, _NOT_FOUND) from None
        except OSError as error:
            raise NotStarted(f"{words[0]}: {error.strerror}", _NOT_EXECUTABLE) from None
        ended_at: float | None = None
        while True:
            try:
                code = process.wait(_LOOK_SECONDS)
                return code if code >= 0 else _SIGNALLED - code
            except subprocess.TimeoutExpired:
                while pending:
                    process.send_signal(pending.pop(0))
            if ended_at is None and not alive():
                ended_at = time.monotonic()
                process.terminate()
            elif ended_at is not None and time.monotonic() > ended_at + _END_SECONDS:
                process.kill()


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect the signals to pass on. A terminal sends those of its keys to the command, too."""
    pending: list[int] = []

    def take(number: int, frame: object) -> None:
        if number != signal.SIGINT or not _from_terminal():
            pending.append(number)

    ignored = {each for each in _PASSED_ON if signal.getsignal(each) is signal.SIG_IGN}
    before = {each: signal.signal(each, take) for each in _PASSED_ON if each not in ignored}
    try:
        yield pending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _from_terminal() -> bool:
    """Return whether we are in the foreground of a terminal: then its Ctrl-C sent the signal."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
