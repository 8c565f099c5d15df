"""Records that name schemas, decoded wherever people read them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from kproxy.exchange.arriving import ArrivingRequest
from kproxy.exchange.filter import parse
from kproxy.look.lines.show import show_records
from kproxy.wire.protocol.records import encode_batch
from tests.exchange.bodies import produce_request
from tests.exchange.making import request
from tests.wire.payloads import making

ORDER = json.loads(making.VALUES[0][5:])
BY = "JSON, schema 17"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return making.write(tmp_path_factory.mktemp("decoded") / "shop.mcap")


def test_records_are_decoded_and_say_by_what_or_why_not(recorded: Path) -> None:
    out = io.StringIO()
    show_records([recorded], "orders", None, out)
    ann, unknown, plain, lying = (
        line.split(" app          ")[1] for line in out.getvalue().splitlines()[:4]
    )
    assert ann == f'"ann" {json.dumps(ORDER, ensure_ascii=False)} (key: {BY}; value: {BY})'
    assert unknown == r"ben \x00\x00\x00\x00c\x01\x02 (schema 99 is not in the recording)"
    assert plain == f"eve {making.VALUES[2].decode()}", "it speaks for itself"
    assert lying.startswith(r'"mal" \x00\x00\x00\x00\x11{')
    assert lying.endswith("; value: not of schema 17: it is no JSON)")


@pytest.mark.parametrize(
    ("text", "customers"),
    [
        ("value.customer:ann", ["ann"]),
        ("value.customer:a*,eve", ["ann", "eve"]),
        ("value.amount:100..", ["eve"]),
        ("value.amount:12", ["ann"]),
        ("value.amount:..12.5 value.paid:true", ["ann"]),
        ("value.items[*].id:4", ["ann"]),
        ("value.items[0].id:4", []),
        ("value.items:*", ["ann"]),
        ("VALUE.note:null", ["eve"]),
        ("value.Note:null", []),
        ("key:eve value.amount:12", []),
        ("api:Produce (value.amount:12 or value.customer:eve)", ["ann", "eve"]),
        ("value.amount:* not value.customer:ann", ["eve"]),
        ("not value.customer:ann topic:orders", ["?", "eve", "?"]),
        ("value.customer:ann or client_id:nobody", ["ann"]),
        ("value.customer:ann or not client_id:nobody", ["ann", "?", "eve", "?"]),
        ("not (value.customer:ann or api:Fetch) time:+0s..", ["?", "eve", "?"]),
    ],
)
def test_a_filter_looks_into_records(recorded: Path, text: str, customers: list[str]) -> None:
    """Decoded ones, and those that are JSON by themselves."""
    out = io.StringIO()
    show_records([recorded], "orders", None, out, parse(text), as_json=True)
    found = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [_customer(each) for each in found if each["produced"]] == customers


def _customer(found: dict[str, Any]) -> str:
    """The customer of a record; "?" where nobody can tell."""
    try:
        return (found["value_decoded"] or json.loads(found["value"]))["customer"]
    except ValueError:
        return "?"


def test_a_rule_looks_into_records_that_arrive() -> None:
    frame = request("Produce", 9, produce_request({0: encode_batch(making.records())})).data
    arriving = ArrivingRequest.of(frame, 1, 1, None, "", 0)
    assert parse("value.customer:eve").matches(arriving), "it is JSON by itself"
    assert not parse("value.customer:ann").matches(arriving), "the proxy knows no schema"
