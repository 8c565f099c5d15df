"""What notes of kproxy say of its brokers, its clients and itself.

    note ─▶ Outages · SlowPeer, by peer · Losses · the signal that ended kproxy

Invariant: at most `_OUTAGES_MAX` times of a broker are kept, `_SLOW_MAX` slow peers, and
`_STALLS_MAX` stalls of kproxy itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import attrs

from kproxy.exchange.entries import EVENTS, Note
from kproxy.history.kept import one_of

_OUTAGES_MAX, _SLOW_MAX, _STALLS_MAX = 100, 1000, 1000


@attrs.define(eq=False)
class Outages:
    """The times in which a broker could not be reached."""

    reason: str
    """Of the first."""
    spans: dict[int, int | None] = attrs.Factory(dict)
    """The beginning of each → its end; None: that is not in the recording."""


@attrs.define(eq=False)
class SlowPeer:
    """A peer that did not take what was sent to it."""

    longest: tuple[int, int] = 0, 0
    connection: int = 0
    """That on which it took longest."""
    times: int = 0


@attrs.define(eq=False)
class Losses:
    """Frames that passed and are not in the recording."""

    frames: int = 0
    size_bytes: int = 0
    from_ns: int = 0
    until_ns: int = 0
    reasons: Counter[str] = attrs.Factory(Counter)
    """Reason → how often."""


def are_most_of(stalls: Iterable[tuple[int, int]], from_ns: int, until_ns: int) -> bool:
    """Return whether stalls of kproxy are at least half of a span of time."""
    own = (min(until_ns, until) - max(from_ns, since) for since, until in stalls)
    return 2 * sum(each for each in own if each > 0) >= until_ns - from_ns


@attrs.define(eq=False)
class Noted:
    """What the notes of a recording say."""

    outages: dict[int | None, Outages] = attrs.Factory(dict)
    """By node id; None: the bootstrap."""
    slow: dict[tuple[str, int | None], SlowPeer] = attrs.Factory(dict)
    """By ("broker", its node id), or ("client", the connection)."""
    losses: Losses = attrs.Factory(Losses)
    stalls: list[tuple[int, int]] = attrs.Factory(list)
    """When kproxy itself stood still: from, until."""
    stopped_by: str = ""
    """The signal that ended kproxy."""

    def note(self, note: Note) -> None:
        """Take a note."""
        match note.body if note.channel == EVENTS else {}:
            case {"event": "outage", "node_id": node_id, "from_ns": int(from_ns), **rest}:
                found = self.outages.setdefault(node_id, Outages(rest.get("reason") or ""))
                if from_ns in found.spans or len(found.spans) < _OUTAGES_MAX:
                    found.spans[from_ns] = rest.get("until_ns")
            case {"event": "slow_peer", "side": side, "connection": int(number), **rest}:
                key = side, rest.get("node_id") if side == "broker" else number
                peer = one_of(self.slow, key, _SLOW_MAX, SlowPeer)
                span = rest.get("from_ns", 0), rest.get("until_ns", 0)
                peer.times += 1
                if span[1] - span[0] > peer.longest[1] - peer.longest[0]:
                    peer.longest, peer.connection = span, number
            case {"event": "stood_still", "from_ns": int(from_ns), "until_ns": int(until_ns)}:
                if len(self.stalls) < _STALLS_MAX:
                    self.stalls.append((from_ns, until_ns))
            case {"event": "lost", **rest}:
                losses = self.losses
                losses.frames += rest.get("frames") or 0
                losses.size_bytes += rest.get("bytes") or 0
                losses.from_ns = losses.from_ns or rest.get("from_ns") or note.time_ns
                losses.until_ns = note.time_ns
                losses.reasons[rest.get("reason") or "?"] += 1
            case {"event": "stopped", **rest}:
                self.stopped_by = rest.get("by") or ""
            case _:
                pass
