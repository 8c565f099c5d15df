"""The modes of what a job has made."""

from __future__ import annotations

import stat
from pathlib import Path


def readable(folder: Path) -> dict[str, str]:
    """The modes in a folder that are not those of what only the owner may read."""
    found = {each: each.lstat().st_mode for each in folder.rglob("*")}
    kept = {each: 0o700 if each.is_dir() else 0o600 for each in found}
    return {
        str(each.relative_to(folder)): oct(stat.S_IMODE(mode))
        for each, mode in found.items()
        if stat.S_IMODE(mode) != kept[each]
    }
