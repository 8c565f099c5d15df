"""The path of a test's recording, which is put there whole, and only if the test passed.

::

    recordings/<folders and module of the test>/<Class.test>-<parameters>.mcap
                                                              .failed.mcap   if the test failed
                                                              .renewed.mcap  until it replaces it

Names have only characters that any file system takes. A digest is appended to parameters that this
changes or cuts, and to those with capital letters, because some file systems ignore case. For a
module outside of the root, a digest replaces "..".
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path, PurePath

from kproxy.recording.files import make_folder

SUFFIX = ".mcap"
_FAILED = ".failed.mcap"
_RENEWED = ".renewed.mcap"
_CHARACTERS_MAX = 80
_ODD = re.compile(r"[^A-Za-z0-9_.=+-]+")


def test_file(folder: Path, module: PurePath, names: Sequence[str], parameters: str | None) -> Path:
    """Return the path of a test's recording, by its module, class names, name and parameters."""
    name = slug(".".join(names))
    if parameters is not None:
        name = f"{name}-{slug(parameters, cases_differ=False)}"
    parts = [slug(part) for part in module.with_suffix("").parts]
    return folder.joinpath(*parts, f"{name}{SUFFIX}")


def slug(text: str, cases_differ: bool = True) -> str:
    """Return a text as part of a file name. Different texts give different names; without
    `cases_differ`, also on file systems that ignore case."""
    plain = _ODD.sub("-", text)[:_CHARACTERS_MAX].strip("-.")
    if plain == text and (cases_differ or text == text.lower()):
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{plain}-{digest}" if plain else digest


def failed_file(path: Path) -> Path:
    """Return the path for the recording of a failed run."""
    path = path if path.name else path.absolute()
    return path.with_name(path.name.removesuffix(SUFFIX) + _FAILED)


def renewed_file(path: Path) -> Path:
    """Return the path for what is recorded again, beside the file that it may replace."""
    path = path.resolve()
    return path.with_name(path.name.removesuffix(SUFFIX) + _RENEWED)


def is_beside(path: Path) -> bool:
    """Return whether a file is of a run that failed, or was not decided about."""
    return path.name.endswith((_FAILED, _RENEWED))


def keep(made: Path, path: Path) -> None:
    """Copy a finished recording to its path, atomically, readable only by its owner.

    Raises:
        OSError: the disk is full, or the folder is not writable.
    """
    make_folder(path.parent)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        # Copying the file mode would come last: until then others could read it.
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with made.open("rb") as source, open(fd, "wb") as target:
            shutil.copyfileobj(source, target)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


_VARIABLES = ("CI", "BUILD_NUMBER", "TF_BUILD")
"""Variables that are set in continuous integration."""


def in_ci() -> bool:
    """Return whether this is continuous integration, where a new recording would be lost, and
    looked at by nobody: so recording there is refused unless the user allows it."""
    return any(os.environ.get(name, "") not in ("", "0", "false") for name in _VARIABLES)


def annotation(text: str, title: str, file: str = "") -> str:
    """Return a text as a command of GitHub's workflows, which marks a failure: at a file, if one is
    given, else at the run."""

    def escaped(part: str, others: str = "") -> str:
        return "".join(f"%{ord(one):02X}" if one in f"%\r\n{others}" else one for one in part)

    where = f"file={escaped(file, ':,')}," if file else ""
    return f"::error {where}title={escaped(title, ':,')}::{escaped(text)}"
