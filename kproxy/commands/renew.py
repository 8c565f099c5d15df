"""`kproxy renew`: recordings made anew, each by its own test or command.

::

    FILE … ─ made_by ─▶ tests ────▶ pytest --kproxy-mode=renew, which asks by itself
                    └─▶ commands ─▶ kproxy replay NEW --cassette once ─▶ diff ─▶ replaced, or not
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kproxy.commands.child import Child, held_signals
from kproxy.commands.options import UsageError, declare, local_file
from kproxy.commands.output import fail
from kproxy.printable import printable

_SIGNALLED = 128


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        "Record again what `kproxy replay --cassette` and pytest have recorded: a recording knows"
        " its command, or its test. What the new one means otherwise is shown, and you are asked"
        " whether it replaces the old one, which stays where the command or the test fails. What"
        " was learned to vary is kept. The exit code is 0 where all were recorded again."
    )
    parser.add_argument(
        "files", metavar="FILE", nargs="+", type=local_file, help="a recording, or a folder"
    )
    declare(
        parser.add_argument,
        """
        --broker HOST:PORT[,…]  the real broker
        --config FILE  the properties of a client: where the real broker is, and TLS to it
        --stale-after TIME  only recordings that are older, as 90d
        --learn N  record each N times, and learn anew what varies
        --yes  replace all, without a question; where there is no terminal, nothing is replaced else
        --record-in-ci  record in continuous integration, too
        """,
    )


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    from kproxy.testing.renewing import Renewed, replace

    tests: dict[Path, list[str]] = {}
    renewed: list[Renewed] = []
    code = found = 0
    for path, made in _chosen(options.files, options.stale_after):
        found += 1
        if isinstance(made, str):
            code = fail(f"kproxy renew: {path}: {made}")
        elif "test" in made:
            tests.setdefault((path.resolve().parent / made["from"]).resolve(), []).append(
                made["test"]
            )
        elif (ended := _recorded(path, made, options)) >= _SIGNALLED:
            return ended
        elif ended:
            code = fail(f"kproxy renew: {path}: its command failed, and it stays as it was")
        else:
            renewed.append(Renewed(path, str(path)))

    def write(line: str) -> None:
        print(printable(line), flush=True)

    stay = replace(renewed, write, is_sure=options.yes)
    if stay and not sys.stdin.isatty():
        write("there is no terminal to ask: --yes replaces all")
    for folder, names in tests.items():
        code = _pytest(folder, names, options) or code
    if not found:
        write("no recording is that old")
    return code


def _chosen(
    files: Sequence[Path], stale_after: float | None
) -> Iterator[tuple[Path, dict[str, Any] | str]]:
    """Yield the recordings to renew, and what makes each of them anew, or why nothing does."""
    from kproxy.recording import RecordingError
    from kproxy.testing.files import is_beside
    from kproxy.testing.renewing import LEFT_OUT, days_old, maker

    for file in files:
        paths = sorted(file.rglob("*.mcap")) if file.is_dir() else [file]
        if not paths:
            raise UsageError(f"{file} has no recordings (*.mcap)")
        for path in (each for each in paths if not is_beside(each)):
            try:
                if stale_after is not None and days_old(path, stale_after) is None:
                    continue
                made = maker(path)
            except (RecordingError, OSError) as error:
                yield path, str(error)
                continue
            again = f"kproxy replay {shlex.quote(str(path))} --cassette rewrite"
            words = [*made.get("options", ()), *made.get("command", ())] if made else []
            if made is None:
                yield path, f"does not say what recorded it; record it once by pytest, or: {again}"
            elif LEFT_OUT in "".join(words):
                line = shlex.join(made["command"])
                yield path, f"a credential of its command is not kept: {again} -- {line}"
            else:
                yield path, made


def _recorded(path: Path, made: dict[str, Any], options: argparse.Namespace) -> int:
    """Run the command of a recording, and record it beside; return the exit code."""
    from kproxy.commands import config, replay
    from kproxy.commands.parser import command_parser
    from kproxy.testing.files import renewed_file
    from kproxy.testing.renewing import keep_learned

    new = renewed_file(path)
    new.unlink(missing_ok=True)
    given = [*_given(options, "--"), *(["--learn", str(options.learn)] if options.learn else [])]
    words = [str(new), *made["options"], "--cassette", "once", *given]
    with contextlib.chdir(path.resolve().parent / made["from"]):
        asked = config.parse(command_parser("replay"), words)
        asked.command, asked.typed = made["command"], words
        code = replay.run(asked)
    if code == 0 and not options.learn:
        keep_learned(path, new)
    return code


def _given(options: argparse.Namespace, prefix: str) -> list[str]:
    """Return what was typed about the broker, for another command."""
    config = options.config and str(options.config.resolve())
    named = {"broker": options.broker, "config": config}
    words = [f"{prefix}{name}={value}" for name, value in named.items() if value]
    return [*words, *([f"{prefix}record-in-ci"] if options.record_in_ci else [])]


def _pytest(folder: Path, tests: Sequence[str], options: argparse.Namespace) -> int:
    """Renew the recordings of tests; return the exit code."""
    words = [sys.executable, "-m", "pytest", "--kproxy-mode=renew", *_given(options, "--kproxy-")]
    words += ["--kproxy-yes"] if options.yes else []
    words += [f"--kproxy-learn={options.learn}"] if options.learn else []
    with held_signals() as signals, contextlib.chdir(folder):
        return Child([*words, *tests]).run("", lambda: True, signals) or 0
