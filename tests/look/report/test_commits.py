"""How far groups have committed: as a history says, whatever order parts are merged in."""

from __future__ import annotations

import functools
from typing import Any

import attrs
from hypothesis import given
from hypothesis import strategies as st

from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.merging import merge
from kproxy.history.events import events
from kproxy.history.ref import Ref
from kproxy.history.rows import LATEST, Bound, Commit, Deleted
from kproxy.history.transactions import Transactions
from kproxy.look.report.commits import CommittedOffsets
from kproxy.wire.protocol import messages as m
from tests.exchange.bodies import exchange
from tests.exchange.making import MS, START_NS

ORDERS = TopicPartition("orders", 0)
IDS = st.sampled_from(["pay", "tax"])


def made(api: str, version: int, asked: Any, answered: Any) -> tuple[Ref, list[Any]]:
    """What is kept of an exchange, and its rows."""
    found: Exchange = exchange(api, version, asked, answered)
    return Ref.of(found), events(found)


@functools.cache
def commit(offset: int, name: str, code: int):
    api, asked, told = "OffsetCommit", m.OffsetCommitRequest, m.OffsetCommitResponse
    within: dict[str, Any] = {}
    if name:
        api, asked, told = "TxnOffsetCommit", m.TxnOffsetCommitRequest, m.TxnOffsetCommitResponse
        within = {"transactional_id": name}
    topic, place = (getattr(asked, f"{api}Request{each}") for each in ("Topic", "Partition"))
    topics = [topic(name="orders", partitions=[place(partition_index=0, committed_offset=offset)])]
    topic, place = (getattr(told, f"{api}Response{each}") for each in ("Topic", "Partition"))
    answers = [topic(name="orders", partitions=[place(partition_index=0, error_code=code)])]
    return made(api, 3, asked(group_id="billing", topics=topics, **within), told(topics=answers))


@functools.cache
def end(name: str, committed: bool, code: int | None):
    asked = m.EndTxnRequest(transactional_id=name, producer_id=7, committed=committed)
    return made("EndTxn", 3, asked, None if code is None else m.EndTxnResponse(error_code=code))


@functools.cache
def initialize(name: str, code: int):
    asked = m.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
    told = m.InitProducerIdResponse(producer_id=7, error_code=code)
    return made("InitProducerId", 3, asked, told)


@functools.cache
def only(row: Any):
    return commit(0, "", 0)[0], [row]


GONE = [
    Deleted("billing", None, None),
    Deleted(None, "orders", None),
    Deleted("billing", "orders", 0),
]
STEPS = st.lists(
    st.one_of(
        st.builds(commit, st.integers(0, 9), st.one_of(st.just(""), IDS), st.sampled_from([0, 27])),
        st.builds(end, IDS, st.booleans(), st.sampled_from([0, 51, None])),
        st.builds(initialize, IDS, st.sampled_from([0, 51])),
        st.sampled_from(GONE).map(only),
        st.integers(0, 9).map(lambda offset: only(Bound(ORDERS, offset, LATEST))),
    ),
    max_size=12,
)  # fmt: skip


def at(ref: Ref, number: int) -> Ref:
    """An exchange as one of another time."""
    time_ns = START_NS + number * MS
    return attrs.evolve(ref, number=number, time_ns=time_ns, completed_ns=time_ns)


def followed(steps: list[tuple[Ref, list[Any]]]) -> tuple[int | None, int | None]:
    """The offset that certainly counts, and the end of the log, step by step."""
    transactions = Transactions()
    committed: int | None = None
    log_end: int | None = None
    for ref, rows in steps:
        for row in transactions.take(ref, rows):
            match row:
                case Commit(certain=True):
                    committed = row.offset
                case Deleted():
                    committed = None
                    log_end = None if row[1:] == ("orders", None) else log_end
                case Bound():
                    log_end = max(row.offset, log_end or 0)
                case _:
                    pass
    return committed, log_end


@given(STEPS, st.data())
def test_parts_in_any_order_say_what_a_history_says(steps, data):
    steps = [(at(ref, number), rows) for number, (ref, rows) in enumerate(steps)]
    parts = [CommittedOffsets()]
    for ref, rows in steps:
        if data.draw(st.booleans()):
            parts.append(CommittedOffsets())
        parts[-1].take(ref, rows)
    together = CommittedOffsets()
    for part in data.draw(st.permutations(parts)):
        merge(together, part)
    found = together.committed().get(("billing", "orders", 0)), together.ends().get(ORDERS)
    assert found == followed(steps)


def test_the_end_of_a_log_stays_the_largest_that_was_seen():
    commits = CommittedOffsets()
    for number, offset in enumerate([10, 8, 12, 11]):
        commits.take(at(only(None)[0], number), [Bound(ORDERS, offset, LATEST)])
    assert commits.ends() == {ORDERS: 12}
    assert len(commits.log_ends[ORDERS]) == 2
