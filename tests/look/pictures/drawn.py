"""Draws recordings as the report does, and reads pictures again."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from kproxy.history.history import History
from kproxy.look.pictures.drawing import Picture, svg
from kproxy.look.pictures.series import Series
from kproxy.look.pictures.subjects import STANDING, pictured
from kproxy.look.why.source import StorySource


def followed(path: Path) -> Series:
    """What is collected of a recording."""
    series, history = Series(), History()
    for item in StorySource([path], lambda done: None).read(None, series.note):
        series.add(history, item, history.add(item))
    return series


def all_pictures(series: Series) -> dict[tuple[str, str], Picture]:
    """The pictures of all subjects of a recording."""
    history = series.history
    clients = {client_id for (_, client_id), _ in series.waits}
    subjects = [
        *(("group", name) for name in series.groups),
        *(("topic", name) for name in history.logs.topics),
        *(("transactional_id", name) for name in history.transactions.ids),
        *(("client_id", name) for name in clients),
        (STANDING, ""),
    ]
    found = {each: pictured(series, *each) for each in subjects}
    return {each: picture for each, picture in found.items() if picture is not None}


def parsed(picture: Picture) -> ElementTree.Element:
    """A picture, as a parser that is not ours reads it."""
    return ElementTree.fromstring(svg(picture.drawn))


def written(picture: Picture) -> list[str]:
    """The texts that are written in it, titles aside."""
    return ["".join(each.itertext()) for each in parsed(picture).iter("text")]
