"""What may differ between a record and the recorded one, in words: as tests and recordings say it.

::

    "partition"            in which partition it is
    "header:trace-id"      the header of this name
    "json:items[*].id"     a part of values that are JSON
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from kproxy.protocol.record_batch import Record
from kproxy.replay import json_paths

Headers = tuple[tuple[str, bytes | None], ...]


@attrs.frozen
class Ignored:
    """What is not compared."""

    partition: bool = False
    headers: frozenset[str] = frozenset()
    paths: tuple[json_paths.Path, ...] = ()

    def content(self, record: Record) -> tuple[bytes | None, bytes | None, Headers]:
        """Key, value and headers of a record, without what is ignored."""
        headers = tuple(each for each in record.headers if each[0] not in self.headers)
        return record.key, json_paths.without(record.value, self.paths), headers


def parse(words: Iterable[str]) -> Ignored:
    """Read what is ignored.

    Raises:
        ValueError: a word is none of these.
    """
    partition = False
    headers: set[str] = set()
    paths: list[json_paths.Path] = []
    for word in words:
        kind, _, name = word.partition(":")
        if word == "partition":
            partition = True
        elif kind == "header" and name:
            headers.add(name)
        elif kind == "json" and name:
            paths.append(json_paths.parse(name))
        else:
            wanted = '"partition", "header:NAME" or "json:PATH"'
            raise ValueError(f"{word!r} cannot be ignored: give {wanted}")
    return Ignored(partition, frozenset(headers), tuple(paths))
