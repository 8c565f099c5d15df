"""The sources that a command is given.

--schema-registry http://… ─▶ Registry ─┐
--schema-registry FOLDER  ─▶ Folder ────┴─▶ Source
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kproxy.net.registry.client import Registry
from kproxy.net.registry.folder import Folder
from kproxy.net.registry.source import Access, Source


def sources(given: Sequence[str], access: Access) -> list[Source]:
    """Return the sources that URLs and folders name.

    Raises: RegistryError, when one cannot be; TlsError, when the authorities cannot be used.
    """
    return [
        Registry(each.split(","), access) if "://" in each else Folder(Path(each)) for each in given
    ]
