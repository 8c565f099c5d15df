"""What varies from run to run, and how: ids, times and keys are of their kind, and as equal and as
different as they were; an app is served those that it has made."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.replay import ignore_words
from kproxy.replay.ignored import Content, Ignored, IgnoredPart
from kproxy.replay.kinds import Kind, kind_of
from kproxy.replay.places import places_of, varying_words
from kproxy.replay.report import varying_text
from kproxy.replay.settings import ReplaySettings, Visible
from kproxy.wire.protocol import records
from kproxy.wire.protocol.record_batch import Record
from kproxy.wire.protocol.records import encode_batch
from tests.replay.making import Playing, Recorded
from tests.replay.test_compared import UUIDS

A, B, C, D = UUIDS
NOW, LATER = 1_790_000_000_000, 1_790_000_099_000


def of(*records: tuple[Any, Any], headers: dict[str, str] | None = None, **more: Any) -> bytes:
    """A batch of keys and JSON values."""
    named = tuple((name, text.encode()) for name, text in (headers or {}).items())
    made = [
        Record(at, 1, key.encode() if key else key, json.dumps(value).encode(), named)
        for at, (key, value) in enumerate(records)
    ]
    return encode_batch(made, **more)


def playing(then: bytes, *words: str, partitions: int = 1) -> Playing:
    """The broker of a recording in which this was produced."""
    was = Recorded().metadata(partitions=partitions).produced(then)
    settings = ReplaySettings(visible=Visible.CAUSAL, ignored=ignore_words.parse(words))
    return Playing(was.loaded, settings)


def found(then: bytes, now: bytes, *words: str) -> list[str]:
    """What differs."""
    broker = playing(then, *words)
    broker.connect().produce(now)
    broker.perform(broker.broker.stop(broker.now))
    return [each.text for each in broker.report.findings]


def values(*ids: Any, place: str = "id") -> bytes:
    return of(*[("k", {"n": at, place: each}) for at, each in enumerate(ids)])


@pytest.mark.parametrize("kind", ["uuid", "time", "counter", "random", "unique", "any"])
@pytest.mark.parametrize(
    ("then", "now", "green"),
    [
        (A, B, "uuid random unique any"),
        (A, None, "any"),
        (A, 17, "unique any"),
        (A, "", "unique any"),
        (NOW, LATER, "time counter unique any"),
        (NOW, 17, "counter unique any"),
        ("2026-09-21T14:13:20Z", "2026-09-22 14:13:20.123+02:00", "time unique any"),
        ("2026-09-21T14:13:20Z", "yesterday", "unique any"),
        (7, 8, "counter unique any"),
        (7, 7.5, "unique any"),
        ("x9f3a2c81e", "0b71d4e6aa", "random unique any"),
        (None, A, "any"),
    ],
)
def test_what_is_ignored_has_its_kind(kind: str, then: Any, now: Any, green: str) -> None:
    differs = found(values(then), values(now), f"json:id:{kind}")
    assert (differs == []) == (kind in green.split())
    if differs:
        assert "value.id" in differs[0] or "id" in differs[0]


@given(st.lists(st.integers(0, 3), max_size=5), st.lists(st.integers(0, 3), max_size=5))
def test_ids_are_as_equal_and_as_different_as_they_were(then: list[int], now: list[int]) -> None:
    now = (now + [0] * 5)[: len(then)]
    same = [then.index(each) for each in then] == [now.index(each) for each in now]
    batches = [values(*[UUIDS[each] for each in ids]) for ids in (then, now)]
    if then:
        assert (found(*batches, "json:id:uuid") == []) == same
        assert found(*batches, "json:id:any") == found(*batches, "json:id") == []
        times = [values(*[NOW + each for each in ids]) for ids in (then, now)]
        assert found(*times, "json:id:time") == []


def test_the_same_id_on_each_record_is_told_in_a_line() -> None:
    assert found(values(A, B, C), values(D, D, D), "json:id:uuid") == [
        f"orders: json:id {D} is in 3 records; recorded: one in 1"
    ]


def shop(*ids: tuple[str, str, str], more: int = 0) -> bytes:
    """Orders, and payments of their ids: the id of an order, the one that its payment names, and
    the payment's own."""
    orders = [("k", {"total": 10 * at, "id": order}) for at, (order, _, _) in enumerate(ids)]
    payments = [
        ("k", {"amount": 10 * at + more, "of": named, "id": own})
        for at, (_, named, own) in enumerate(ids)
    ]
    return of(*orders, *payments)


