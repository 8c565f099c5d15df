"""A partition's log: what is read from it, and where it ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.replay.log import PartitionLog
from kproxy.replay.store import Store
from kproxy.wire.protocol import ProtocolError, records
from kproxy.wire.protocol.message_sets import encode_message_set
from kproxy.wire.protocol.records import encode_batch, end_transaction_marker
from tests.replay.making import batch


def log_of(*batches: bytes) -> PartitionLog:
    log = PartitionLog(Store())
    for data in batches:
        log.add(data, produced=False)
    log.finish(None)
    return log


def offsets(data: bytes | memoryview) -> list[int]:
    return [record.offset for each in records.batches(bytes(data)) for record in each.records]


def values(data: bytes | memoryview) -> list[bytes | None]:
    return [record.value for each in records.batches(bytes(data)) for record in each.records]


def marker(offset: int, producer_id: int, commit: bool) -> bytes:
    record = end_transaction_marker(offset, 9000, commit=commit, coordinator_epoch=0)
    more = {"producer_id": producer_id, "producer_epoch": 0}
    return encode_batch([record], control=True, transactional=True, **more)


@given(st.permutations(range(6)), st.integers(0, 12))
def test_batches_are_served_in_order_whatever_order_they_came_in(order, offset) -> None:
    batches = [batch("a", "b", base_offset=2 * index) for index in range(6)]
    log = log_of(*(batches[index] for index in order))
    found = log.read(offset, log.end_offset, 1 << 20, True)
    assert bytes(found) == b"".join(batches[offset // 2 :])
    assert (log.start_offset, log.end_offset) == (0, 12)


def test_batches_that_came_together_leave_as_the_very_bytes() -> None:
    data = batch("a") + batch("b", base_offset=1)
    log = log_of(data)
    found = log.read(0, 2, 1 << 20, True)
    assert isinstance(found, memoryview)
    assert found.obj is data


def test_a_read_in_a_hole_gives_the_next_batch() -> None:
    log = log_of(batch("a"), batch("b", base_offset=10))
    assert offsets(log.read(1, 11, 1 << 20, True)) == [10]


def test_the_first_batch_comes_however_large_and_the_rest_as_allowed() -> None:
    log = log_of(batch("a" * 100), batch("b" * 100, base_offset=1))
    size = len(batch("a" * 100))
    assert offsets(log.read(0, 2, 1, True)) == [0]
    assert offsets(log.read(0, 2, 1, False)) == []
    assert offsets(log.read(0, 2, 2 * size - 1, True)) == [0]
    assert offsets(log.read(0, 2, 2 * size, True)) == [0, 1]


def test_a_batch_that_was_fetched_takes_the_place_of_the_produced_one() -> None:
    log = PartitionLog(Store())
    log.add(batch("produced", base_offset=3), produced=True)
    log.add(batch("fetched", base_offset=3), produced=False)
    log.add(batch("again", base_offset=3), produced=True)
    log.finish(None)
    assert records.batches(bytes(log.read(3, 4, 1 << 20, True)))[0].records[0].value == b"fetched"
    assert len(log) == 1
    assert [batch.offset for batch, _ in log.produced()] == [3]


def test_a_batch_that_is_cut_off_is_left_out() -> None:
    assert log_of((batch("a") + batch("b", base_offset=1))[:-1]).end_offset == 1


def test_what_is_no_batch_is_named_by_its_place_behind_the_others() -> None:
    log, first = PartitionLog(Store()), batch("a")
    with pytest.raises(ProtocolError, match="batch length 3") as raised:
        log.add(first + bytes(8) + b"\0\0\0\3" + bytes(20), produced=False)
    assert raised.value.offset == len(first) + 8
    log.finish(None)
    assert offsets(log.read(0, 1, 1 << 20, True)) == [0]


def test_open_and_aborted_transactions_bound_what_is_read() -> None:
    log = log_of(
        batch("a", base_offset=0, producer_id=1, producer_epoch=0, transactional=True),
        batch("b", base_offset=1, producer_id=2, producer_epoch=0, transactional=True),
        marker(2, 1, commit=False),
        batch("c", base_offset=3),
    )
    assert log.last_stable_offset == 1
    (aborted,) = log.aborted(0, 4)
    assert (aborted.producer_id, aborted.first_offset, aborted.last_offset) == (1, 0, 2)
    assert log.aborted(3, 4) == []
    log.append(marker(0, 2, commit=True), leader_epoch=0)
    assert log.last_stable_offset == log.end_offset == 5


def test_what_is_hidden_ends_the_log_until_it_is_shown() -> None:
    log = log_of(batch("a", "b", "c", "d", compression="gzip"))
    log.hide([1, 2, 3], [])
    assert log.visible_end == 1
    assert offsets(log.read(0, log.visible_end, 1 << 20, True)) == [0]
    assert log.live_order.show(1, None, None)
    assert log.visible_end == 2
    assert not log.live_order.show(3, None, None), "it is not the next"
    assert log.append(batch("d"), leader_epoch=0) == 2
    assert not log.live_order.show(2, None, None), "no more is as recorded"
    assert values(log.read(0, 3, 1 << 20, True)) == [b"a", b"b", b"d"]


def test_what_went_to_another_partition_is_never_read_and_holds_nothing_up() -> None:
    log = log_of(batch("a", "b"), batch("c", base_offset=2))
    log.hide([0, 1], [])
    log.pass_by(0)
    assert log.visible_end == 0
    assert log.append(batch("b"), leader_epoch=0) == 0
    assert not log.live_order.show(1, None, None)
    log.pass_by(1)
    assert values(log.read(0, 9, 1 << 20, True)) == [b"b", b"c"]
    assert log.visible_end == 2


def test_a_batch_of_an_old_format_keeps_its_codec_when_it_moves_back() -> None:
    follows = [records.Record(each, 1000, None, b"%d" % each) for each in (1, 2)]
    log = log_of(batch("a"), encode_message_set(follows, magic=1, compression="gzip"))
    log.hide([0], [])
    log.append(batch("new"), leader_epoch=0)
    log.pass_by(0)
    found = records.batches(bytes(log.read(1, 3, 1 << 20, True)))[0]
    assert (found.magic, found.base_offset, found.compression) == (2, 1, "gzip")
    assert [each.value for each in found.records] == [b"1", b"2"]


@given(st.data())
def test_a_log_that_left_the_recording_is_as_if_it_had_been_written_so(data) -> None:
    """Of many batches, looked up by offset and by time."""
    count, at = data.draw(st.integers(1, 40)), data.draw(st.integers(0, 40))
    times = data.draw(st.lists(st.integers(1, 60), min_size=count + 1, max_size=count + 1))
    at = min(at, count - 1)
    log = log_of(*(batch(str(n), base_offset=n, time=times[n]) for n in range(count)))
    log.hide([at], [])  # the others are of others
    log.append(batch("new", time=times[-1]), leader_epoch=0)
    assert log.visible_end == at + 1
    log.append(batch(str(at), time=times[at]), leader_epoch=0)
    log.pass_by(at)
    order = [*range(at), count, *range(at, count)]
    assert log.visible_end == count + 1
    whole = [log.read(offset, count + 1, 1, True) for offset in range(count + 1)]
    names = [str(number) if number < count else "new" for number in order]
    assert [value.decode() for one in whole for value in values(one)] == names
    assert [offset for one in whole for offset in offsets(one)] == [*range(count + 1)]
    served = [times[number] for number in order]
    for wanted in (0, *times, 99):
        later = [(offset, time) for offset, time in enumerate(served) if time >= wanted]
        assert log.offset_by_time(wanted, count + 1) == (later[0] if later else None)
    assert log.newest(count + 1) == (served.index(max(served)), max(served))


def test_offsets_by_time_are_the_same_however_many_batches_there_are() -> None:
    times = [1000 + 2 * offset + (0 if offset % 4 else 5) for offset in range(50)]
    log = log_of(*(batch("a", base_offset=n, time=time) for n, time in enumerate(times)))
    for end in (1, 15, 16, 17, 32, 49, 50):
        for wanted in range(999, 1105):
            later = [(offset, time) for offset, time in enumerate(times[:end]) if time >= wanted]
            assert log.offset_by_time(wanted, end) == (later[0] if later else None)
        youngest = max(times[:end])
        assert log.newest(end) == (times.index(youngest), youngest)


def test_epochs_end_where_the_next_begins() -> None:
    log = log_of(
        batch("a", partition_leader_epoch=2), batch("b", base_offset=1, partition_leader_epoch=4)
    )
    assert log.end_of_epoch(3) == (2, 1)
    assert log.end_of_epoch(4) == (4, 2)
    assert log.end_of_epoch(1) == (1, 0)


def test_produced_batches_get_the_next_offsets() -> None:
    log = log_of(batch("a"))
    assert log.append(batch("b", "c", base_offset=77), leader_epoch=9) == 1
    assert offsets(log.read(1, 3, 1 << 20, True)) == [1, 2]
    assert records.batches(bytes(log.read(1, 3, 1 << 20, True)))[0].partition_leader_epoch == 9
