"""`kproxy why topic:T key:K`: where a key was written, by which partitioner, who has read it."""

from __future__ import annotations

import contextlib
import io
import shlex
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kproxy.cli import main
from kproxy.exchange.partitioners import placements
from kproxy.look.why.findings import Findings
from kproxy.look.why.source import StorySource
from kproxy.look.why.stories import show_why
from kproxy.wire.protocol import messages as M
from kproxy.wire.protocol import records
from kproxy.wire.protocol.record_batch import Record
from tests.exchange.batches import marker
from tests.exchange.bodies import fetch_request, fetch_response, produce_request, produce_response
from tests.exchange.making import unanswered
from tests.look.why.traffic import Traffic, body, initialized, sync
from tests.wire.payloads import making

PARTITIONS = 8
JAVA, C = (placements(b"alice", PARTITIONS)[name] for name in ("murmur2", "CRC32"))


def batch(*keys: bytes, first: int = 0, value: bytes | None = b"v") -> bytes:
    return records.encode_batch([Record(first + i, 0, k, value) for i, k in enumerate(keys)])


def metadata(partition_count: int, topic: str = "orders"):
    found = {"name": topic, "partitions": [{"partition_index": n} for n in range(partition_count)]}
    asked = body("MetadataRequest", topics=[{"name": topic}])
    return "Metadata", 8, asked, body("MetadataResponse", topics=[found])


def produce(partition: int, offset: int, *keys: bytes, error: int = 0, **given):
    asked = produce_request({partition: batch(*keys, **given)})
    return "Produce", 8, asked, produce_response({partition: offset}, error)


def fetch(partition: int, first: int, *keys: bytes):
    asked = fetch_request({partition: first})
    return "Fetch", 11, asked, fetch_response({partition: batch(*keys, first=first)})


def commit(partition: int, offset: int, error: int = 0, group: str = "billing"):
    wanted = {"partition_index": partition, "committed_offset": offset}
    topics = [{"name": "orders", "partitions": [wanted]}]
    found = {"partition_index": partition, "error_code": error}
    answer = body("OffsetCommitResponse", topics=[{"name": "orders", "partitions": [found]}])
    return "OffsetCommit", 7, body("OffsetCommitRequest", group_id=group, topics=topics), answer


def told(traffic: Traffic, tmp_path, key: str = "alice") -> list[str]:
    out = io.StringIO()
    show_why([traffic.recorded(tmp_path)], "key", key, out, "orders")
    return out.getvalue().splitlines()


def test_what_is_not_recorded_of_a_key(tmp_path):
    traffic = Traffic()
    traffic.add(0, *fetch(2, 7, b"alice"), client="reader")
    traffic.add(10, *produce(3, -1, b"alice", error=10), client="shop")
    traffic.add(20, *produce(3, 0, b"alice")[:3], None, client="shop")
    lines = told(traffic, tmp_path)
    assert lines == [
        "Key alice: orders[2] 1 record.",
        "The number of partitions of orders is not in the recording.",
        (
            "22:13:20.000 orders[2]@7: who wrote it is not in the recording; fetched by reader"
            " (127.0.0.1) at 22:13:20.001 (Fetch #1); a commit past it is not in the recording."
        ),
        "22:13:20.010 Produce #2 of shop (127.0.0.1) to orders[3] was refused (MESSAGE_TOO_LARGE).",
        (
            "22:13:20.020 Produce #3 of shop (127.0.0.1) to orders[3] got no answer, so whether it"
            " was written is not in the recording."
        ),
    ]


def in_transaction(partition: int, offset: int):
    wanted = {"partition_index": partition, "committed_offset": offset}
    about = {"transactional_id": "pay", "group_id": "eos"}
    topics = [{"name": "orders", "partitions": [wanted]}]
    asked = body("TxnOffsetCommitRequest", topics=topics, **about)
    return "TxnOffsetCommit", 3, asked, M.TxnOffsetCommitResponse()


def ends_transaction(committed: bool):
    asked = M.EndTxnRequest(transactional_id="pay", committed=committed)
    return "EndTxn", 3, asked, M.EndTxnResponse()


def test_offsets_of_a_transaction_whose_end_has_no_answer_may_count(tmp_path):
    traffic = Traffic()
    traffic.add(0, *produce(0, 5, b"alice"), client="shop")
    traffic.add(10, *in_transaction(0, 6), client="reader")
    traffic.add(20, *ends_transaction(True)[:3], None, client="reader")
    traffic.entries.append(unanswered(traffic.entries[-1]))
    traffic.add(30, *initialized("pay", 7, 1), client="reader", connection=2)
    assert told(traffic, tmp_path)[-1].endswith(
        "; group eos may have committed 6 at 22:13:20.020 (EndTxn #3, whose answer is not in the"
        " recording)."
    )
    traffic.add(40, *in_transaction(0, 9), client="reader", connection=2)
    traffic.add(50, *ends_transaction(True), client="reader", connection=2)
    assert told(traffic, tmp_path)[-1].endswith(
        "; group eos committed 9 at 22:13:20.050 (EndTxn #6)."
    )