IDS = [f"{number:08}-0000-4000-8000-000000000000" for number in range(20)]
SHOP = "json:id:uuid", "json:of:uuid"


def test_an_id_that_is_not_equal_any_more_is_named_by_its_place_and_its_neighbour() -> None:
    then = shop((A, A, B), (C, C, D))
    first, second, *new = IDS
    assert found(then, shop((first, first, new[0]), (second, second, new[1])), *SHOP) == []
    unknown = shop((first, first, new[0]), (second, new[2], new[1]))
    assert found(then, unknown, *SHOP) == [
        f"orders: json:of differs from orders/json:id {second}; recorded: equal"
    ]
    swapped = shop((first, second, new[0]), (second, first, new[1]))
    assert found(then, swapped, *SHOP) == [
        f"orders: json:of differs from orders/json:id {first}; recorded: equal"
    ]
    own = of(("k", {"id": first, "as": first}))
    assert found(of(("k", {"id": A, "as": B})), own, "json:id:uuid", "json:as:uuid") == [
        f"orders: json:as equals orders/json:id {first}; recorded: differs"
    ]


def test_a_changed_record_is_compared_with_that_of_the_same_ids() -> None:
    then = shop(*((each, each, own) for each, own in zip(IDS[:3], IDS[3:6], strict=True)))
    again = zip(IDS[10:13], IDS[13:16], strict=True)
    lines = found(then, shop(*((each, each, own) for each, own in again), more=11), *SHOP)
    pairs = [line.partition("amount ")[2].partition(" (")[0] for line in lines]
    assert pairs == ["11, recorded 0", "21, recorded 10", "31, recorded 20"]


def test_ids_of_equal_records_may_change_places() -> None:
    def two(first: str, second: str, *ids: str) -> bytes:
        return of(*[("k", {"n": 1, "id": each}) for each in (first, second)],
                  *[("k", {"of": each}) for each in ids])  # fmt: skip

    words = "json:id:uuid", "json:of:uuid"
    assert found(two(A, B, A, B), two(C, D, D, C), *words) == []
    assert found(two(A, B, A, B), two(C, D, D, D), *words)
    assert found(two(A, B, A, B), two(C, D, A, B), *words)


def test_an_ignored_header_has_its_kind_and_is_there() -> None:
    def one(**headers: str) -> bytes:
        return of(("k", 1), headers=headers)

    assert found(one(trace=A), one(trace=B), "header:trace:uuid") == []
    (line,) = found(one(trace=A), one(trace="none"), "header:trace:uuid")
    assert "header trace 'none'" in line
    (line,) = found(one(trace=A), one(), "header:trace:uuid")
    assert "no header trace, recorded" in line


def test_of_one_topic() -> None:
    assert found(values(A), values(B), "orders/json:id:uuid") == []
    assert len(found(values(A), values(B), "other/json:id:uuid")) == 1


def test_a_consumer_is_served_what_was_produced_under_another_key() -> None:
    """A key that varies goes to any partition, and the app looks for its own there."""
    then = of((A, {"n": 1}), (B, {"n": 2}))
    broker = playing(then, "key:uuid", partitions=2)
    client = broker.connect()
    client.produce(of((C, {"n": 2})), partition=1)
    client.produce(of((D, {"n": 1})))
    assert broker.report.findings == []

    def keys(partition: int) -> list[str]:
        data = bytes(client.fetch(0, partition=partition).records)
        return [one.key.decode() for each in records.batches(data) for one in each.records]

    assert keys(1) == [C] and keys(0) == [D]
    (line,) = found(then, of((C, {"n": 1}), ("k", {"n": 2})), "key:uuid")
    assert "key" in line and "'k'" in line


def test_what_an_app_has_made_comes_back_to_it() -> None:
    broker = playing(values(A, B), "json:id:uuid")
    client = broker.connect()
    assert client.produce(values(C, D)).base_offset == 0
    assert [json.loads(each)["id"] for each in client.values()] == [C, D]


