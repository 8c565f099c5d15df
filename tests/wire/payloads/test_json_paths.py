"""Parts of JSON are left out of a comparison by paths; all else is compared byte by byte."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.wire.payloads.json_paths import parse, replaced

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
    max_leaves=8,
)


def without(data: bytes | None, paths: tuple) -> bytes | None:
    """A value without the parts at paths."""
    return replaced(data, [(each, lambda part: None) for each in paths])


@pytest.mark.parametrize(
    ("path", "one", "other", "same"),
    [
        ("at", {"at": 1, "id": 2}, {"id": 2, "at": 9}, True),
        ("at", {"at": 1, "id": 2}, {"at": 1, "id": 3}, False),
        ("$.meta.at", {"meta": {"at": 1}}, {"meta": {"at": 2}}, True),
        ("items[*].id", {"items": [{"id": 1}, {"id": 2}]}, {"items": [{"id": 3}, {"id": 4}]}, True),
        ("items[*].id", {"items": [{"id": 1}]}, {"items": [{"id": 3}, {"id": 4}]}, False),
        ("[1]", [1, 2, 3], [1, 9, 3], True),
        ("[1]", [1, 2, 3], [1, 2, 9], False),
        ("at", {"at": 1}, {}, False),
        ("a.b", {"a": 1}, {"a": 2}, False),
    ],
)
def test_what_a_path_leaves_out(path: str, one: object, other: object, same: bool) -> None:
    paths = (parse(path),)
    left, right = (without(json.dumps(each).encode(), paths) for each in (one, other))
    assert (left == right) is same


@pytest.mark.parametrize("text", ["", "$", "a..b", "a[", "a[x]", "[*", "." * 9, "a." * 60 + "a"])
def test_what_is_no_path(text: str) -> None:
    with pytest.raises(ValueError, match="is no path"):
        parse(text)


@given(JSON, JSON)
def test_two_values_without_the_path_compare_as_their_bytes_do(one: object, other: object) -> None:
    left, right = (json.dumps(each).encode() for each in (one, other))
    paths = (parse("never.there"),)
    assert (without(left, paths) == without(right, paths)) is (left == right)


@given(st.none() | st.binary(max_size=20))
def test_any_bytes_may_be_compared(data: bytes | None) -> None:
    assert without(data, (parse("a[*]"),)) == data


def test_nesting_without_end_is_compared_as_it_is() -> None:
    deep = b'{"a":' * 100_000
    assert without(deep, (parse("a"),)) == deep
