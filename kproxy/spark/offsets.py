"""Offsets of a stream: what a query has read, as its checkpoint keeps it in JSON.

    {"/captures/a-0169.mcap": [end, identity], …, "": {recording: "1-168", …}}

A file is known by its identity, which its head tells: a recording, and a part of it. Its name only
says where it lies. The parts of a recording that were read whole are done, for ever: they are one
range of numbers, and have no entry by name. So an offset grows with the recordings that were read
and the files that still may grow, and not with every file that there was.

That is exact, unlike a time before which all is done. A file that comes late is of a part that is
not done, however old. One that was deleted may come back, and one that was done may be renamed or
copied: it stays done. A file that takes the name of another has another identity. Entries are found
by the name of a file or by its identity, so a file that was read in part may be renamed, too.

A file is read whole when it has its end and nothing lies between that and the end of what was read.
The entry of such a file says so (`true` behind the identity) in the offset that took its last
batch, and the next offset counts it among the parts done. So a batch is made of entries alone: what
lies between two offsets can be said without a look at files that neither of them names.

Files without a recording's id, which other tools made, keep their entries. So do torn files: they
may be completed. Older versions wrote an entry as `[end, identity]`, or `end` alone, which is taken
for one of the file that has the name now, and its paths could be relative.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from kproxy.recording.info import Info
from kproxy.recording.uri import absolute

_DONE = ""
"""The key of the parts that are done: no file has this name."""

Ranges = tuple[tuple[int, int], ...]
"""Numbers: the first and the last one of each range, ascending."""


@attrs.frozen
class FileIdentity:
    """What a file is, whatever its name."""

    text: str
    """As offsets have it; "" for files that tell nothing."""
    recording: str = ""
    part: int = 0
    """0 if the file is no part of a recording that has an id."""

    @classmethod
    def of(cls, info: Info) -> FileIdentity:
        """Return the identity that the head of a file tells."""
        recording = info.metadata.get("recording")
        if recording is None and not info.native:
            return cls("")
        part = info.part if info.native and recording is not None else 0
        return cls(f"{recording} {info.part} {info.start_ns}", recording or "", part)

    @classmethod
    def parse(cls, text: str) -> FileIdentity:
        """Return the identity that an entry tells, of a file that kproxy wrote."""
        recording, _, numbers = text.partition(" ")
        part = numbers.partition(" ")[0]
        known = part.isdecimal() and recording != str(None)
        return cls(text, recording, int(part)) if known else cls(text)


@attrs.frozen
class FileOffset:
    """How far a file was read."""

    end: int
    """The offset behind the last batch that was read."""
    identity: str = ""
    whole: bool = False
    """True if nothing will follow, and the file is a part of a recording."""

    @classmethod
    def parse(cls, value: Any) -> FileOffset:
        """Return the entry of a checkpoint."""
        return cls(value) if isinstance(value, int) else cls(*value)

    def is_of(self, identity: FileIdentity) -> bool:
        """Return whether it may be about this file, which has its name."""
        return not (self.identity and identity.text) or self.identity == identity.text

    def to_json(self) -> list[Any]:
        """Return the entry for a checkpoint."""
        return [self.end, self.identity, *([True] if self.whole else [])]


@attrs.frozen
class Offset:
    """What a query has read."""

    places: Mapping[str, FileOffset] = attrs.field(factory=dict)
    """By the name of the file."""
    done: Mapping[str, Ranges] = attrs.field(factory=dict)
    """The parts that were read whole, by recording."""
    _names: Mapping[str, str] = attrs.field(
        default=attrs.Factory(lambda self: _names(self.places), True), init=False, repr=False
    )

    @classmethod
    def parse(cls, offset: Mapping[str, Any]) -> Offset:
        """Return the offset of a checkpoint, of this version or an older one."""
        places: dict[str, FileOffset] = {}
        for path, value in offset.items():
            if path != _DONE:
                name, place = absolute(path), FileOffset.parse(value)
                places[name] = max(place, places.get(name, place), key=lambda each: each.end)
        done = {name: _ranges(text) for name, text in offset.get(_DONE, {}).items()}
        return cls(places, done)

    def to_json(self) -> dict[str, Any]:
        """Return the offset for a checkpoint."""
        done = {name: _text(ranges) for name, ranges in self.done.items()}
        places = {name: place.to_json() for name, place in self.places.items()}
        return places | ({_DONE: done} if done else {})

    def is_done(self, identity: FileIdentity) -> bool:
        """Return whether a file was read whole, and its entry is gone."""
        ranges = self.done.get(identity.recording, ())
        return any(first <= identity.part <= last for first, last in ranges)

    def entry(self, name: str, identity: FileIdentity) -> str | None:
        """Return the name under which a file was read: its own, or an earlier one; None if it was
        not."""
        place = self.places.get(name)
        if place is not None and place.is_of(identity):
            return name
        return self._names.get(identity.text) if identity.part else None

    def moved(
        self,
        places: Mapping[str, FileOffset],
        whole: Mapping[str, FileIdentity],
        renamed: Iterable[str],
    ) -> Offset:
        """Return the offset behind a batch that has read files to these places; the entries of
        files that were read `whole` before it, by name, and of `renamed` ones go. An entry whose
        name another file has now gets a name that no file has, for its file may come back."""
        done, kept = dict(self.done), dict(self.places)
        settled = {
            name: FileIdentity.parse(each.identity) for name, each in kept.items() if each.whole
        }
        for name, identity in (settled | dict(whole)).items():
            if identity.part:
                _add(done, identity)
                del kept[name]
        for name in renamed:
            kept.pop(name, None)
        for name in kept.keys() & places.keys():
            place = kept[name]
            if place.identity not in ("", places[name].identity):
                kept[f"{name} {place.identity}"] = place
        return Offset(kept | dict(places), done)


def _names(places: Mapping[str, FileOffset]) -> dict[str, str]:
    return {place.identity: name for name, place in places.items() if place.identity}


def _add(done: dict[str, Ranges], identity: FileIdentity) -> None:
    """Add a part to those of its recording."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted([*done.get(identity.recording, ()), (identity.part, identity.part)]):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(last, joined[-1][1])
        else:
            joined.append((first, last))
    done[identity.recording] = tuple(joined)


def _text(ranges: Ranges) -> str:
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in ranges)


def _ranges(text: str) -> Ranges:
    pairs = (each.partition("-") for each in text.split(","))
    return tuple((int(first), int(last or first)) for first, _, last in pairs)