WORDS = st.builds(
    IgnoredPart,
    st.sampled_from(["header", "json", "key-json"]),
    st.sampled_from(["id", "a.b[*]", "x:uuid", "trace:x"]),
    st.sampled_from(Kind),
    st.sampled_from(["", "orders"]),
) | st.builds(IgnoredPart, st.sampled_from(["key", "value"]), kind=st.sampled_from(Kind))


@given(WORDS)
def test_a_word_says_all_of_a_part(part: IgnoredPart) -> None:
    assert ignore_words.parse([part.word]).parts == (part,)


NAMES = st.text(st.sampled_from('a0.[]"\\$:/* \né\ud800'), max_size=4)
VARY = st.recursive(
    st.just(7),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=2)
        | st.dictionaries(NAMES, inner, min_size=1, max_size=2)
    ),
    max_leaves=4,
).filter(lambda made: made != 7)


@given(VARY)
def test_the_words_for_what_varies_name_it(made: Any) -> None:
    was, now = (
        Record(0, 1, each.encode(), json.dumps(made).replace("7", f'"{each}"').encode(), ())
        for each in (A, B)
    )
    meanings = {"key": None, "value": None}
    words = varying_words(places_of(now, meanings), places_of(was, meanings), "orders")
    assert "orders/key:uuid" in words
    ignored = ignore_words.parse(words)
    assert ignored.content(was, "orders") == ignored.content(now, "orders")
    assert ignored.content(was, "other") == (was.key, was.value, (), "")


def test_a_field_that_varies_in_several_topics_is_one_word() -> None:
    words = [f"{topic}/{part}" for topic in "ab" for part in ("json:id:uuid", "key:uuid")]
    told = varying_text([*words, "a/header:trace:uuid", *words], " ".join)
    assert told.endswith(": json:id:uuid a/key:uuid b/key:uuid a/header:trace:uuid")


@pytest.mark.parametrize(
    "word",
    [
        "",
        "keys",
        "key:uid",
        "header",
        "json:",
        "json:a[",
        "json:id:uuuid",
        "partition:uuid",
        "orders/order",
    ],
)
def test_what_is_no_word(word: str) -> None:
    with pytest.raises(ValueError, match=r"cannot be ignored|is no path"):
        ignore_words.parse([word])


@given(st.binary(max_size=9) | st.none(), st.binary(max_size=9) | st.none(), st.lists(WORDS))
def test_any_record_may_be_looked_at(
    key: bytes | None, value: bytes | None, parts: list[IgnoredPart]
) -> None:
    record = Record(0, 1, key, value, (("id", value),))
    content = Ignored(parts=tuple(parts)).content(record, "orders")
    assert isinstance(content, Content)
    if not parts:
        assert content == (key, value, record.headers, "")


@pytest.mark.parametrize(
    ("runs", "kind"),
    [
        ([[A, B], [C, D]], Kind.UUID),
        ([[NOW], [LATER]], Kind.TIME),
        ([[b"1790000000.5"], [b"1790000009.5"]], Kind.TIME),
        ([[NOW.to_bytes(8)], [LATER.to_bytes(8)]], Kind.TIME),
        ([[(5).to_bytes(8)], [(6).to_bytes(8)]], None),
        ([[1, 2], [5, 6]], Kind.COUNTER),
        ([[1], [5]], None),
        ([[3, 2], [5, 6]], None),
        ([["x9f3a2c81e"], ["0b71d4e6aa"]], Kind.RANDOM),
        ([["new"], ["paid"]], None),
        ([[A], [None]], None),
        ([[11.5], [12.0]], None),
    ],
)
def test_a_kind_is_seen_in_what_there_is(runs: list[list[Any]], kind: Kind | None) -> None:
    assert kind_of(runs) is kind


def test_a_topic_may_have_any_records_and_the_others_may_not() -> None:
    recorded = values(1, 2, 3)
    assert found(recorded, values(1, 7), "orders/records") == []
    assert found(recorded, values(1, 7), "other/records") != []
    for word, is_missing in ("orders/records", False), ("other/records", True):
        assert playing(recorded, word).broker.state.check.lacks_records == is_missing
    with pytest.raises(ValueError, match="cannot be ignored"):
        ignore_words.parse(["orders/records:any"])
