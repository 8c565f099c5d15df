"""The requests of a connection that wait for their responses: one queue, one owner.

::

    RequestStream ── append ──▶ │ 12 │ 13 14 15 │ 16 │ ── first, take ──▶ ResponseStream
                                   │                                   (the correlation id agrees)
                                  ├── due ─────▶ a response of kproxy's own is next
                                   └── give_up ─▶ nothing answers any more

Invariants: requests stand in the order in which they arrived, which is that of their responses. A
request that is not answered (Produce with acks=0) is never in it; one that the broker never got is,
so that our own response waits for its turn. Alike requests of one chunk stand together, and may be
taken in parts; one with a verdict is by itself.
"""

from __future__ import annotations

from collections import deque

from kproxy.exchange.entries import RAW_SASL, PendingRequest, Requests
from kproxy.proxy.verdicts import Verdict

BEFORE_LOGIN = 1 << 17
"""A flag of a pending request only, which no frame has: it came while a login was open, so that its
response may end that (`login`)."""


class PendingRequests:
    """The queue of one connection."""

    __slots__ = ("_requests_max", "count", "queue", "requests_max", "taken")

    def __init__(self, requests_max: int) -> None:
        self._requests_max = requests_max
        self.requests_max = requests_max
        """With this many pending, the client is not read from; -1 while none may be begun."""
        self.queue: deque[Requests] = deque()
        """The queue itself, to be looked at: a question for each chunk would cost more. So too
        `taken` and `count`."""
        self.taken = 0
        """The number of requests at the head of the queue that were taken from the first run."""
        self.count = 0
        """The number of pending requests."""

    def hold(self, held: bool) -> None:
        """Let no further request begin, or let them begin again."""
        self.requests_max = -1 if held else self._requests_max

    @property
    def held(self) -> bool:
        """True while no further request may begin, however few are pending."""
        return self.requests_max < 0

    def __len__(self) -> int:
        return self.count

    @property
    def full(self) -> bool:
        """True while no further request may be begun."""
        return self.count >= self.requests_max

    @property
    def calm(self) -> bool:
        """True while there is room, and no answer of kproxy's own is next."""
        queue = self.queue
        return self.count < self.requests_max and (not queue or queue[0].verdict is None)

    @property
    def roomy(self) -> bool:
        """True while half of the room is free: a client that was paused is read from again."""
        return self.count <= self.requests_max // 2  # -1 // 2 is -1

    @property
    def first(self) -> PendingRequest | None:
        """The request whose response is next; None if none is pending."""
        return self.queue[0][self.taken] if self.queue else None

    @property
    def first_with_header(self) -> PendingRequest | None:
        """The first request that has a Kafka header, which raw SASL tokens lack."""
        found = (requests for requests in self.queue if not requests.flags & RAW_SASL)
        requests = next(found, None)
        if requests is None:
            return None
        return requests[self.taken if requests is self.queue[0] else 0]

    @property
    def api_keys(self) -> set[int]:
        """The API keys of the pending requests."""
        return {requests.api_key for requests in self.queue}

    @property
    def due(self) -> bool:
        """True while the first request is one that kproxy itself answers, or nobody."""
        verdict: Verdict | None = self.queue[0].verdict if self.queue else None
        return verdict is not None and verdict.dropped

    def append(self, requests: Requests) -> None:
        """Add requests that wait for their responses."""
        self.queue.append(requests)
        self.count += len(requests.sizes)

    def take(self) -> PendingRequest:
        """Take the first request: its response is here, or will never come."""
        first = self.queue[0][self.taken]
        self.take_alike(1)
        return first

    def take_alike(self, count: int) -> None:
        """Take the first requests, which are alike."""
        self.count -= count
        taken = self.taken + count
        if taken == len(self.queue[0].sizes):
            self.queue.popleft()
            taken = 0
        self.taken = taken

    def give_up(self) -> list[PendingRequest]:
        """Take all of them: nothing answers any more."""
        found = [requests[nth] for requests in self.queue for nth in range(len(requests))]
        found = found[self.taken :]
        self.queue.clear()
        self.taken = self.count = 0
        return found
