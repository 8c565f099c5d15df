"""Draws recordings as the report does, and reads pictures again."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from kproxy.exchange.words.terminal_width import columns
from kproxy.history.history import History
from kproxy.look.pictures.drawing import Picture, svg
from kproxy.look.pictures.series import Series
from kproxy.look.pictures.subjects import WAITS, Subject, pictured
from kproxy.look.why.source import StorySource

LETTER = 6.63
"""The width of a letter of DejaVu Sans Mono of 11 pixels."""


def followed(path: Path) -> Series:
    """What is collected of a recording."""
    series, history = Series(), History()
    for item in StorySource([path], lambda done: None).read(None, series.note):
        series.add(history, item, history.add(item))
    return series


def all_pictures(series: Series) -> dict[Subject, Picture]:
    """The pictures of all subjects of a recording."""
    history = series.history
    clients = {client_id for (_, client_id), _ in series.waits}
    subjects = [
        *(("group", name) for name in series.groups),
        *(("topic", name) for name in history.logs.topics),
        *(("transactional_id", name) for name in history.transactions.ids),
        *(("client_id", name) for name in clients),
        (WAITS, ""),
    ]
    found = {each: pictured(series, *each) for each in subjects}
    return {each: picture for each, picture in found.items() if picture is not None}


def parsed(picture: Picture) -> ElementTree.Element:
    """A picture, as a parser that is not ours reads it."""
    return ElementTree.fromstring(svg(picture.drawn))


def written(picture: Picture) -> list[str]:
    """The texts that are written in it, titles aside."""
    return ["".join(each.itertext()) for each in parsed(picture).iter("text")]


def outside(picture: Picture) -> list[str]:
    """What lies outside of its view box."""
    drawn = parsed(picture)
    _, _, width, height = map(float, drawn.attrib["viewBox"].split())
    wrong = []
    for each in drawn.iter():
        about, places = each.attrib, [(0.0, 0.0)]
        match each.tag:
            case "rect":
                x, y = float(about["x"]), float(about["y"])
                places = [(x, y), (x + float(about["width"]), y + float(about["height"]))]
            case "text":
                x, y, kinds = float(about["x"]), float(about["y"]), about.get("class", "").split()
                long = columns(each[-1].tail or "" if len(each) else each.text or "") * LETTER
                left = x - long if "right" in kinds else x - long / 2 if "middle" in kinds else x
                places = [(left, y - 9), (left + long, y + 3)]
            case "path":
                places = _path(about["d"])
        if not all(-0.6 <= x <= width + 0.6 and -0.6 <= y <= height + 0.6 for x, y in places):
            wrong.append(ElementTree.tostring(each, "unicode"))
    return wrong


def _path(commands: str) -> list[tuple[float, float]]:
    x = y = 0.0
    places = []
    for command, given in re.findall(r"([A-Za-z])([^A-Za-z]*)", commands):
        numbers = [float(each) for each in given.split()]
        match command:
            case "M":
                x, y = numbers
            case "H" | "h":
                x = numbers[0] + (x if command == "h" else 0)
            case "V" | "v":
                y = numbers[0] + (y if command == "v" else 0)
            case "m" | "l" | "a":
                for dx, dy in zip(numbers[-2::-7], numbers[-1::-7], strict=True):
                    x, y = x + dx, y + dy
            case _:
                assert command == "z"
        places.append((x, y))
    return places
