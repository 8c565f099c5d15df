"""Fetch sessions by connection: all partitions of a Fetch that names only the changed ones.

A client that fetches again and again opens a session (KIP-227; KIP-932 for share groups): its first
Fetch names all partitions, the next ones only those that are new or forgotten::

    (id 0, epoch 0)   all partitions; the response names the session
    (id 7, epoch n)   added and forgotten partitions; n counts the requests
    (id 7, epoch -1)  the session ends

Invariants: a session is either followed from its first request on without a gap, or unknown.
Sessions belong to one connection and end with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from kproxy.proxy.faults import errors
from kproxy.proxy.faults.errors import InjectedError
from kproxy.proxy.faults.items import Item
from kproxy.proxy.faults.view import RequestView
from kproxy.wire.protocol import codes

FETCH = 1
SHARE_FETCH = 78
_NOT_FOUND = {
    FETCH: codes.FETCH_SESSION_ID_NOT_FOUND,
    SHARE_FETCH: codes.SHARE_SESSION_NOT_FOUND,
}
FETCHES = tuple(_NOT_FOUND)
"""The keys of the APIs that have sessions."""
_SESSIONS_MAX = 8
"""The most sessions of a connection; clients have one, or one per member of a share group."""
_EPOCH_MAX = (1 << 31) - 1

Partition = tuple[Any, Any]
"""Topic name or topic id, partition."""
Key = tuple[int, Any]
"""The key of a session: the API's key, and the session's name in it."""


@attrs.define(eq=False)
class _FetchSession:
    partitions: dict[Partition, Item]
    epoch: int
    """The epoch of the next request."""


@attrs.frozen
class Followed:
    """The facts about a Fetch from its session."""

    items: Sequence[Item] | None = None
    """All items that it asks for, where its own items are not all."""
    unknown: bool = False
    """It continues a session that is unknown."""
    opens: bool = False
    """Its response may open a session."""


class FetchSessions:
    """The sessions of all connections."""

    def __init__(self) -> None:
        self._sessions: dict[int, dict[Key, _FetchSession]] = {}
        """Connection → session key → session."""

    def follow(self, view: RequestView) -> Followed:
        """Take a request; anything but a Fetch or a ShareFetch is complete in itself."""
        if view.api_key not in _NOT_FOUND or view.request is None:
            return Followed()
        body = view.request.body
        if view.api_key == SHARE_FETCH:
            return self._follow_share(view, body)
        if view.api_version < 7:
            return Followed()
        return self._follow_fetch(view, body)

    def opened(self, view: RequestView, frame: bytes) -> None:
        """Take the response to a request that may open a session."""
        response = view.decode_response(frame)
        if response is None or response.body.error_code or not response.body.session_id:
            return
        self._open(view, (FETCH, response.body.session_id))

    def closed(self, connection: int) -> None:
        """Forget a connection, which has ended."""
        self._sessions.pop(connection, None)

    def forget(self, api_key: int) -> None:
        """Forget the sessions of an API whose requests are no longer all seen."""
        for sessions in self._sessions.values():
            for key in [key for key in sessions if key[0] == api_key]:
                del sessions[key]

    def _follow_fetch(self, view: RequestView, body: Any) -> Followed:
        sessions = self._sessions.get(view.context.connection, {})
        key = FETCH, body.session_id
        if body.session_id == 0 or body.session_epoch <= 0:
            sessions.pop(key, None)
            return Followed(opens=body.session_epoch == 0)
        session = sessions.get(key)
        if session is None or session.epoch != body.session_epoch:
            sessions.pop(key, None)
            return Followed(unknown=True)
        session.epoch = 1 if session.epoch == _EPOCH_MAX else session.epoch + 1
        return Followed(_apply(session, view, body))

    def _follow_share(self, view: RequestView, body: Any) -> Followed:
        key = SHARE_FETCH, (body.group_id, body.member_id)
        sessions = self._sessions.get(view.context.connection, {})
        if body.share_session_epoch == 0:
            self._open(view, key)
            return Followed()
        session = sessions.get(key)
        if body.share_session_epoch < 0:
            sessions.pop(key, None)
            return Followed()
        if session is None:
            return Followed(unknown=True)
        return Followed(_apply(session, view, body))

    def _open(self, view: RequestView, key: Key) -> None:
        sessions = self._sessions.setdefault(view.context.connection, {})
        sessions.pop(key, None)
        while len(sessions) >= _SESSIONS_MAX:
            del sessions[next(iter(sessions))]
        sessions[key] = _FetchSession({_partition(item): item for item in view.own_items}, 1)


def _apply(session: _FetchSession, view: RequestView, body: Any) -> list[Item]:
    """Add and remove the partitions of a request; return all that the session has now."""
    for item in view.own_items:
        session.partitions[_partition(item)] = item
    for topic in body.forgotten_topics_data:
        name = topic.topic if getattr(topic, "topic", "") else topic.topic_id
        for partition in topic.partitions:
            session.partitions.pop((name, partition), None)
    return list(session.partitions.values())


def _partition(item: Item) -> Partition:
    keys = item.keys
    return keys.get("topic") or keys.get("topic_id"), keys.get("partition")


def not_found_response(view: RequestView) -> bytes:
    """Return the response of a broker that does not know the session of a Fetch: the client begins
    a new one."""
    assert view.request is not None
    failure = InjectedError(view.api_key, view.api_version, _NOT_FOUND[view.api_key], "", 0)
    return errors.answer(failure, view.request, ())
