"""The order of requests: as they were asked, each after the responses that were there before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kproxy.exchange.entries import Frame, Side
from kproxy.exchange.pairing import pair
from kproxy.send.order import Outstanding, ahead, items

SPANS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), min_size=1, max_size=30)


@given(SPANS, st.data())
def test_a_request_waits_for_all_that_was_answered_before(spans, data) -> None:
    outstanding, open_ = Outstanding(), {}
    for ticket, (begin, length) in enumerate(sorted(spans)):
        while outstanding.hold(begin):
            held_by = [each for each, end in open_.items() if end < begin]
            assert held_by
            done = data.draw(st.sampled_from(sorted(open_)))
            outstanding.answered(done)
            del open_[done]
        assert all(end >= begin for end in open_.values())
        outstanding.sent(ticket, begin + length)
        open_[ticket] = begin + length
    assert len(outstanding) == len(open_)


def frame(side: Side, number: int, time_ns: int) -> Frame:
    """A Metadata request, or a response to one."""
    head = (3).to_bytes(2) + (1).to_bytes(2) + number.to_bytes(4) + b"\xff\xff"
    data = head if side is Side.CLIENT else number.to_bytes(4)
    data = len(data).to_bytes(4) + data
    return Frame(side, number, number, 3, 1, number, time_ns, [data], len(data), sent_ns=time_ns)


@given(SPANS)
def test_exchanges_come_in_the_order_of_their_requests(spans) -> None:
    events = []
    for number, (begin, length) in enumerate(sorted(spans), 1):
        events += [(begin + 1, 0, number), (begin + 1 + length, 1, number)]
    frames = [
        frame(Side.BROKER if kind else Side.CLIENT, number, time_ns)
        for time_ns, kind, number in sorted(events)
    ]
    exchanges = ((None, each) for each in pair(frames))
    found = [each.number for each in ahead(items(exchanges)) if each]
    assert found == list(range(1, len(spans) + 1))
