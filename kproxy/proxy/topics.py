"""The topic names of topic ids, learnt from responses.

Newer versions of Fetch, Produce and others carry only the id of a topic. The responses that have
both (Metadata and its kin) are looked into as they pass, and each new id is noted once in the
recording; the rules resolve ids by the same names.
"""

from __future__ import annotations

import functools
from uuid import UUID

from zlib_ng.zlib_ng import crc32

from kproxy.exchange import meanings, notes
from kproxy.exchange.entities import TopicNames
from kproxy.exchange.entries import Note
from kproxy.wire.protocol import ProtocolError, codec, schema
from kproxy.wire.protocol.plain import uuid_text
from kproxy.wire.protocol.select import select

_SEEN_MAX = 1024
_TOPICS_MAX = 100_000
"""At most this many ids are kept; further ones are ignored."""


class Topics:
    """The topic ids that all connections have learnt."""

    def __init__(self, names: TopicNames | None = None) -> None:
        self.names = TopicNames() if names is None else names
        """The names by id, to resolve ids with."""
        self._noted_ids: set[bytes] = set()
        self._seen_checksums: set[tuple[int, int]] = set()
        """Sizes and checksums of responses that were inspected: brokers repeat themselves."""

    def learn(self, frame: bytes, api_key: int, api_version: int, now: int) -> list[Note]:
        """Inspect a response; return a note for each id that is new."""
        seen = len(frame), crc32(memoryview(frame)[8:])
        if seen in self._seen_checksums:
            return []
        if len(self._seen_checksums) >= _SEEN_MAX:
            self._seen_checksums.clear()
        self._seen_checksums.add(seen)
        found: list[Note] = []
        for topic_id, topic in _ids_and_names(frame, api_key, api_version):
            if topic_id in self._noted_ids or len(self._noted_ids) >= _TOPICS_MAX:
                continue
            self._noted_ids.add(topic_id)
            note = notes.topic_id(now, uuid_text(UUID(bytes=topic_id)), topic)
            self.names.note(note.body)
            found.append(note)
        return found


def _ids_and_names(frame: bytes, api_key: int, api_version: int) -> list[tuple[bytes, str]]:
    """Return the ids and names in a response, where both stand in one struct."""
    locate = _locate(api_key, api_version)
    if locate is None:
        return []
    try:
        spans, _ = locate(frame, codec.response_body(frame, api_key, api_version))
    except ProtocolError:
        return []
    found: list[tuple[bytes, str]] = []
    name: bytes | None = None
    topic_id: bytes | None = None
    for index, _, content, end in spans:
        if index == 0:
            name = frame[content:end]
        elif index == 1:
            topic_id = frame[content:end]
        if name is not None and topic_id is not None:
            if name and any(topic_id):
                found.append((topic_id, name.decode("utf-8", "surrogateescape")))
            name = topic_id = None
    return found


@functools.lru_cache(maxsize=256)
def _locate(api_key: int, api_version: int) -> codec.Locate | None:
    """Return the function that finds names (index 0) and ids (1); None if there are none."""
    message = schema.message(api_key, schema.RESPONSE)
    if message is None or not meanings.tells_topic_ids(api_key, api_version):
        return None
    place = select(message, meanings.is_named_topic_id).places[0]
    above = place.path.rpartition(".")[0]
    name = next(each.name for each in place.beside if meanings.is_own_topic_name(each))
    prefix = f"{above}." if above else ""
    return codec.locate(message, api_version, (prefix + name, place.path))
