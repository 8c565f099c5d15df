"""Strict replay: a connection gets the recorded responses as long as its requests are the same.

::

    live connection ─▶ candidates: the recorded connections that began in the same way
        request ─▶ equal to the next one of a candidate? ─┬─▶ its response, or nothing, or the end
                                                          └─▶ a finding: the first difference

For authors of clients: the first request that differs from the recording, or comes in another
order, is reported with the field that differs, and the connection ends. Only correlation ids may
differ, and the brokers' addresses in responses are ours. A live connection is matched to a recorded
one by its requests, in whatever order clients connect; each recorded connection is used once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import attrs

from kproxy.exchange.entries import NO_API, REDACTED, Side
from kproxy.exchange.exchange import Exchange
from kproxy.proxy import redact, rewrite
from kproxy.replay.call import NONE, Unanswerable
from kproxy.replay.connection import ReplayConnection
from kproxy.replay.differences import parts, sentence
from kproxy.replay.report import Report
from kproxy.replay.steps import Steps
from kproxy.wire.protocol import ProtocolError, api_name, decode_request, is_known, to_json

if TYPE_CHECKING:
    from kproxy.replay.state import State

_ADVICE = "strict mode wants the very same requests; --mode state takes any client"
_DIFFERENCES_SHOWN = 5


@attrs.define(eq=False)
class _RecordedConnection:
    """The exchanges of a recorded connection."""

    number: int
    exchanges: list[Exchange] = attrs.Factory(list)
    owner: int | None = None
    """The live connection that it was matched to."""
    played: int = 0
    """How many of its requests came again."""


class _Repeating(NamedTuple):
    """What a live connection may repeat."""

    candidates: list[_RecordedConnection]
    position: int = 0
    """How many requests have come."""


class Strict:
    """The recorded connections, and the live ones that repeat them."""

    def __init__(self, exchanges: Iterable[Exchange]) -> None:
        tracks: dict[int, _RecordedConnection] = {}
        self.nodes: set[int] = set()
        """Node ids of the recorded brokers."""
        for exchange in exchanges:
            track = tracks.setdefault(exchange.connection, _RecordedConnection(exchange.connection))
            track.exchanges.append(exchange)
            if exchange.node_id is not None:
                self.nodes.add(exchange.node_id)
            self.nodes.update(each.node_id for each in _addresses(exchange) if each.usable)
        for track in tracks.values():  # exchanges come as they were completed
            track.exchanges.sort(key=lambda exchange: exchange.number)
        self._tracks = list(tracks.values())
        self._live: dict[int, _Repeating] = {}

    def answer(self, state: State, connection: ReplayConnection, frame: bytes) -> Steps:
        """Answer a request with its recorded response, as `Serving.answer` does.

        Raises:
            Unanswerable: it differs, or the recorded connection ended here.
        """
        yield
        number = connection.number
        candidates, position = self._live.get(number) or _Repeating(
            self._of_node(connection.client.node_id)
        )
        unowned = [track for track in candidates if track.owner in (None, number)]
        long_enough = [track for track in unowned if position < len(track.exchanges)]
        same = [track for track in long_enough if _same(track.exchanges[position], frame)]
        if not same:
            otherwise = "it ends here" if unowned else _NO_MORE
            why = _why_none(long_enough, position, frame, otherwise)
            text = f"connection {number}, request {position + 1}, {_title(frame)}: {why}"
            state.report.add("differs", text, _ADVICE)
            raise Unanswerable("it asks what was not recorded")
        self._live[number] = _Repeating(same, position + 1)
        same[0].played = max(same[0].played, position + 1)
        if len(same) == 1:
            same[0].owner = number
        exchange = same[0].exchanges[position]
        data = exchange.response_frame
        if data is None:
            if exchange.one_way:
                return NO_API, NONE
            raise Unanswerable("the recorded connection ended here without a response")
        data = data[:4] + frame[8:12] + data[8:]
        key, version = exchange.api_key, exchange.api_version
        return NO_API, [state.with_our_addresses(connection, key, version, data)]

    def _of_node(self, node_id: int | None) -> list[_RecordedConnection]:
        return [each for each in self._tracks if each.exchanges[0].node_id == node_id]

    def forget(self, number: int) -> None:
        """Forget a live connection that has ended: what it was taken for is used."""
        if live := self._live.pop(number, None):
            live.candidates[0].owner = number

    def report_unplayed(self, report: Report) -> None:
        """Report the recorded connections on which a Produce did not come again; other requests,
        such as polls, may be fewer."""
        for track in self._tracks:
            left = [each for each in track.exchanges[track.played :] if each.api == "Produce"]
            if left:
                what = f"recorded connection {track.number}: {len(left)} of its Produce requests"
                report.add("not produced", f"{what} did not come, the first is #{left[0].number}")


_NO_MORE = "the recording has no more such connection"


def _why_none(
    candidates: list[_RecordedConnection], position: int, frame: bytes, otherwise: str
) -> str:
    """Return in what a request differs from that of the first recorded connection."""
    if not candidates:
        return otherwise
    recorded = candidates[0].exchanges[position]
    shown = list(_differences(recorded, frame))
    left_out = len(shown) - _DIFFERENCES_SHOWN
    more = f" and {left_out} more" if left_out > 0 else ""
    what = f"{recorded.api} v{recorded.api_version}; {'; '.join(shown[:_DIFFERENCES_SHOWN])}{more}"
    return f"recorded connection {candidates[0].number} has {what}"


def _addresses(exchange: Exchange) -> list[rewrite.BrokerAddress]:
    key, version, frame = exchange.api_key, exchange.api_version, exchange.response_frame
    if key is None or version is None or frame is None:
        return []
    if rewrite.address_fields(key, version) is None:
        return []
    try:
        return rewrite.find_all(frame, key, version)
    except ProtocolError:
        return []


def _same(recorded: Exchange, frame: bytes) -> bool:
    """Return whether a request equals a recorded one, except for correlation id and secrets."""
    then = recorded.request_frame or b""
    if recorded.api_key is None:  # a SASL token without a header
        return len(then) >= 4
    now = _as_recorded(recorded, frame)
    return then[:8] == now[:8] and then[12:] == now[12:]


def _as_recorded(recorded: Exchange, frame: bytes) -> bytes:
    """Return a request with what a recording would have blanked out of it: secrets, and before a
    login is over, bytes that no field explains."""
    if not recorded.row.request_flags & REDACTED:
        return frame
    return redact.redact(frame, Side.CLIENT, *_kind(frame)) or frame


def _kind(frame: bytes) -> tuple[int, int]:
    key = int.from_bytes(frame[4:6], "big", signed=True)
    return key, int.from_bytes(frame[6:8], "big", signed=True)


def _title(frame: bytes) -> str:
    key, version = _kind(frame)
    return f"{api_name(key)} v{version}"


def _differences(recorded: Exchange, frame: bytes) -> Iterator[str]:
    """Yield the fields in which a request differs from a recorded one, in order."""
    key, version = _kind(frame)
    if (key, version) != (recorded.api_key, recorded.api_version):
        yield f"{_title(frame)} came instead"
        return
    message = recorded.request_message
    if message is None or not is_known(key, version):
        yield "the bytes differ"
        return
    try:
        now = decode_request(_as_recorded(recorded, frame))
    except ProtocolError as error:
        yield str(error)
        return
    client_ids = now.header.client_id, message.header.client_id
    for each in (*parts("client_id", *client_ids), *parts("", to_json(now), to_json(message))):
        yield sentence([each])
