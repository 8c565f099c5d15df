"""What was ever recorded is readable: real recordings of every format, which are never rewritten.

    formats/N/    made by the last kproxy that writes format N (tests/bed/format_recordings.py)

confluent-kafka, aiokafka, kafka-python, java-*, kafkajs   records in every compression, with keys
    and headers, and without; read back as a group, by KIP-848 too where the client can
transactions    two that are committed and one that is aborted, read by a read_committed consumer
login           SASL/PLAIN, the password blanked out
faults          rules before and after the broker: errors, latency, lost, cut and half answers, and
                a request that is sent twice
large           a record of 16 KiB, which stands apart from the table of exchanges, not compressed
rotated         four files, with connections and a long poll that go on from file to file
torn            killed (SIGKILL) while a long poll, and a Produce, were pending
cut             half of the bytes of a recording

A new format gets a folder and rows of its own beside these. A test here that fails means that a
kproxy no longer reads what users have recorded: the reader is to be changed, not the recording.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import attrs
import pytest

from kproxy import recording
from kproxy.cli import main
from kproxy.exchange.entries import Note
from kproxy.exchange.exchange import Exchange
from kproxy.protocol import messages, records
from kproxy.recording import verify
from kproxy.replay.load import load
from kproxy.replay.serving import modelled
from kproxy.replay.settings import Mode
from kproxy.view.stats_lines import stats_of
from kproxy.view.stream import Stream
from tests.bed import programs, replays
from tests.bed.actors import judge
from tests.bed.clients import job
from tests.bed.kafka import PLAIN_USER
from tests.recording.making import arrow_table, oracle
from tests.replay.making import Playing

FORMATS = Path(__file__).parent / "formats"
UNFINISHED = {"2/cut.mcap", "2/torn.mcap"}
CLIENTS = [f"2/{name}.mcap" for name in ("aiokafka", "confluent-kafka", "kafka-python", "kafkajs")]
CLIENTS.append("2/java-4.4.0.mcap")


@attrs.frozen
class Recorded:
    """The contents of a file, read by itself."""

    sha256: str
    content: str
    """The `digest` of its exchanges."""
    exchanges: int
    records: int
    """How many a replaying broker has of it."""
    apis: dict[str, int]


RECORDED = {
    "2/aiokafka.mcap": Recorded(
        "25af1403a9f5af72435dfb653ebe34dfb97513f3ecb52ff375b27fe118127158",
        "ab73752ec6fcd34a2012802a4084435e3c2913ac4d388e8ec341d03499d3ce2f",
        47, 15,
        {"ApiVersions": 15, "CreateTopics": 1, "Fetch": 2, "FindCoordinator": 1, "JoinGroup": 2,
         "LeaveGroup": 1, "ListOffsets": 1, "Metadata": 13, "OffsetCommit": 1, "OffsetFetch": 4,
         "Produce": 5, "SyncGroup": 1},
    ),
    "2/confluent-kafka.mcap": Recorded(
        "af8605bb9319c9ad04538fceb93a7496d1e6cf4cf729f5a72949a78d885984a8",
        "8be3bacaf6f1412814b81739a0f436c89d6d92e7b8a122aa7a9259c44d84a227",
        74, 15,
        {"ApiVersions": 18, "ConsumerGroupHeartbeat": 3, "CreateTopics": 1, "Fetch": 6,
         "FindCoordinator": 6, "Heartbeat": 1, "JoinGroup": 2, "LeaveGroup": 1, "ListOffsets": 4,
         "Metadata": 17, "OffsetCommit": 2, "OffsetFetch": 4, "Produce": 8, "SyncGroup": 1},
    ),
    "2/cut.mcap": Recorded(
        "ac8a7cd9534b703d931e19742b0317045a59e0f3866b76bdc35e1ed58e47bbc1",
        "aace590b83d7c28a83c2eec58f5e9a6883514bba9b91076e4a9ade5b4d015cd9",
        27, 8,
        {"ApiVersions": 5, "Fetch": 2, "FindCoordinator": 1, "InitProducerId": 1, "JoinGroup": 2,
         "ListOffsets": 1, "Metadata": 4, "OffsetCommit": 1, "OffsetFetch": 1, "Produce": 8,
         "SyncGroup": 1},
    ),
    "2/faults.mcap": Recorded(
        "997b46ca4204ebf15b84d25447ed3da73935269f39c238c7834f34a09085d36d",
        "b053a252d9278e4afa0420d2f585dfa9d24dd543dd4a4d1ff373f87e58eed386",
        60, 8,
        {"ApiVersions": 11, "Fetch": 4, "FindCoordinator": 10, "Heartbeat": 2, "InitProducerId": 1,
         "JoinGroup": 2, "LeaveGroup": 1, "ListOffsets": 1, "Metadata": 9, "OffsetCommit": 2,
         "OffsetFetch": 2, "OffsetForLeaderEpoch": 1, "Produce": 13, "SyncGroup": 1},
    ),
    "2/java-4.4.0.mcap": Recorded(
        "d44eab0fb5433ed9a2a64015a7c30bebaa37ac9198dc71229f4ccb65db631fd9",
        "f9917822c7189eebd7850b90ef55603903ee22f15b9083ea6be4ad03c0f505d1",
        78, 15,
        {"ApiVersions": 36, "ConsumerGroupHeartbeat": 3, "CreateTopics": 1, "Fetch": 6,
         "FindCoordinator": 2, "InitProducerId": 5, "JoinGroup": 2, "LeaveGroup": 1,
         "ListOffsets": 2, "Metadata": 8, "OffsetCommit": 2, "OffsetFetch": 4, "Produce": 5,
         "SyncGroup": 1},
    ),
    "2/kafka-python.mcap": Recorded(
        "c01682fd803227f72fc441e0414c462d42c22660b01b85eb21574b5ffa743c6c",
        "1cae87df58fe98e4908a85fea717aacd79d89292bcda58f6e225dfc8543abd75",
        54, 15,
        {"ApiVersions": 15, "CreateTopics": 1, "Fetch": 1, "FindCoordinator": 1,
         "InitProducerId": 5, "JoinGroup": 3, "LeaveGroup": 1, "ListOffsets": 1, "Metadata": 15,
         "OffsetCommit": 1, "OffsetFetch": 3, "Produce": 5, "SyncGroup": 2},
    ),
    "2/kafkajs.mcap": Recorded(
        "575238fe6baa461672b138044204293c18cbf65bc0c7a9f2fe64a8f5b6c7a52f",
        "350499bd677077c66dae7780bdb1cb5ec60eb98719db2c8972989c9283168efd",
        29, 15,
        {"ApiVersions": 4, "CreateTopics": 1, "Fetch": 2, "FindCoordinator": 2, "JoinGroup": 2,
         "LeaveGroup": 1, "ListOffsets": 1, "Metadata": 7, "OffsetCommit": 1, "OffsetFetch": 2,
         "Produce": 5, "SyncGroup": 1},
    ),
    "2/large.mcap": Recorded(
        "b1105081a33d574d861019bf2d2614aa0ca278e1c51d042d1f598e3a361887da",
        "d28bd6264d01a3547c2a949d5b48cf06ad98681e9cc110817adb5953d7a4ec19",
        12, 1,
        {"ApiVersions": 4, "Fetch": 2, "FindCoordinator": 2, "InitProducerId": 1, "Metadata": 2,
         "Produce": 1},
    ),
    "2/login.mcap": Recorded(
        "a786eb080be47dbfa6872f58c428423e52c2c0a3454673ebf88f441dd612f0db",
        "3dfe62f8a615f957d0e0ca8d5d2a53f96a3137ca31eee2f83245ceda0bef126d",
        9, 0,
        {"ApiVersions": 2, "CreateTopics": 1, "Metadata": 2, "SaslAuthenticate": 2,
         "SaslHandshake": 2},
    ),
    "2/rotated-0002.mcap": Recorded(
        "816e9d6b4d93415080529c4bb37ad0cd076ccfe096d7f601213448bf183143a2",
        "e156bb2005b1b47f9baf9ac5d40aeb6349eacbdb0a2e4544ee0b0b106ff8f23c",
        44, 44,
        {"Produce": 44},
    ),
    "2/rotated-0003.mcap": Recorded(
        "4c8c2855abfaa9307bdd539960c86e1580d594143b5d7ca1aaaa17f65d8955fd",
        "a8efa37a54bb7bfea4645acfa441f1a5c43abf01c927b8f25822bf0b146abcee",
        8, 4,
        {"ApiVersions": 1, "Fetch": 1, "FindCoordinator": 1, "OffsetCommit": 1, "Produce": 4},
    ),
    "2/rotated-0004.mcap": Recorded(
        "47005d1e1e219c983802eaa50ace17565d4a2ff7b22f60d908159b5a0c28d5a4",
        "df93c98fa460acef7ea01b65001c1d642feb5b92aed40332c39b40288676cf29",
        2, 0,
        {"Fetch": 1, "FindCoordinator": 1},
    ),
    "2/rotated.mcap": Recorded(
        "fde7ed1a67e327cf73cf32aecb329fa97cef7bf956ac8b670621a48f84236337",
        "8e8d69e3c140cb37b1508cd9a529780b050621c10f20c1b6111e5818c93d98e8",
        48, 41,
        {"ApiVersions": 4, "FindCoordinator": 1, "Metadata": 2, "Produce": 41},
    ),
    "2/torn.mcap": Recorded(
        "bb3f9599c613c29831e5f5dabb1001241c7227f654a21ce1daef3a6c867b2239",
        "68e835b0223890fce1cfcb74bc24b5e1badff1f4b1b46db5e04016b178b28c43",
        17, 6,
        {"ApiVersions": 5, "Fetch": 1, "FindCoordinator": 2, "Metadata": 2, "Produce": 7},
    ),
    "2/transactions.mcap": Recorded(
        "53f9e3c67d5404e4e4517c361b0e9c71591f0674696e92a1663e9879bff913ed",
        "5d82d5bd625ab66540ec2883ea2d7c7ce604a5325c6d97aefb0d1a3345558826",
        38, 4,
        {"AddOffsetsToTxn": 1, "AddPartitionsToTxn": 3, "ApiVersions": 8, "CreateTopics": 1,
         "EndTxn": 3, "Fetch": 2, "FindCoordinator": 5, "InitProducerId": 1, "Metadata": 9,
         "OffsetCommit": 1, "Produce": 3, "TxnOffsetCommit": 1},
    ),
}  # fmt: skip


def digest(exchanges: Iterable[Exchange]) -> str:
    """Return a checksum of who said what, when, to the byte."""
    digested = hashlib.sha256()
    for each in exchanges:
        frames = each.request_frame, each.response_frame
        about = each.number, each.connection, each.client_id, each.time_ns, each.broker_ns
        digested.update(repr((*about, *frames)).encode())
    return digested.hexdigest()


def said(
    capsys: pytest.CaptureFixture[str], command: str, path: Path, *more: str
) -> tuple[str, str]:
    """Run a command that must end well; return its output, and what it says beside."""
    code = main([command, str(path), *more])
    out, err = capsys.readouterr()
    assert code == 0, err
    return out, err


def test_nobody_has_rewritten_what_was_recorded() -> None:
    found = {
        str(path.relative_to(FORMATS)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in FORMATS.glob("*/*")
    }
    assert found == {name: each.sha256 for name, each in RECORDED.items()}


@pytest.mark.parametrize("name", RECORDED)
def test_every_byte_of_it_is_read(name: str) -> None:
    path, expected = FORMATS / name, RECORDED[name]
    *_, last = recording.entries(path)
    torn = isinstance(last, Note) and last.body["event"] == "torn"
    assert torn == (name in UNFINISHED)
    found = list(recording.read(path))
    assert (len(found), digest(found)) == (expected.exchanges, expected.content)
    assert not any(each.opaque for each in found)
    if not torn:
        verify(path)
        assert oracle(path)
        assert len(arrow_table(path, "/kafka/exchanges")) == expected.exchanges


@pytest.mark.parametrize("name", RECORDED)
def test_show_has_every_exchange(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = said(capsys, "show", FORMATS / name, "--json")
    objects = [json.loads(line) for line in out.splitlines()]
    exchanges = [each for each in objects if "event" not in each]
    assert len(exchanges) == RECORDED[name].exchanges
    assert Counter(each["api"] for each in exchanges) == RECORDED[name].apis
    assert ("`kproxy recover` completes it" in err) == (name in UNFINISHED)


@pytest.mark.parametrize("name", RECORDED)
def test_commands_read_it(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path, count = FORMATS / name, RECORDED[name].exchanges
    out, _ = said(capsys, "stats", path)
    assert out.startswith(f"{count} exchanges in ")
    if name in UNFINISHED:
        assert main(["scan", str(path)]) == 1
        told = capsys.readouterr()
        assert "end of the file" in told.out and "could not look into the end" in told.err
    else:
        secrets, err = said(capsys, "scan", path)
        assert secrets == "" and f"no secrets found in {count} exchanges" in err
    found = list(recording.read(path))
    keys = [f"number:{found[-1].number}", f"connection:{found[-1].connection}"]
    joining = [each for each in found if each.api in ("JoinGroup", "ConsumerGroupHeartbeat")]
    keys += [f"group:{group}" for each in joining for group in each.groups]
    for key in dict.fromkeys(keys):
        assert said(capsys, "why", path, key)[0]


@pytest.mark.parametrize("name", RECORDED)
def test_recover_completes_what_is_torn(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (FORMATS / name).read_bytes()
    path = tmp_path / "copy.mcap"
    path.write_bytes(before)
    out, _ = said(capsys, "recover", path)
    if name in UNFINISHED:
        assert "completed; " in out
        verify(path)
        assert len(arrow_table(path, "/kafka/exchanges")) == RECORDED[name].exchanges
    else:
        assert "nothing to do" in out and path.read_bytes() == before
    assert digest(recording.read(path)) == RECORDED[name].content
    notices = said(capsys, "show", path)[1].splitlines()
    assert [each for each in notices if "of its recording: part" not in each] == []


@pytest.mark.parametrize("name", RECORDED)
def test_it_is_a_broker(name: str) -> None:
    """Every record that was produced or consumed is fetched from the replaying broker."""
    loaded = load(recording.read(FORMATS / name), modelled(Mode.STATE))
    client = Playing(loaded).connect()
    request, values = messages.FetchRequest, []
    for topic, described in loaded.cluster.topics.items():
        for index, partition in described.partitions.items():
            start = partition.log.start_offset
            wanted = request.FetchPartition(
                partition=index, fetch_offset=start, partition_max_bytes=1 << 20
            )
            topics = [request.FetchTopic(topic=topic, partitions=[wanted])]
            answer = client.ask(11, request(max_wait_ms=0, topics=topics))
            (found,) = answer.responses[0].partitions
            assert found.error_code == 0
            batches = [each for each in records.batches(found.records) if not each.control]
            values += [record.value for each in batches for record in each.records]
    assert len(values) == RECORDED[name].records
    if name in CLIENTS:
        produced = [value for kind in job.COMPRESSIONS for _, value, _ in job.records(kind)]
        assert Counter(map(job.text, values)) == Counter(produced)


def test_files_of_one_recording_are_read_together(tmp_path: Path) -> None:
    names = [name for name in RECORDED if name.startswith("2/rotated")]
    for name in names:
        shutil.copy(FORMATS / name, tmp_path)
    found = {each.number: each for each in recording.read(tmp_path)}
    assert len(found) == sum(RECORDED[name].exchanges for name in names) == 102
    polls = [each for each in found.values() if each.api == "Fetch"]
    (poll,) = [each for each in polls if each.response_frame is not None]
    assert poll.topics == ["rotated-empty"] and poll.broker_ms > 2000
    assert [record.value for record in poll.records] == [b"at last"]
    assert all(each.request_frame and each.client_id for each in found.values())


def test_what_rules_did_is_told() -> None:
    path = FORMATS / "2/faults.mcap"
    notes = [each.body for each in recording.entries(path) if isinstance(each, Note)]
    (rules,) = [each["rules"] for each in notes if each["event"] == "fault_rules"]
    actions = {each["name"]: each["rule"] for each in rules}
    assert actions["cut"]["phase"] == "after" and actions["half"]["truncate"] == 20
    hits = Counter(name for each in recording.read(path) for name in each.faults)
    assert hits.keys() == actions.keys() and hits["late"] == 2
    assert Counter(each["rule"] for each in notes if each["event"] == "fault").keys() == hits.keys()


def test_a_password_is_in_no_frame() -> None:
    logins = list(recording.read(FORMATS / "2/login.mcap", "api:SaslAuthenticate"))
    assert len(logins) == 2
    password = PLAIN_USER[1].encode()
    for each in logins:
        assert each.redacted and password not in each.request_frame


def test_clients_read_it_from_a_replaying_broker(tmp_path: Path) -> None:
    client = programs.named("confluent-kafka")
    with replays.running(FORMATS / "2/java-4.4.0.mcap", tmp_path) as replay:
        results = programs.work(client, replay.bootstrap, "java-4.4.0", ("group",))
    expected = [json.dumps(each) for kind in job.COMPRESSIONS for each in job.records(kind)]
    assert Counter(map(json.dumps, results["group"]["records"])) == Counter(expected)
    with replays.running(FORMATS / "2/transactions.mcap", tmp_path) as replay:
        assert judge.values(replay.bootstrap, "transactions-ledger") == job.KEPT


def test_files_of_a_recording_stay_together_where_another_was_made_meanwhile(
    tmp_path: Path,
) -> None:
    names = [name for name in RECORDED if name.startswith("2/rotated")]
    alone, both = tmp_path / "alone", tmp_path / "both"
    for folder in (alone, both):
        folder.mkdir()
        for name in names:
            shutil.copy(FORMATS / name, folder)
    between_ns = recording.info(FORMATS / "2/rotated-0003.mcap").start_ns - 1
    other = recording.Recording(
        both / "other.mcap", start_ns=between_ns, schema_id="x", library_version="0"
    )
    other.close()
    stories = [[each.text for each in recording.read(folder)] for folder in (alone, both)]
    words = [[line.replace(" rotated#", " #").split() for line in story] for story in stories]
    assert len(words[0]) == 102 and words[1] == words[0]
    counts = [stats_of(Stream([folder])).connection_count for folder in (alone, both)]
    assert counts[1] == counts[0]
