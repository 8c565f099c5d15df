"""The beginnings of topics, groups and transactional ids that a stream shows.

::

    CreateTopics, answered ─▶ Beginnings ─▶ this topic was created just before
    FindCoordinator ────────▶            ─▶ this group's coordinator was first looked up just before
    InitProducerId ─────────▶            ─▶ producer ids were first asked for just before

A cluster needs a moment until all brokers know a new topic, and until a coordinator has read what
it is to coordinate. What clients are told meanwhile is no failure; told for longer, it is one.

Most streams are never asked, so bodies are read when the first question comes: who reads a
recording only offers to follow an exchange. The order does not matter.

Invariant: memory is bounded by the topics that are created and the keys that are looked up; and
what is offered, and not read yet, by `_UNREAD_MAX`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from kproxy.wire import protocol

JUST_NS = 10_000_000_000
"""The longest time for which something counts as just begun."""

_CREATE, _FIND, _INIT = map(protocol.api_key, ("CreateTopics", "FindCoordinator", "InitProducerId"))
_UNREAD_MAX = 1000
FOLLOWED = frozenset({_CREATE, _FIND, _INIT})
"""The keys of the APIs that tell of a beginning."""


@attrs.define(eq=False)
class Beginnings:
    """When topics were created and keys first looked up, in ns since 1970."""

    _topics: dict[str, list[int]] = attrs.field(factory=dict, init=False)
    _keys: dict[str, int] = attrs.field(factory=dict, init=False)
    _unread: deque[Callable[[], object]] = attrs.field(factory=deque, init=False)

    def offer(self, read: Callable[[], object]) -> None:
        """Take a function that follows an exchange, or several; it is called when it matters."""
        self._unread.append(read)
        if len(self._unread) > _UNREAD_MAX:
            self._read()

    def _read(self) -> None:
        while self._unread:  # another thread may offer meanwhile
            self._unread.popleft()()

    def follow(self, api_key: int, request: Any, response: Any, time_ns: int) -> None:
        """Follow an exchange of an API of `FOLLOWED`, whose request arrived at this time; a body
        that is not known is None."""
        if request is None:
            return
        if api_key in (_FIND, _INIT):
            for key in _keys(api_key, request):
                self._keys[key] = min(time_ns, self._keys.get(key, time_ns))
        elif api_key == _CREATE and response is not None and not request.validate_only:
            for topic in response.topics:
                if not topic.error_code:
                    self._topics.setdefault(topic.name, []).append(time_ns)

    def is_new_topic(self, topic: str, time_ns: int) -> bool:
        """Return whether a topic was created just before a time."""
        self._read()
        created = self._topics.get(topic, ())
        return any(0 <= time_ns - begun_ns <= JUST_NS for begun_ns in created)

    def is_new_key(self, key: str, time_ns: int) -> bool:
        """Return whether the coordinator of a group or a transactional id was first looked up just
        before a time; of "", whether producer ids without one were."""
        self._read()
        begun_ns = self._keys.get(key)
        return begun_ns is not None and 0 <= time_ns - begun_ns <= JUST_NS


def _keys(api_key: int, request: Any) -> Iterable[str]:
    """Return the keys that a FindCoordinator asks for: one, or several from version 4 on; of an
    InitProducerId for which no coordinator is looked up, ""."""
    if api_key == _INIT:
        return () if request.transactional_id else ("",)
    return request.coordinator_keys or (request.key,)
