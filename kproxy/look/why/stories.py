"""`kproxy why`: the story of a subject, from each recording that is given.

FILE… subject:value ─▶ STORIES[subject] ─▶ sentences ─▶ stdout
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import attrs

from kproxy.exchange.entries import Note
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import parse
from kproxy.exchange.filter.values import suggestion
from kproxy.exchange.words.wording import listed
from kproxy.look.lines.progress import reading
from kproxy.look.lines.show import write
from kproxy.look.lines.stream import Stream
from kproxy.look.why.client import client_story
from kproxy.look.why.connection import connection_story
from kproxy.look.why.fault import fault_story, rules_in
from kproxy.look.why.group import group_story
from kproxy.look.why.key import key_story, keys_of
from kproxy.look.why.number import number_story
from kproxy.look.why.source import StorySource, StoryWatcher
from kproxy.look.why.topic import topic_story
from kproxy.look.why.transactional_id import transactional_id_story
from kproxy.printable import printable
from kproxy.recording.exchanges import pauses
from kproxy.recording.info import Info
from kproxy.recording.notices import Notices
from kproxy.recording.paths import Parts, by_recording, named, size_of


@attrs.frozen
class StoryOf:
    """Something that has a story."""

    tell: Callable[..., Iterator[str]]
    """Takes a source and a name; yields the sentences, none if the recording does not have it."""
    example: str
    about: str
    numbered: bool = False
    """True if it is named by a number, which each recording counts anew."""
    within: str = ""
    """The subject that must be named before it, and that `tell` gets as well."""
    names: Callable[[Sequence[Path | str], str], Iterable[str]] | None = None
    """Yields the names that recordings have of it, given the name of the subject before it."""


NAMES_MAX = 10_000
"""Names of a kind that are collected to suggest one."""


def _names_in(key: str, of: Callable[[Exchange], Iterable[str]]) -> Any:
    """Return the function that yields the names of a kind in recordings."""

    def names(paths: Sequence[Path | str], within: str) -> Iterator[str]:
        return (name for each in Stream(paths, parse(f"{key}:*")).exchanges() for name in of(each))

    return names


SUBJECTS = {
    "group": StoryOf(
        group_story, "group:NAME", "its rebalances", names=_names_in("group", lambda e: e.groups)
    ),
    "connection": StoryOf(
        connection_story, "connection:N", "who ended it, and after what", numbered=True
    ),
    "number": StoryOf(number_story, "number:N", "where its time went, why it failed", True),
    "transactional_id": StoryOf(
        transactional_id_story,
        "transactional_id:NAME",
        "its transactions, and who fenced a producer",
        names=_names_in("transactional_id", lambda each: each.transactional_ids),
    ),
    "topic": StoryOf(
        topic_story,
        "topic:NAME",
        "who wrote and read it, and what went wrong",
        names=_names_in("topic", lambda each: each.topics),
    ),
    "key": StoryOf(
        key_story,
        "topic:NAME key:KEY",
        "where a record key was written, and how far it was read",
        within="topic",
        names=keys_of,
    ),
    "fault": StoryOf(
        fault_story, "fault:NAME", "what a fault rule hit, and what clients did", names=rules_in
    ),
    "client_id": StoryOf(
        client_story,
        "client_id:NAME",
        "its life: versions, connections, groups, errors",
        names=_names_in("client_id", lambda each: [each.client_id or ""]),
    ),
}


def show_why(
    paths: Sequence[Path | str], key: str, value: str, out: TextIO, within: str = ""
) -> bool:
    """Write the story of a subject (`SUBJECTS`); return whether it was found.

    `within` is the name of the subject that the subject is within, if it is within one.

    Several recordings may be of different clusters, and each counts its exchanges anew: each has
    its own story, or the one that is named, `shop#12`.

    Raises:
        RecordingError: a path is not there, not a recording, or damaged.
    """
    notices = Notices()
    with reading("why", paths) as progress:
        stories, state = story(paths, key, value, within, progress.update)
    several = [] if SUBJECTS[key].numbered else by_recording(paths)
    for note in (*pauses(several), *state):
        notices.note(note)
    write((f"{printable(text)}\n" for text in stories), notices.texts, out, "why")
    return bool(stories)


def story(
    paths: Sequence[Path | str],
    key: str,
    value: str,
    within: str = "",
    on_progress: Callable[[int], None] = lambda done_bytes: None,
    watch: Callable[[Info], StoryWatcher | None] = lambda head: None,
) -> tuple[list[str], list[Note]]:
    """Return the lines of the story of a subject, none if it was not found, and the notes on the
    state of the recordings; `watch` makes what follows a recording with that head, for a picture.
    Other arguments and errors are those of `show_why`."""
    subject = SUBJECTS[key]
    found = by_recording(paths)
    if subject.numbered:
        recording, _, value = value.rpartition("#")
        found = named(found, recording) if recording else found
    stories: list[str] = []
    state: list[Note] = []
    done_bytes = 0
    for each in found:
        source = StorySource(each.paths, lambda more, done=done_bytes: on_progress(done + more),
                             watch(each.head))  # fmt: skip
        values = (within, value) if subject.within else (value,)
        told = list(subject.tell(source, *values))
        state += source.state
        if told and len(found) > 1:
            stories += ["", _heading(each)] if stories else [_heading(each)]
        stories += told
        done_bytes += size_of(each.paths)
    return stories, state


def others(paths: Sequence[Path | str], key: str, name: str, within: str = "") -> str:
    """Suggest names of a kind that the recordings have, for one that they do not have.

    Raises: RecordingError.
    """
    names_in = SUBJECTS[key].names
    if names_in is None:
        return ""
    names: set[str] = set()
    for each in names_in(paths, within):
        names.add(each)
        if len(names) >= NAMES_MAX:
            break
    names -= {"", name}
    if not names:
        return ", nor any other"
    one = "" if "*" in name else suggestion(name, names)
    return one or f"; there is {listed(sorted(names))}"


def _heading(found: Parts) -> str:
    """Return the heading for a recording: its first file, and the number of the others."""
    first, *others = found.paths
    return f"{first}{f' and {len(others)} more' if others else ''}:"
