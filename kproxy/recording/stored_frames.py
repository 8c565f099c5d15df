"""The frames of the exchanges of one recording, opened when somebody asks for their bytes.

    ExchangeRow ─ position ─▶ StoredFrames ─▶ bytes, out of the chunk that has them

Some exchanges tell what others need: the names of topic ids, beginnings of groups and producers.
They are offered to whoever keeps these (`offer_names`, `follow_beginnings`), and opened if wanted.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import attrs

from kproxy.exchange import facts
from kproxy.exchange.beginnings import FOLLOWED
from kproxy.exchange.entities import TopicNames
from kproxy.exchange.entries import ExchangeRow, Frame, Position, Side
from kproxy.recording.file import RecordingFile, frame_bytes_in, frame_in

# A look into the enum, for each frame, would cost more than finding its position.
_CLIENT, _BROKER = Side.CLIENT, Side.BROKER


@attrs.frozen(eq=False)
class StoredFrames:
    """The frames of the exchanges of one recording; see `exchange.Frames`."""

    files: list[RecordingFile]

    def frame(self, row: ExchangeRow, side: Side) -> Frame | None:
        """Open a frame of an exchange. Tools that leave pieces out move the others: then another
        exchange's lies at its place, and is not given."""
        integer = row.request_position if side is _CLIENT else row.response_position
        position = Position.of(integer)
        found = None if position is None else frame_in(self.files, position)
        return found if found is not None and found.number == row.number else None

    def data(self, row: ExchangeRow, side: Side) -> bytes | None:
        """Open a frame of an exchange and return its bytes alone, which is faster."""
        for file in self.files:
            if not file.info.native:
                found = self.frame(row, side)
                return None if found is None else found.data
        integer = row.request_position if side is _CLIENT else row.response_position
        return frame_bytes_in(self.files, integer)

    def decodable(self, row: ExchangeRow) -> Frame | None:
        """Open the response of an exchange; None if its body is not complete."""
        response = self.frame(row, _BROKER)
        return response if facts.decodable(response) else None


def offer_names(names: TopicNames, rows: Sequence[ExchangeRow], frames: StoredFrames) -> None:
    """Offer the responses of exchanges that may tell the names of topic ids; follow those that tell
    of a beginning."""
    follow_beginnings(names, rows, frames)
    if names.wants_any and any(
        names.wants(*kind) for kind in {(row.api_key, row.api_version) for row in rows}
    ):
        for row in rows:
            if names.wants(row.api_key, row.api_version) and row.response_position:
                names.offer_unopened(functools.partial(frames.decodable, row))


def follow_beginnings(names: TopicNames, rows: Sequence[ExchangeRow], frames: StoredFrames) -> None:
    """Offer to follow exchanges that tell of a beginning."""
    for row in rows:
        if row.api_key in FOLLOWED:
            names.beginnings.offer(functools.partial(_follow, names, row, frames))


def _follow(names: TopicNames, row: ExchangeRow, frames: StoredFrames) -> None:
    asked, answered = frames.data(row, _CLIENT), frames.data(row, _BROKER)
    key, version = row.api_key, row.api_version
    request = facts.request_body(asked, row.request_flags)
    response, _ = facts.response_body(answered, row.response_flags, key, version)
    names.beginnings.follow(key, request, response, row.request_received_ns)
