"""`kproxy git-setup`: have `git diff` show the changed behaviour in recordings, not bytes.

::

    .gitattributes    *.mcap -text diff=kproxy             is committed, for everybody
    .git/config       diff.kproxy.textconv = … textconv    is each clone's own: git runs no program
                                                           that a repository names
    .gitignore        *.failed.mcap                        is committed: recordings of failed tests
                                                           are not
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

from kproxy.commands.output import fail

ATTRIBUTES = "*.mcap -text diff=kproxy"
"""The line of .gitattributes. It must not have `binary`, which would turn diffs off."""

IGNORED = "*.failed.mcap"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        "Have git show recordings by what they mean: `git diff` says which records, groups and"
        " errors changed, and nothing where the same was recorded again. To be run once in each"
        " clone; .gitattributes and .gitignore, where the recordings of tests that failed are left"
        " out, are to be committed."
    )


def run(options: argparse.Namespace) -> int:
    """Set up the repository of the current folder; return the exit code."""
    try:
        root = Path(_git("rev-parse", "--show-toplevel"))
        # -P: modules in the repository are not ours
        command = f"{shlex.quote(sys.executable)} -P -m kproxy textconv"
        _git("config", "--local", "diff.kproxy.textconv", command)
    except FileNotFoundError:
        return fail("kproxy git-setup: there is no git on this machine; install it")
    except subprocess.CalledProcessError as error:
        reason = (error.stderr or "git failed").strip().splitlines()[-1]
        return fail(f"kproxy git-setup: {reason.removeprefix('fatal: ')}; run it in a repository")
    print(f"git shows *.mcap by meaning here: diff.kproxy.textconv is `{command}`")
    path = root
    try:
        for name, added in ((".gitattributes", ATTRIBUTES), (".gitignore", IGNORED)):
            path = root / name
            _add(path, added)
    except OSError as error:
        return fail(f"kproxy git-setup: {path}: {error.strerror}")
    return 0


def _add(path: Path, added: str) -> None:
    """Add our line to a file, and remove other lines for the same files."""
    lines = path.read_text().splitlines() if path.exists() else []
    ours = [line for line in lines if line.split()[:1] == added.split()[:1]]
    if ours and ours[-1].split() == added.split():
        print(f"{path} has it: {added}")
        return
    kept = [line for line in lines if line not in ours]
    path.write_text("\n".join([*kept, added]) + "\n")
    for line in ours:
        print(f"{path}: replaced `{line}`")
    print(f"{path} has a line more, commit it: {added}")


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()
