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
import math
import os
import re
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import NamedTuple

from kproxy.commands.options import UsageError, declare

VARIABLES = ("KAFKA_BOOTSTRAP_SERVERS", "SPRING_KAFKA_BOOTSTRAP_SERVERS", "KPROXY_BOOTSTRAP")
"""Variables of the command's environment that hold the bootstrap address."""
UNMET = 3
"""The exit code where the command succeeded, but kproxy has something to object."""
UNREACHED = (
    "no broker has answered the command: its clients connect to the address in"
    f" {VARIABLES[0]}, or in the variable that --bootstrap-env names"
)

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
    declare(
        group.add_argument,
        f"""
        --bootstrap-env NAME …  another variable for the bootstrap address, which the command finds
            in {", ".join(VARIABLES)}, and in place of {_PLACE} in its arguments; may be repeated
        """,
        bootstrap_env=_variable,
    )


def _variable(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
        raise ValueError(f"{text!r}: give the name of a variable")
    return text


def environment(bootstrap: str, more: Sequence[str]) -> Mapping[str, str]:
    """Return our environment with the bootstrap address, if there is one, and without kproxy's
    credentials; `more` are further variables."""
    from kproxy.net.tls.credentials import without_login

    addresses = dict.fromkeys((*VARIABLES, *more), bootstrap) if bootstrap else {}
    return {**without_login(os.environ), **addresses}


class Child(NamedTuple):
    """A command of the user's."""

    command: Sequence[str]
    variables: Sequence[str] = ()
    """Further variables for the bootstrap address."""

    def run(self, bootstrap: str, alive: Callable[[], bool], signals: deque[int]) -> int | None:
        """Run the command to its end; return its exit code. Where kproxy is no longer `alive`, end
        the command, and return None. `signals` that have come are passed on: see `held_signals`.

        Raises:
            NotStarted: there is no such command.
        """
        process = self._started(bootstrap)
        end_at, interrupts = math.inf, 0
        while (code := _ended(process)) is None:
            while signals:
                number = signals.popleft()
                interrupts += number == signal.SIGINT
                if number != signal.SIGINT or interrupts > 1 or not _had_it(process):
                    process.send_signal(number)
            if end_at == math.inf and not alive():
                end_at = time.monotonic() + _END_SECONDS
                process.terminate()
            elif time.monotonic() > end_at:
                process.kill()
        return code if end_at == math.inf else None

    def _started(self, bootstrap: str) -> subprocess.Popen[bytes]:
        words = [word.replace(_PLACE, bootstrap) for word in self.command]
        try:
            return subprocess.Popen(words, env=environment(bootstrap, self.variables))
        except (FileNotFoundError, NotADirectoryError):
            text = f"{words[0]}: there is no such command"
            raise NotStarted(text, _NOT_FOUND) from None
        except OSError as error:
            raise NotStarted(f"{words[0]}: {error.strerror}", _NOT_EXECUTABLE) from None


def _ended(process: subprocess.Popen[bytes]) -> int | None:
    """Wait a moment; return the exit code, as a shell has it, or None while it runs."""
    try:
        code = process.wait(_LOOK_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    return code if code >= 0 else _SIGNALLED - code


def wait_for_signal(alive: Callable[[], bool], signals: deque[int]) -> None:
    """Wait for a signal that ends kproxy, or until it is not `alive`."""
    while alive() and not signals:
        time.sleep(_LOOK_SECONDS)


@contextlib.contextmanager
def held_signals() -> Generator[deque[int]]:
    """Collect the signals that come, but for those that we ignore, so that none ends kproxy before
    the recording is complete and in its place."""
    held: deque[int] = deque()

    def take(number: int, frame: object) -> None:
        held.append(number)

    ignored = {each for each in _PASSED_ON if signal.getsignal(each) is signal.SIG_IGN}
    before = {each: signal.signal(each, take) for each in _PASSED_ON if each not in ignored}
    try:
        yield held
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _had_it(process: subprocess.Popen[bytes]) -> bool:
    """Return whether the command has had a SIGINT that we have: a terminal's Ctrl-C goes to all of
    the group in its foreground."""
    try:
        return os.getpgid(process.pid) == os.getpgrp() and _from_terminal()
    except ProcessLookupError:
        return True


def _from_terminal() -> bool:
    """Return whether we are in the foreground of a terminal."""
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
