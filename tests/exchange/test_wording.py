"""Short words for sizes, times, lists, topics."""

from __future__ import annotations

import re
from uuid import UUID

import pytest
from hypothesis import given, strategies

from kproxy.exchange.words import wording
from kproxy.wire.protocol import messages

T = messages.MetadataResponse.MetadataResponseTopic


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [
        (None, "–"),
        (0.0, "0.00"),
        (0.049, "0.05"),
        (9.994, "9.99"),
        (9.996, "10.0"),
        (99.94, "99.9"),
        (99.96, "100"),
        (503.4, "503"),
        (12_345, "12.3s"),
        (123456.7, "123s"),
        (1_800_000, "30.0m"),
        (86_400_000, "24.0h"),
        (-0.004, "-0.00"),
    ],
)
def test_milliseconds(duration_ms, text):
    assert wording.milliseconds(duration_ms) == text


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [
        (None, "–"), (0, "0 ms"), (0.0004, "0.4 µs"), (0.01, "10 µs"),
        (0.9996, "1 ms"), (2.0, "2 ms"), (100, "100 ms"), (1027.7, "1.03 s"), (59_990, "1 min"),
        (90_000, "1.5 min"), (3_600_000, "1 h"), (43_200_000, "12 h"), (129_600_000, "1.5 d"),
    ],
)  # fmt: skip
def test_durations(duration_ms, text):
    assert wording.duration(duration_ms) == text


@given(strategies.floats(0, 1e10))
def test_durations_are_written_as_people_do(duration_ms):
    number, unit = wording.duration(duration_ms).split(" ")
    assert re.fullmatch(r"\d{1,4}|\d{1,2}\.\d{1,2}", number), "no exponent"
    units = {"µs": 0.001, "ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
    assert float(number) * units[unit] == pytest.approx(duration_ms, rel=0.0051, abs=5.1e-6)


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [
        *((2.0, "2.00 ms"), (1200, "1.2 s"), (119_900, "119.9 s"), (150_000, "2.5 min")),
        *((5_000_000, "83.3 min"), (10_800_000, "3.0 h"), (864_000_000, "240.0 h")),
    ],
)
def test_ages(duration_ms, text):
    assert wording.age(duration_ms) == text


def test_counts():
    assert wording.count(1, "record") == "1 record"
    assert wording.count(0, "record") == "0 records"
    assert wording.count(2, "entry") == "2 entries"
    assert wording.count(2, "replica key") == "2 replica keys"


def test_lists():
    assert wording.listed([]) == ""
    assert wording.listed("abc") == "a, b, c"
    assert wording.listed("abcde") == "a, b, c +2"
    assert wording.joined("a", "", "b") == "a, b"


def test_long_ids_keep_both_ends():
    assert wording.shortened("m-1") == "m-1"
    assert wording.shortened(None) == ""
    one = wording.shortened("consumer-checkout-1-0b7cf2fd-37e1-4ccd-8c3e-1f0f6d5d2f11")
    other = wording.shortened("consumer-checkout-1-0b7cf2fd-37e1-4ccd-8c3e-1f0f6d5d2f12")
    assert one == "consumer-chec…5d2f11"
    assert one != other


def test_partitions():
    assert wording.partitions("orders", ["0"]) == "orders[0]"
    assert wording.partitions("orders", list("012345")) == "orders[0,1,2,3 +2]"
    assert wording.partitions("orders", []) == "orders[]"
    assert wording.at(0, 41) == "0@41"
    assert wording.at(0, -1) == "0@–"
    assert wording.at(0, "latest") == "0@latest"


def test_topics_are_named_by_name_or_id():
    names = wording.Context()
    told, unknown = UUID(int=1), UUID(int=2)
    names.topic_names.note({"topic_id": str(told), "topic": "orders"})
    assert names.topic(T(name="other", topic_id=told)) == "other"
    assert names.topic(T(name=None, topic_id=told)) == "orders"
    assert names.topic(T(name=None, topic_id=unknown)) == "id:AAAAAAAA"
    assert names.topic(T(name=None)) == "?"
