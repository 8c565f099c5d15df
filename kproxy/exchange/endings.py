"""The beginnings and ends of connections, and the requests that were never answered.

::

    Note(opened), Note(open) ─▶ connection_start ─▶ ConnectionStart
    Note(closed) ─▶ connection_end ─▶ ConnectionEnd: who ended first, how, when, why
    UNANSWERED, Note(closed), a later response, the end of the file ─▶ Unanswered

"Who closed the connection?" is the first question in production. The note answers it: `ends` has
one entry per side that ended, in the order in which they did.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from kproxy.exchange.entries import CONNECTIONS, Note

SIDES = ("client", "broker", "proxy")
"""The sides that can end a connection; the proxy does if it is idle or refused, or on shutdown."""


TLS_FAILED = "TLS failed: "
"""Stands in the reason of an end before what OpenSSL says; not where the handshake of a client
failed, whose reason is nothing else."""


@attrs.frozen
class SideEnd:
    """The end of one side of a connection."""

    side: str
    """"client", "broker", or "proxy"."""
    how: str
    """"eof" (FIN), "reset" (RST), "tls", "down" (nobody answers), or what the proxy decided:
    "idle", "refused", "stopped", "violation", …; "login": it could not log in anew, "defect": it
    failed."""
    time_ns: int


@attrs.frozen
class ConnectionEnd:
    """The end of a connection."""

    connection: int
    time_ns: int
    client_address: str | None
    node_id: int | None
    ends: tuple[SideEnd, ...]
    """The ends of its sides, the first to end first."""
    reason: str
    """A description of the failure; empty if there was none."""

    @property
    def first(self) -> SideEnd | None:
        """The end that came first; None if unknown."""
        return self.ends[0] if self.ends else None

    @property
    def tls_failed(self) -> bool:
        """True if TLS failed, with the client or the broker: the handshake, or later."""
        return any(end.how == "tls" for end in self.ends) or TLS_FAILED in self.reason

    @property
    def is_unreached(self) -> bool:
        """True if the connection has never begun, because no broker answered."""
        return any(end.how == "down" for end in self.ends)

    @property
    def handshake_failed(self) -> bool:
        """True if the connection has never begun, because TLS failed with its client."""
        return self.tls_failed and TLS_FAILED not in self.reason

    @property
    def client_host(self) -> str:
        """The host of the client, without its port."""
        return (self.client_address or "?").rpartition(":")[0] or "?"


@attrs.frozen
class ConnectionStart:
    """The beginning of a connection, or what a file tells of one that is open when it begins."""

    connection: int
    time_ns: int
    was_open: bool
    """True if it was open already: when it was opened, nothing says."""
    client_address: str | None
    broker_address: str | None
    node_id: int | None
    tls: dict[str, dict[str, Any]]
    """Side ("client", "broker") → version, cipher, peer, …: of those that speak TLS."""
    login: str | None
    """The mechanism with which kproxy logged in at the broker; None: it did not."""


def connection_start(note: Note) -> ConnectionStart | None:
    """Read the note with which a connection begins, or the first one of a file on it; None if it is
    another note."""
    body = note.body
    if note.channel != CONNECTIONS or body.get("event") not in ("opened", "open"):
        return None
    node, tls = body.get("node_id"), {side: body.get(f"{side}_tls") for side in SIDES}
    return ConnectionStart(
        connection(body), note.time_ns, body["event"] == "open", body.get("client_address"),
        body.get("broker_address"), node if isinstance(node, int) else None,
        {side: each for side, each in tls.items() if isinstance(each, dict)},
        body.get("broker_login"),
    )  # fmt: skip


def connection_end(note: Note) -> ConnectionEnd:
    """Read a "closed" note."""
    body = note.body
    found = [_side_end(each, note.time_ns) for each in body.get("ends") or ()]
    if not found and (how := body.get("how")) is not None:
        found = [SideEnd(body.get("side") or "proxy", how, note.time_ns)]
    return ConnectionEnd(
        connection(body),
        note.time_ns,
        body.get("client_address"),
        body.get("node_id"),
        tuple(sorted(found, key=lambda end: end.time_ns)),
        body.get("reason") or "",
    )


def _side_end(given: dict[str, Any], otherwise_ns: int) -> SideEnd:
    time_ns = given.get("time_ns") or 0
    return SideEnd(given["side"], given.get("how") or "?", time_ns if time_ns > 0 else otherwise_ns)


@attrs.frozen
class Unanswered:
    """The reason why a request was never answered."""

    waited_for: str
    """"proxy": it was not sent on; "earlier": an earlier request of its connection was not answered
    either; "broker": it was the broker's turn."""
    behind: int | None
    """For "earlier": the number of the request that the broker was at."""
    waited_ms: float | None
    """The time from its arrival to the end of its connection, or of the recording; None if
    unknown."""


def unanswered(
    started_ns: int, sent_ns: int, ended_ns: int | None, behind: int | None
) -> Unanswered:
    """Return what a request that arrived and was sent on at these times waited for until `ended_ns`
    (None: unknown)."""
    if not sent_ns:
        waited_for, behind = "proxy", None
    else:
        waited_for = "broker" if behind is None else "earlier"
    known = ended_ns is not None and ended_ns >= started_ns
    waited_ms = round((ended_ns - started_ns) / 1e6, 3) if known and ended_ns else None
    return Unanswered(waited_for, behind, waited_ms)


def connection(body: dict[str, Any]) -> int:
    """Return the number of a note's connection; -1 if it does not say."""
    number = body.get("connection")
    return -1 if number is None else number


def connection_facts(body: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the facts that a note tells of its connection: names and values."""
    return (
        (name, body[name]) for name in ("client_address", "node_id", "client_id") if name in body
    )
