"""Where the recording of a test is, and how it gets there: whole, and only if the test passed.

::

    recordings/<folders and module of the test>/<Class.test>-<parameters>.mcap
                                                              .failed.mcap   of a run that failed

A name is made of what any file system takes. Where that changes parameters, or cuts them, a digest
of what they were tells them apart; so it does where they have capital letters, which some file
systems take for small ones. Of a module outside of the root, a digest stands for "..".
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path, PurePath

SUFFIX = ".mcap"
_FAILED = ".failed.mcap"
_CHARACTERS_MAX = 80
_ODD = re.compile(r"[^A-Za-z0-9_.=+-]+")


def test_file(folder: Path, module: PurePath, names: Sequence[str], parameters: str | None) -> Path:
    """The recording of a test: its module relative to the root, its classes and name."""
    name = slug(".".join(names))
    if parameters is not None:
        name = f"{name}-{slug(parameters, cases_differ=False)}"
    parts = [slug(part) for part in module.with_suffix("").parts]
    return folder.joinpath(*parts, f"{name}{SUFFIX}")


def slug(text: str, cases_differ: bool = True) -> str:
    """A text as part of a file's name; two texts never become the same one, without `cases_differ`
    not even where "a" and "A" are the same name."""
    plain = _ODD.sub("-", text)[:_CHARACTERS_MAX].strip("-.")
    if plain == text and (cases_differ or text == text.lower()):
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{plain}-{digest}" if plain else digest


def failed_file(path: Path) -> Path:
    """Where the recording of a failed run goes."""
    return path.with_name(path.name.removesuffix(SUFFIX) + _FAILED)


def keep(made: Path, path: Path) -> None:
    """Put a finished recording in its place, at once and whole, for its owner only.

    Raises:
        OSError: the disk is full, or the folder may not be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        # A copy of the modes would come last: until then others could read it.
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with made.open("rb") as source, open(fd, "wb") as target:
            shutil.copyfileobj(source, target)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
