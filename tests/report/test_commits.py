"""How far groups have committed: by hand, and whatever order parts are merged in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kproxy.report.commits import CommittedOffsets

ORDERS = ("billing", "orders", 0)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.integers(0, 9), st.sampled_from([None, "pay", "tax"])),
        st.tuples(st.just("end"), st.sampled_from(["pay", "tax"]), st.booleans()),
        st.tuples(
            st.just("delete"),
            st.sampled_from([("billing", None, None), (None, "orders", None), ORDERS]),
        ),
        st.tuples(st.just("log_end"), st.integers(0, 9)),
    ),
    max_size=12,
)


def take(commits: CommittedOffsets, at: int, step: tuple) -> None:
    """Take a step at a time."""
    when = at, at
    match step:
        case "commit", offset, transactional_id:
            commits.commit(ORDERS, when, offset, transactional_id)
        case "end", transactional_id, committed:
            commits.end(transactional_id, when, committed)
        case "delete", gone:
            commits.delete(gone, when)
        case _, offset:
            commits.log_end("orders", 0, when, offset)


def followed(steps: list[tuple]) -> tuple[int | None, int | None]:
    """The committed offset and the end of the log, step by step."""
    committed: int | None = None
    end: int | None = None
    left: dict[str, int] = {}
    for step in steps:
        match step:
            case "commit", offset, None:
                committed = offset
            case "commit", offset, transactional_id:
                left[transactional_id] = offset
            case "end", transactional_id, is_commit:
                offset = left.pop(transactional_id, None)
                committed = offset if is_commit and offset is not None else committed
            case "delete", (_, topic, partition):
                committed = None
                end = None if topic is not None and partition is None else end
            case _, offset:
                end = max(offset, end or 0)
    return committed, end


@given(STEPS, st.data())
def test_parts_in_any_order_say_what_one_says_that_follows_all(steps, data):
    parts = [CommittedOffsets()]
    for at, step in enumerate(steps):
        if data.draw(st.booleans()):
            parts.append(CommittedOffsets())
        take(parts[-1], at, step)
    together = CommittedOffsets()
    for part in data.draw(st.permutations(parts)):
        together.merge(part)
    found = together.committed().get(ORDERS), together.ends().get(("orders", 0))
    assert found == followed(steps)


def test_the_end_of_a_log_stays_the_largest_that_was_seen():
    commits = CommittedOffsets()
    for at, offset in enumerate([10, 8, 12, 11]):
        commits.log_end("orders", 0, (at, at), offset)
    assert commits.ends() == {("orders", 0): 12}
    assert len(commits.log_ends["orders", 0]) == 2
