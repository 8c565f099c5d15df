"""Whole programs under faults: transactions across both halves of the commit gap, topic ids.

The programs are those of `tests/bed/clients`; they do the same work as without faults, and the
broker, asked past the proxy, has in the end what it would have without.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.bed import programs
from tests.bed.actors import judge
from tests.bed.clients.job import COMPRESSIONS, KEPT, records
from tests.bed.experiment import fired, read, running
from tests.versions import some

pytestmark = pytest.mark.broker

CLIENTS = {"confluent-kafka": (), "java-4.4.0": pytest.mark.java}
"""And what they need of the machine."""

GAPS = [
    "api=EndTxn phase=before times=2 disconnect=true",
    "api=EndTxn phase=after times=2 disconnect=true",
    "api=EndTxn phase=after times=1 reset=true",
    "api=Produce phase=before times=2 disconnect=true",
    "api=Produce phase=after times=2 disconnect=true",
    "api=TxnOffsetCommit phase=before times=1 disconnect=true",
    "api=TxnOffsetCommit phase=after times=1 disconnect=true",
]
"""Where a transaction can be torn: a request is lost, or the response of a broker that did it."""
FEW = [
    (GAPS[0], "confluent-kafka"),
    (GAPS[1], "java-4.4.0"),
    (GAPS[2], "confluent-kafka"),
    (GAPS[4], "confluent-kafka"),
    (GAPS[6], "confluent-kafka"),
]


@pytest.mark.parametrize(
    ("gap", "client"),
    [
        pytest.param(gap, name, marks=CLIENTS[name])
        for gap, name in some([*itertools.product(GAPS, CLIENTS)], FEW)
    ],
    ids=lambda words: " ".join(words.split()[:2]),
)
def test_a_transaction_happens_once_on_whichever_side_of_the_broker_it_is_torn(
    gap: str, client: str, real_broker: str, prefix: str, tmp_path: Path
) -> None:
    steps = ("create", "transactions")
    # The program's reader is of the group whose offsets the transaction commits.
    own = {"enable.auto.commit": False} if client == "confluent-kafka" else {}
    with running(real_broker, tmp_path, gap) as proxy:
        working = programs.named(client), proxy.bootstrap, prefix, steps
        results = programs.work(*working, settings=own)
    assert results["transactions"]["values"] == KEPT
    assert judge.values(real_broker, f"{prefix}-ledger") == KEPT
    assert judge.committed(real_broker, f"{prefix}-eos", f"{prefix}-ledger") == 1
    assert len(fired(proxy.recording)) == (1 if "times=1" in gap else 2)


@pytest.mark.parametrize(
    "client",
    [pytest.param(name, marks=CLIENTS[name]) for name in some(list(CLIENTS), ["confluent-kafka"])],
)
def test_a_topic_id_that_is_unknown_is_asked_for_again(
    client: str, real_broker: str, prefix: str, tmp_path: Path
) -> None:
    rule = "api=Fetch error=UNKNOWN_TOPIC_ID times=2"
    steps = ("create", "produce", "group")
    with running(real_broker, tmp_path, rule) as proxy:
        results = programs.work(programs.named(client), proxy.bootstrap, prefix, steps)
    count = sum(len(records(each)) for each in COMPRESSIONS)
    assert results["produce"]["produced"] == results["group"]["committed"] == count
    failed = read(proxy.recording, "api:Fetch error:UNKNOWN_TOPIC_ID")
    assert len(failed) == len(fired(proxy.recording)) == 2
    after = [each.api for each in read(proxy.recording) if each.number > failed[0].number]
    assert "Metadata" in after
