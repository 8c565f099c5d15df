"""`kproxy export --to x.pcapng`: exchanges as packets, for Wireshark.

::

    first pass: exchanges that match ─▶ Chosen: numbers, rules, connections ─┐
    second pass: frames and notes in their order ────────────────────────────┴─▶ capture.exporter

Invariant: memory grows by two bytes per exchange, and with the connections.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Callable

import attrs

import kproxy
from kproxy.capture.exporter import KAFKA_PORT, Exporter
from kproxy.exchange.endings import connection
from kproxy.exchange.entries import EVENTS, Frame, Note
from kproxy.exchange.exchange import Exchange
from kproxy.look.lines.stream import Stream
from kproxy.recording.paths import ids, size_of
from kproxy.recording.reader import entries

_PORTS_MAX = 8
_PAGE = 4096
_NONE = array("H", bytes(2 * _PAGE))


def write_packets(stream: Stream, write: Callable[[bytes], object]) -> int:
    """Write the exchanges of a stream as pcapng; return their number.

    Raises:
        RecordingError: a path is not there, not a recording, or damaged.
    """
    told, chosen, copies = stream.on_progress, _Chosen(), set[str]()

    def on_note(note: Note) -> None:
        if note.body.get("event") == "copied":
            copies.add(note.body["path"])

    def on_progress(done: int, before: int = 0) -> None:
        told(before + done // 2)

    stream.on_note, stream.on_progress = on_note, on_progress
    for exchange in stream.exchanges():
        chosen.add(stream.recording, exchange)
    exporter = Exporter(write, f"kproxy {kproxy.__version__}")
    found = stream.recordings
    id_by_path = ids(found) if len(found) > 1 else {}
    done = size_of(path for parts in found for path in parts.paths) // 2
    for parts in found:
        recording = id_by_path.get(str(parts.paths[0]))
        paths = [path for path in parts.paths if str(path) not in copies]
        exporter.begin()
        for entry in entries(paths, passed=functools.partial(on_progress, before=done)):
            if isinstance(entry, Frame):
                text = chosen.text(recording, entry.number)
                if text is not None:
                    exporter.frame(entry, text)
            elif entry.channel == EVENTS or chosen.has(recording, entry):
                exporter.note(entry)
        done += size_of(paths) // 2
    ports = [f"-d tcp.port=={port},kafka" for port in sorted(exporter.ports - {KAFKA_PORT})]
    if ports:
        more = f" and {len(ports) - _PORTS_MAX} more" if len(ports) > _PORTS_MAX else ""
        which = " ".join(ports[:_PORTS_MAX])
        stream.notices.append(f"tell Wireshark which ports are Kafka's: {which}{more}")
    return chosen.count


@attrs.define(eq=False)
class _Chosen:
    """The exchanges to write, by recording and number."""

    count: int = 0
    _connections: set[tuple[str | None, int]] = attrs.Factory(set)
    _texts: list[str | None] = attrs.Factory(lambda: [None, ""])
    """What is said of exchanges; the first stands for those that are not chosen."""
    _indexes: dict[str, int] = attrs.Factory(lambda: {"": 1})
    _pages: dict[tuple[str | None, int], array[int]] = attrs.Factory(dict)
    """An index for each number, in pages."""

    def add(self, recording: str | None, exchange: Exchange) -> None:
        """Choose an exchange."""
        self.count += 1
        self._connections.add((recording, exchange.connection))
        text = f", fault rule {', '.join(exchange.faults)}" if exchange.faults else ""
        if text not in self._indexes and len(self._texts) <= 0xFFFF:
            self._indexes[text] = len(self._texts)
            self._texts.append(text)
        page, nth = divmod(exchange.number, _PAGE)
        if (recording, page) not in self._pages:
            self._pages[recording, page] = _NONE[:]
        self._pages[recording, page][nth] = self._indexes.get(text, 1)

    def text(self, recording: str | None, number: int) -> str | None:
        """Return what is said of an exchange; None if it is not chosen."""
        page, nth = divmod(number, _PAGE)
        return self._texts[self._pages.get((recording, page), _NONE)[nth]]

    def has(self, recording: str | None, note: Note) -> bool:
        """Return whether a note is on a connection of which an exchange is chosen."""
        return (recording, connection(note.body)) in self._connections
