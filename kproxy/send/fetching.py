"""Fetch sessions of the recording, as requests without one: each names all of its partitions.

A broker keeps a session (KIP-227) by what it has answered, which is not the same twice: a Fetch
that is sent again, or two leaders instead of one, would break it.
"""

from __future__ import annotations

import copy
from typing import Any

import attrs

_NO_SESSION = 0, -1


@attrs.define(eq=False)
class RecordedFetchSession:
    """The partitions of the session that a recorded connection has."""

    _partitions: dict[Any, dict[int, Any]] = attrs.field(factory=dict, init=False)
    """The partitions of each topic, by its name and id."""

    def complete(self, body: Any) -> None:
        """Change a recorded Fetch request so that it names all partitions of its session."""
        if body.session_id == 0 or body.session_epoch <= 0:
            self._partitions.clear()
        for topic in body.forgotten_topics_data:
            known = self._partitions.get((topic.topic, topic.topic_id), {})
            for number in topic.partitions:
                known.pop(number, None)
        for topic in body.topics:
            known = self._partitions.setdefault((topic.topic, topic.topic_id), {})
            known.update({each.partition: copy.copy(each) for each in topic.partitions})
        kind = type(body).FetchTopic
        body.topics = [
            kind(topic=name, topic_id=topic_id, partitions=[*map(copy.copy, known.values())])
            for (name, topic_id), known in self._partitions.items()
            if known
        ]
        body.forgotten_topics_data = []
        body.session_id, body.session_epoch = _NO_SESSION
