"""The requests of a connection that wait for their responses: one queue, one owner.

::

    RequestStream ── append ──▶ │ 12 │ 13 │ 14 │ ── first, take ──▶ ResponseStream
                                   │                                   (the correlation id agrees)
                                  ├── due ─────▶ a response of kproxy's own is next
                                   └── give_up ─▶ nothing answers any more

Invariants: requests stand in the order in which they arrived, which is that of their responses. A
request that is not answered (Produce with acks=0) is never in it; one that the broker never got is,
so that our own response waits for its turn.

The two measured loops (`RequestStream.whole_frames` and `ResponseStream.whole_frames`) append to
`rows` and take from them on purpose: a call and a named value for each of ten requests in a chunk
cost a fifth of all that is done for them. The checks for every chunk (`ResponseStream.feed`,
`Connection._needs_settling`) look at the first row themselves. All others use the methods.
"""

from __future__ import annotations

from collections import deque

from kproxy.exchange.entries import RAW_SASL, ChunkTimes, Frame, PendingRequest, PendingRow
from kproxy.proxy.verdicts import Verdict


class PendingRequests:
    """The queue of one connection."""

    __slots__ = ("requests_max", "rows")

    def __init__(self, requests_max: int) -> None:
        self.requests_max = requests_max
        """With this many pending, the client is not read from."""
        self.rows: deque[PendingRow] = deque()
        """The queue itself, for the measured loops and checks only."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def full(self) -> bool:
        """True while no further request may be begun."""
        return len(self.rows) >= self.requests_max

    @property
    def roomy(self) -> bool:
        """True while half of the room is free: a client that was paused is read from again."""
        return len(self.rows) <= self.requests_max // 2

    @property
    def first(self) -> PendingRequest | None:
        """The request whose response is next; None if none is pending."""
        return PendingRequest(*self.rows[0]) if self.rows else None

    @property
    def first_with_header(self) -> PendingRequest | None:
        """The first request that has a Kafka header, which raw SASL tokens lack."""
        found = (row for row in self.rows if not PendingRequest(*row).flags & RAW_SASL)
        row = next(found, None)
        return None if row is None else PendingRequest(*row)

    def append(self, frame: Frame, times: ChunkTimes, verdict: Verdict | None) -> None:
        """Add a request that waits for its response; its bytes are not kept."""
        self.rows.append(
            PendingRequest(
                frame.correlation_id,
                frame.api_key,
                frame.api_version,
                frame.number,
                frame.frame_bytes,
                frame.flags,
                times,
                verdict,
            )
        )

    def take(self) -> PendingRequest:
        """Take the first request: its response is here, or will never come."""
        return PendingRequest(*self.rows.popleft())

    @property
    def due(self) -> bool:
        """True while the first request is one that kproxy itself answers, or nobody."""
        verdict: Verdict | None = self.rows[0][-1] if self.rows else None
        return verdict is not None and verdict.dropped

    def give_up(self) -> list[PendingRequest]:
        """Take all of them: nothing answers any more."""
        rows = [PendingRequest(*row) for row in self.rows]
        self.rows.clear()
        return rows
