"""What was ever recorded is readable: real recordings of every format, which are never rewritten.

    formats/N/    made by the last kproxy that writes format N (tests/bed/format_recordings.py)

confluent-kafka, aiokafka, kafka-python, java-*, kafkajs   records in every compression, with keys
    and headers, and without; read back as a group, by KIP-848 too where the client can
transactions    two that are committed and one that is aborted, read by a read_committed consumer
login           SASL/PLAIN, the password blanked out
users           the same, with the name of the user (since format 3)
faults          rules before and after the broker: errors, latency, lost, cut and half answers, and
                a request that is sent twice
large           a record of 16 KiB, which stands apart from the table of exchanges, not compressed
rotated         four files, with connections and a long poll that go on from file to file
torn            killed (SIGKILL) while a long poll, and a Produce, were pending
cut             half of the bytes of a recording

A new format gets a folder and rows of its own beside these; the rows are what the script prints. A
test here that fails means that a kproxy no longer reads what users have recorded: the reader is to
be changed, not the recording. Files of format 2 are read as what they are converted to.
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
from kproxy.exchange.words.wording import count as count_of
from kproxy.look.lines.stats_lines import stats_of
from kproxy.look.lines.stream import Stream
from kproxy.recording import verify
from kproxy.replay.load import load
from kproxy.replay.serving import modelled
from kproxy.replay.settings import Mode
from kproxy.wire.protocol import messages, records
from tests.bed import programs, replays
from tests.bed.actors import judge
from tests.bed.clients import job
from tests.bed.kafka import PLAIN_USER
from tests.recording.making import oracle
from tests.replay.making import Playing
from tests.versions import some

FORMATS = Path(__file__).parent / "formats"
UNFINISHED = {"2/cut.mcap", "2/torn.mcap", "3/cut.mcap", "3/torn.mcap"}
CLIENTS = {"aiokafka", "confluent-kafka", "java-4.4.0", "kafka-python", "kafkajs"}


@attrs.frozen
class Recorded:
    """The contents of a file, read by itself."""

    content: str
    """The `digest` of its exchanges, to the byte and nanosecond: so nobody has rewritten it."""
    exchanges: int
    records: int
    """How many a replaying broker has of it."""


RECORDED = {
    "2/aiokafka.mcap": Recorded("421ba65aa89350be", 47, 15),
    "2/confluent-kafka.mcap": Recorded("ac7f0a77796162dc", 74, 15),
    "2/cut.mcap": Recorded("aace590b83d7c28a", 27, 8),
    "2/faults.mcap": Recorded("d7b2e0ee748f8e21", 60, 8),
    "2/java-4.4.0.mcap": Recorded("e80f596dae97856c", 78, 15),
    "2/kafka-python.mcap": Recorded("1cae87df58fe98e4", 54, 15),
    "2/kafkajs.mcap": Recorded("350499bd677077c6", 29, 15),
    "2/large.mcap": Recorded("d28bd6264d01a354", 12, 1),
    "2/login.mcap": Recorded("3dfe62f8a615f957", 9, 0),
    "2/rotated-0002.mcap": Recorded("e156bb2005b1b47f", 44, 44),
    "2/rotated-0003.mcap": Recorded("5a96c21b793e458c", 10, 4),
    "2/rotated-0004.mcap": Recorded("df93c98fa460acef", 2, 0),
    "2/rotated.mcap": Recorded("68650cecbfec42fd", 50, 41),
    "2/torn.mcap": Recorded("0a8ad02d588583b7", 17, 6),
    "2/transactions.mcap": Recorded("650235f2d1c01b16", 38, 4),
    "3/aiokafka.mcap": Recorded("6feda3ff6ee65b5a", 47, 15),
    "3/confluent-kafka.mcap": Recorded("96070a6c24ad3ce2", 73, 15),
    "3/cut.mcap": Recorded("a55f37fbeca64177", 12, 6),
    "3/faults.mcap": Recorded("3b1cfd0b385b2ad7", 64, 8),
    "3/java-4.4.0.mcap": Recorded("0cb0481513aa4dc6", 78, 15),
    "3/kafka-python.mcap": Recorded("f0d8020484d61880", 52, 15),
    "3/kafkajs.mcap": Recorded("336239c2ca6a16af", 29, 15),
    "3/large.mcap": Recorded("edf8ae934f697f34", 13, 1),
    "3/login.mcap": Recorded("193e43d17bac9e1d", 9, 0),
    "3/rotated-0002.mcap": Recorded("6d2f9a9bf0679a64", 39, 37),
    "3/rotated-0003.mcap": Recorded("0f479f018c72f1d5", 7, 3),
    "3/rotated-0004.mcap": Recorded("c552fd5871121c66", 1, 0),
    "3/rotated.mcap": Recorded("54824bd362bf9dae", 40, 30),
    "3/torn.mcap": Recorded("de8540a25e03071e", 17, 7),
    "3/transactions.mcap": Recorded("aff85b20790a580b", 42, 4),
    "3/users.mcap": Recorded("77cc1a7af213169a", 9, 0),
}
LOGS = [name for name in RECORDED if not name.startswith("2/")]
"""Those that are read as they are; what has format 2 is converted (`test_format2`)."""


def digest(exchanges: Iterable[Exchange]) -> str:
    """Return a checksum of who said what, when, to the byte."""
    digested = hashlib.sha256()
    for each in sorted(exchanges, key=lambda each: each.number):
        frames = each.request_frame, each.response_frame
        about = each.number, each.connection, each.client_id, each.time_ns, each.broker_ns
        digested.update(repr((*about, *frames)).encode())
    return digested.hexdigest()[:16]


def said(
    capsys: pytest.CaptureFixture[str], command: str, path: Path, *more: str
) -> tuple[str, str]:
    """Run a command that must end well; return its output, and what it says beside."""
    code = main([command, str(path), *more])
    out, err = capsys.readouterr()
    assert code == 0, err
    return out, err


def test_all_that_is_recorded_is_read() -> None:
    assert {str(path.relative_to(FORMATS)) for path in FORMATS.glob("*/*")} == RECORDED.keys()


@pytest.mark.parametrize("name", RECORDED)
def test_every_byte_of_it_is_read(name: str) -> None:
    path, expected = FORMATS / name, RECORDED[name]
    *_, last = recording.entries(path)
    torn = isinstance(last, Note) and last.body["event"] == "torn"
    assert torn == (name in UNFINISHED)
    found = list(recording.read(path))
    assert (len(found), digest(found)) == (expected.exchanges, expected.content)
    assert not any(each.opaque for each in found)
    if not torn and name in LOGS:
        verify(path)
        assert oracle(path)


@pytest.mark.parametrize("name", some(LOGS, LOGS[::2]))
def test_commands_read_it(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path, count = FORMATS / name, RECORDED[name].exchanges
    out, err = said(capsys, "show", path, "--json")
    assert sum("event" not in json.loads(line) for line in out.splitlines()) == count
    assert ("`kproxy recover` completes it" in err) == (name in UNFINISHED)
    out, _ = said(capsys, "stats", path)
    assert out.startswith(f"{count_of(count, 'exchange')} in ")
    if name in UNFINISHED:
        assert main(["scan", str(path)]) == 1
        told = capsys.readouterr()
        assert "end of the file" in told.out and "could not look into the end" in told.err
    else:
        secrets, err = said(capsys, "scan", path)
        assert secrets == "" and f"no secrets found in {count_of(count, 'exchange')}" in err
    found = list(recording.read(path))
    keys = [f"number:{found[-1].number}", f"connection:{found[-1].connection}"]
    joining = [each for each in found if each.api in ("JoinGroup", "ConsumerGroupHeartbeat")]
    keys += [f"group:{group}" for each in joining for group in each.groups]
    for key in dict.fromkeys(keys):
        assert said(capsys, "why", path, key)[0]


@pytest.mark.parametrize("name", LOGS)
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
    else:
        assert "nothing to do" in out and path.read_bytes() == before
    assert digest(recording.read(path)) == RECORDED[name].content
    notices = said(capsys, "show", path)[1].splitlines()
    assert [each for each in notices if "of its recording: part" not in each] == []


def values_of(path: Path) -> list[bytes | None]:
    """Fetch every record that was produced or consumed from the replaying broker."""
    loaded = load(recording.read(path), modelled(Mode.STATE))
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
    return values


@pytest.mark.parametrize("name", RECORDED)
def test_it_is_a_broker(name: str) -> None:
    values = values_of(FORMATS / name)
    assert len(values) == RECORDED[name].records
    if Path(name).stem in CLIENTS:
        produced = [value for kind in job.COMPRESSIONS for _, value, _ in job.records(kind)]
        assert Counter(map(job.text, values)) == Counter(produced)


@pytest.fixture(params=sorted({Path(name).parent.name for name in RECORDED}))
def folder(request: pytest.FixtureRequest) -> Path:
    """The recordings of one format."""
    return FORMATS / request.param


def test_files_of_one_recording_are_read_together(folder: Path) -> None:
    every = list(recording.read(sorted(folder.glob("rotated*.mcap"))))
    found = {each.number: each for each in every}
    assert len(found) == len(every) > 70
    polls = [each for each in found.values() if each.api == "Fetch"]
    (poll,) = [each for each in polls if each.response_frame is not None]
    assert poll.topics == ["rotated-empty"] and poll.broker_ms > 1500
    assert [record.value for record in poll.records] == [b"at last"]
    assert all(each.request_frame and each.client_id for each in found.values())


def test_what_rules_did_is_told(folder: Path) -> None:
    path = folder / "faults.mcap"
    notes = [each.body for each in recording.entries(path) if isinstance(each, Note)]
    (rules,) = [each["rules"] for each in notes if each["event"] == "fault_rules"]
    actions = {each["name"]: each["rule"] for each in rules}
    assert actions["cut"]["phase"] == "after" and actions["half"]["truncate"] == 20
    hits = Counter(name for each in recording.read(path) for name in each.faults)
    assert hits.keys() == actions.keys() and hits["late"] == 2
    assert Counter(each["rule"] for each in notes if each["event"] == "fault").keys() == hits.keys()


def test_a_password_is_in_no_frame(folder: Path) -> None:
    logins = list(recording.read(folder / "login.mcap", "api:SaslAuthenticate"))
    assert len(logins) == 2
    password = PLAIN_USER[1].encode()
    for each in logins:
        assert each.redacted and password not in each.request_frame


def test_a_user_is_read_with_what_came_after_the_login() -> None:
    path = FORMATS / "3" / "users.mcap"
    logins = {each.connection: each for each in recording.read(path, "api:SaslAuthenticate")}
    assert len(logins) == 2
    for each in recording.read(path):
        before = each.number < logins[each.connection].number
        assert each.user == (None if before else PLAIN_USER[0])


def test_clients_read_it_from_a_replaying_broker(tmp_path: Path) -> None:
    folder = FORMATS / "3"  # `test_it_is_a_broker` has all formats
    client = programs.named("confluent-kafka")
    with replays.running(folder / "java-4.4.0.mcap", tmp_path) as replay:
        results = programs.work(client, replay.bootstrap, "java-4.4.0", ("group",))
    expected = [json.dumps(each) for kind in job.COMPRESSIONS for each in job.records(kind)]
    assert Counter(map(json.dumps, results["group"]["records"])) == Counter(expected)
    with replays.running(folder / "transactions.mcap", tmp_path) as replay:
        assert judge.values(replay.bootstrap, "transactions-ledger") == job.KEPT


def test_files_of_a_recording_stay_together_where_another_was_made_meanwhile(
    folder: Path, tmp_path: Path
) -> None:
    alone, both = tmp_path / "alone", tmp_path / "both"
    for each in (alone, both):
        each.mkdir()
        for path in folder.glob("rotated*.mcap"):
            shutil.copy(path, each)
    between_ns = recording.info(folder / "rotated-0003.mcap").start_ns - 1
    other = recording.Recording(
        both / "other.mcap", start_ns=between_ns, schema_id="x", library_version="0"
    )
    other.close()
    stories = [[each.text for each in recording.read(path)] for path in (alone, both)]
    words = [[line.replace(" rotated#", " #").split() for line in story] for story in stories]
    assert words[1] == words[0] != []
    counts = [stats_of(Stream([path])).connection_count for path in (alone, both)]
    assert counts[1] == counts[0]