def test_a_record_that_is_fetched_after_the_commit_and_by_none_of_the_group(tmp_path):
    traffic = Traffic()
    traffic.add(0, *sync("m", 1, 3), client="reader")  # it has another partition
    traffic.add(10, *commit(0, 9), client="reader")
    traffic.add(20, *fetch(0, 5, b"alice"), client="reader")
    assert told(traffic, tmp_path)[-1] == (
        "22:13:20.020 orders[0]@5: who wrote it is not in the recording; fetched by reader"
        " (127.0.0.1) at 22:13:20.021 (Fetch #3); group billing committed 9 at 22:13:20.010"
        " (OffsetCommit #2)."
    )


def test_a_key_that_an_app_placed_itself_and_one_with_more_partitions(tmp_path):
    none = next(n for n in range(PARTITIONS) if n not in placements(b"alice", PARTITIONS).values())
    traffic = Traffic()
    traffic.add(0, *metadata(PARTITIONS))
    traffic.add(10, *produce(none, 0, b"alice"))
    traffic.add(20, *metadata(12))
    traffic.add(30, *produce(placements(b"alice", 12)["murmur2"], 0, b"alice"))
    lines = told(traffic, tmp_path)
    assert "orders was changed: 8 to 12 partitions by Metadata #3 of 22:13:20.020." in lines
    assert [line for line in lines if "no partitioner that kproxy knows does that with 8" in line]
    assert [line for line in lines if "as murmur2" in line and "with 12 partitions" in line]
    assert not [line for line in lines if "keeps the order" in line]


def test_clients_beyond_the_limit_are_counted_together_and_the_first_stay_themselves(tmp_path):
    traffic = Traffic()
    for nth in [*range(25), 0]:
        traffic.add(len(traffic.entries), *produce(0, nth, b"alice"), client=f"c{nth}")
    lines = told(traffic, tmp_path)
    assert [
        line for line in lines if line.startswith("c0 (127.0.0.1) sent it to orders[0] 2 times")
    ]


@example(b"0x41")
@example(b"0x4")
@example(b'it\'s "a" $key `x` #1 *')
@settings(deadline=None, max_examples=10)
@given(st.binary(min_size=1, max_size=9) | st.text(min_size=1, max_size=9).map(str.encode))
def test_the_command_of_a_finding_tells_of_its_key(key):
    traffic = Traffic()
    traffic.add(0, *produce(0, 5, key))
    traffic.add(10, *produce(1, 6, key))
    traffic.add(20, *produce(1, 7, b"A"))
    with tempfile.TemporaryDirectory() as folder:
        path = traffic.recorded(Path(folder))
        findings = Findings()
        for item in StorySource([path], lambda done: None).read(None):
            findings.add(item)
        (finding,) = (each for each in findings.found() if each.kind == "key on two partitions")
        _, *typed = shlex.split(finding.command([path]))
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            assert main(typed) == 0
    assert "It is on 2 partitions" in out.getvalue()
    assert "orders[0]@5: Produce #1" in out.getvalue()


def aborted_fetch(first: int, *keys: bytes):
    """A Fetch of a record in an aborted transaction and one in another, by read_committed."""
    found = [Record(0, 0, each, b"v") for each in keys]
    data = records.encode_batch(found, producer_id=7, producer_epoch=0, transactional=True)
    F = M.FetchResponse
    answer = fetch_response({0: data + marker(False, len(keys), 7)})
    aborted = F.AbortedTransaction(producer_id=7, first_offset=first)
    answer.responses[0].partitions[0].aborted_transactions = [aborted]
    return "Fetch", 11, fetch_request({0: first}, isolation_level=1), answer


def test_a_record_of_an_aborted_transaction_is_fetched_and_skipped(tmp_path):
    traffic = Traffic()
    traffic.add(0, *metadata(PARTITIONS))
    traffic.add(10, *produce(0, 0, b"alice"), client="shop")
    traffic.add(20, *aborted_fetch(0, b"alice"), client="billing")
    story = told(traffic, tmp_path)[-1]
    assert "fetched by billing (127.0.0.1) at 22:13:20.021 (Fetch #3)" in story
    assert (
        "its transaction was aborted (Fetch #3), so consumers with isolation.level=read_committed"
        " skip it" in story
    )


def test_a_key_is_typed_as_it_is_decoded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(making.write(tmp_path / "shop.mcap"))
    assert main(["why", path, "topic:orders", "key:ann"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == 'Key ann ("ann", JSON, schema 17): orders[0] 1 record.'
    assert any("orders[0]@41" in line for line in rest)
    assert main(["why", path, "topic:orders", "key:an"]) == 1
    assert "did you mean ann?" in capsys.readouterr().err
