"""Short words for sizes, times, lists, topics."""

from __future__ import annotations

from uuid import UUID

import pytest

from kproxy.exchange.words import wording
from kproxy.protocol import messages

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
    names.known.note({"topic_id": str(told), "topic": "orders"})
    assert names.topic(T(name="other", topic_id=told)) == "other"
    assert names.topic(T(name=None, topic_id=told)) == "orders"
    assert names.topic(T(name=None, topic_id=unknown)) == "id:AAAAAAAA"
    assert names.topic(T(name=None)) == "?"
