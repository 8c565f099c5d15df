"""Error codes are Kafka's; a ProtocolError reads well and travels."""

from __future__ import annotations

import csv
import pickle

import pytest

from kproxy.wire.protocol import ProtocolError, errors
from tests.wire.protocol.making import DATA


def test_the_table_is_kafkas():
    with (DATA / "errors.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert {
        int(row["code"]): (row["name"], row["retriable"] == "true") for row in rows
    } == errors.ERRORS


def test_names_and_codes():
    assert errors.error_name(0) == "NONE"
    assert errors.error_name(6) == "NOT_LEADER_OR_FOLLOWER"
    assert errors.error_name(-7) == "UNKNOWN_ERROR_CODE_-7"
    assert errors.error_code("NOT_LEADER_OR_FOLLOWER") == 6
    assert errors.error_code("NONSENSE") is None
    assert errors.is_retriable(6)
    assert not errors.is_retriable(29)
    assert not errors.is_retriable(9999)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ProtocolError("why"), "why"),
        (ProtocolError("why", field="records"), "records: why"),
        (ProtocolError("why", api_key=99, api_version=1), "api key 99 v1: why"),
        (
            ProtocolError("why", api_key=3, message="M", api_version=2, field="a.b", offset=7),
            "M v2 a.b at offset 7: why",
        ),
    ],
)
def test_a_protocol_error_is_one_line_and_can_be_pickled(error, text):
    assert str(error) == text
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == text
    assert again.__dict__ == error.__dict__
