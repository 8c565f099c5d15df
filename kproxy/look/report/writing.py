"""The file of a report: only its owner reads it, and it replaces nothing but an older report.

Invariant: the file has its name when it is complete. A command that fails leaves the older report.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

from kproxy.look.lines.export import create
from kproxy.look.report.page import GENERATOR

_HEAD_BYTES = 4096


class ReportError(Exception):
    """A report cannot be written: one line says where, and what to do."""

    exit_code = 1


def check_target(path: Path) -> None:
    """Check that a report may be written to a path.

    Raises: ReportError.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise ReportError(f"{path}: there is no folder {str(path.parent)!r}") from None
        return
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}") from None
    if stat.S_ISDIR(mode):
        raise ReportError(f"{path} is a folder: name a file in it, such as {path / 'report.html'}")
    if not stat.S_ISREG(mode) or not _is_report(path):
        raise ReportError(f"{path} is there already, and no report of kproxy: name another file")


def _is_report(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}") from None
    return not head or GENERATOR.encode() in head


def write_report(path: Path, text: str) -> None:
    """Write a report, for its owner only; an older one is replaced.

    Raises: ReportError.
    """
    check_target(path)
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with open(create(unfinished), "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(unfinished, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        if isinstance(error, OSError):
            raise ReportError(f"{path}: {error.strerror}") from None
        raise
