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
from tests.recording.making import oracle
from tests.replay.making import Playing

FORMATS = Path(__file__).parent / "formats"
UNFINISHED = {"3/cut.mcap", "3/torn.mcap"}
CLIENTS = {"aiokafka", "confluent-kafka", "java-4.4.0", "kafka-python", "kafkajs"}


@attrs.frozen
class Recorded:
    """The contents of a file, read by itself."""

    sha256: str
    content: str
    """The `digest` of its exchanges."""
    exchanges: int
    records: int
    """How many a replaying broker has of it."""


RECORDED = {
    "2/aiokafka.mcap": Recorded(
        "25af1403a9f5af72435dfb653ebe34dfb97513f3ecb52ff375b27fe118127158",
        "421ba65aa89350bec495a26f010bbe7c5e3da73b1c8eef0121dd4edd186cc44f",
        47, 15,
    ),
    "2/confluent-kafka.mcap": Recorded(
        "af8605bb9319c9ad04538fceb93a7496d1e6cf4cf729f5a72949a78d885984a8",
        "ac7f0a77796162dcf5e964902c91bd6799b94da32a81b2e2d96331d3adad5c9a",
        74, 15,
    ),
    "2/cut.mcap": Recorded(
        "ac8a7cd9534b703d931e19742b0317045a59e0f3866b76bdc35e1ed58e47bbc1",
        "aace590b83d7c28a83c2eec58f5e9a6883514bba9b91076e4a9ade5b4d015cd9",
        27, 8,
    ),
    "2/faults.mcap": Recorded(
        "997b46ca4204ebf15b84d25447ed3da73935269f39c238c7834f34a09085d36d",
        "d7b2e0ee748f8e2101ac699d5863f0422d476d45e9894ea461f9097ec1449627",
        60, 8,
    ),
    "2/java-4.4.0.mcap": Recorded(
        "d44eab0fb5433ed9a2a64015a7c30bebaa37ac9198dc71229f4ccb65db631fd9",
        "e80f596dae97856c9ca7f14d372f60cf0184e77c6c90bdcdbb6f459190e6a3a3",
        78, 15,
    ),
    "2/kafka-python.mcap": Recorded(
        "c01682fd803227f72fc441e0414c462d42c22660b01b85eb21574b5ffa743c6c",
        "1cae87df58fe98e4908a85fea717aacd79d89292bcda58f6e225dfc8543abd75",
        54, 15,
    ),
    "2/kafkajs.mcap": Recorded(
        "575238fe6baa461672b138044204293c18cbf65bc0c7a9f2fe64a8f5b6c7a52f",
        "350499bd677077c66dae7780bdb1cb5ec60eb98719db2c8972989c9283168efd",
        29, 15,
    ),
    "2/large.mcap": Recorded(
        "b1105081a33d574d861019bf2d2614aa0ca278e1c51d042d1f598e3a361887da",
        "d28bd6264d01a3547c2a949d5b48cf06ad98681e9cc110817adb5953d7a4ec19",
        12, 1,
    ),
    "2/login.mcap": Recorded(
        "a786eb080be47dbfa6872f58c428423e52c2c0a3454673ebf88f441dd612f0db",
        "3dfe62f8a615f957d0e0ca8d5d2a53f96a3137ca31eee2f83245ceda0bef126d",
        9, 0,
    ),
    "2/rotated-0002.mcap": Recorded(
        "816e9d6b4d93415080529c4bb37ad0cd076ccfe096d7f601213448bf183143a2",
        "e156bb2005b1b47f9baf9ac5d40aeb6349eacbdb0a2e4544ee0b0b106ff8f23c",
        44, 44,
    ),
    "2/rotated-0003.mcap": Recorded(
        "4c8c2855abfaa9307bdd539960c86e1580d594143b5d7ca1aaaa17f65d8955fd",
        "5a96c21b793e458c08d74012cfdf07cd823a242612d35f27885651e2e6fbefe1",
        10, 4,
    ),
    "2/rotated-0004.mcap": Recorded(
        "47005d1e1e219c983802eaa50ace17565d4a2ff7b22f60d908159b5a0c28d5a4",
        "df93c98fa460acef7ea01b65001c1d642feb5b92aed40332c39b40288676cf29",
        2, 0,
    ),
    "2/rotated.mcap": Recorded(
        "fde7ed1a67e327cf73cf32aecb329fa97cef7bf956ac8b670621a48f84236337",
        "68650cecbfec42fd0fbda725a7da55f9c6fcbebcebd6d46f1f6a665f63eebd12",
        50, 41,
    ),
    "2/torn.mcap": Recorded(
        "bb3f9599c613c29831e5f5dabb1001241c7227f654a21ce1daef3a6c867b2239",
        "0a8ad02d588583b7a04e7d924b3d134f5a2c44ad0848698ccdefdf223f5cdac4",
        17, 6,
    ),
    "2/transactions.mcap": Recorded(
        "53f9e3c67d5404e4e4517c361b0e9c71591f0674696e92a1663e9879bff913ed",
        "650235f2d1c01b1650cf36423f386f215315acc62360883ddbc4a6234cfa93f9",
        38, 4,
    ),
    "3/aiokafka.mcap": Recorded(
        "5072e0ab9cf0b2cd1c803a282cf7ff6d2c7b237d7551284218fdfaf5fe1153e1",
        "d65c8f8ba78db9b2fc5d926aa5edaf5e0969b38781879918cbc3ecac5e855283",
        47, 15,
    ),
    "3/confluent-kafka.mcap": Recorded(
        "8d07305415f7fed606b2f467b15cdb918c765b6001cdd7c61fe1e340b92ff9c8",
        "1d975e188ef5220ac0e198dc8bc854e53170cdaa84dff3d39045078f782368bb",
        72, 15,
    ),
    "3/cut.mcap": Recorded(
        "6180805d217ef45df10a6bda0565d07a456ab9752b36a0578fd0a1d71d1980a4",
        "74a37a4bfb5ea7f894853385a283362078e0a0e876425aaf8dbcd1da7cfb8bea",
        16, 8,
    ),
    "3/faults.mcap": Recorded(
        "f459f8175f7f355a9224e3f727bdc39b5381e9bb5823f53d0588c8b6ec411b4a",
        "5a64e29d7c6f19abebac83b24514f193c83d72d96c01a84e9f6f7aecd98125bb",
        66, 8,
    ),
    "3/java-4.4.0.mcap": Recorded(
        "4314f134c3534a4980399a5e694198c4f6928b7b88fbd41484e05f801f28f056",
        "b4763449269091d784e65edd9086f09d8c37e7135d8466c458077aca5562a7d8",
        79, 15,
    ),
    "3/kafka-python.mcap": Recorded(
        "ce60d310b1fddea7a9d33dc6aa45e54bf99f76ca793527f481b6f51f8b818df0",
        "79014b39b03f533c0ddec0d81860ce20b605f89d8090ee113c2a8f78010a9d8e",
        54, 15,
    ),
    "3/kafkajs.mcap": Recorded(
        "e7e5e05f24c0c09d3707882242cf16100d9676d303419c6cf615fed441a5fb0a",
        "72ec7f436412092347cf163fc48517b88741eff1adcb1c6260588d377bb84431",
        29, 15,
    ),
    "3/large.mcap": Recorded(
        "b8929978614ac6f0b4ff248d59402d7da1d668b78a14b52650dbd2f6edf236b9",
        "9ff6f814a1eb3136d38e6a0856e18c41a5920364697c53d7ff9756cbdc3eccc0",
        12, 1,
    ),
    "3/login.mcap": Recorded(
        "27ae11de5f93e5cf053194fd0a025e65e6ebebb0dbdb0fa53ff1a89b36dc1c45",
        "706a0d54cecaf80e8e9331efe06303b7ba28daa394b605f88b5aa1f55c8bf966",
        9, 0,
    ),
    "3/rotated-0002.mcap": Recorded(
        "458486eea9c7328b08957191c27ad3f943c96508add52217cdaf280d56fa0416",
        "a280f66af8cc0a4df27bbbf6a22e20f68d71377a05a63f9af6f97ea9292edbe3",
        45, 43,
    ),
    "3/rotated-0003.mcap": Recorded(
        "10e3a0b9452926301509616bff0ae815ba9093c389a2564ad135624cfcf9e42f",
        "cc36ebbe3331705b30cfdcfc3b3d756a8259c3abfedca04b95188f7dbf9db37e",
        11, 4,
    ),
    "3/rotated-0004.mcap": Recorded(
        "62af5c1518b54e060a2f761474e39d4ec5cbc2feb89efcb271e75cc97d615012",
        "ab039d3c4e14c95af4b071bb31e5445d826026fe530501d6f9f1638c16f6b1d1",
        3, 0,
    ),
    "3/rotated.mcap": Recorded(
        "eed9446421b1c70d3613331cb342831189760dc8fd9b5a6d60530c0d2639da5d",
        "a8d100e6db84cc4235226d5a33a23c2dd17f70109a61b16128b76d6bc83ca918",
        49, 40,
    ),
    "3/torn.mcap": Recorded(
        "4314f95e20972a20ea1860e61756b9d470ef24e840612f6ccbf061b083ca9ea8",
        "518f50ec4e06f2e08964e7f082b8f978c69c1e846a97e2d4a0e279b27f3cff37",
        16, 6,
    ),
    "3/transactions.mcap": Recorded(
        "f6cb04c1afffa1802aa2057bb169be5306ee87fc75dd58b777f41c33a24fbf42",
        "e44b2c6a05ef2c97e752e06785e4fad068dc5120490761cdc369913df4de6d94",
        42, 4,
    ),
}  # fmt: skip
LOGS = [name for name in RECORDED if not name.startswith("2/")]
"""Those that are read as they are; what has format 2 is converted (`test_format2`)."""


def digest(exchanges: Iterable[Exchange]) -> str:
    """Return a checksum of who said what, when, to the byte."""
    digested = hashlib.sha256()
    for each in sorted(exchanges, key=lambda each: each.number):
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
    if not torn and name in LOGS:
        verify(path)
        assert oracle(path)


@pytest.mark.parametrize("name", LOGS)
def test_show_has_every_exchange(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = said(capsys, "show", FORMATS / name, "--json")
    objects = [json.loads(line) for line in out.splitlines()]
    exchanges = [each for each in objects if "event" not in each]
    assert len(exchanges) == RECORDED[name].exchanges
    assert ("`kproxy recover` completes it" in err) == (name in UNFINISHED)


@pytest.mark.parametrize("name", LOGS)
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
    assert len(found) == len(every) > 90
    polls = [each for each in found.values() if each.api == "Fetch"]
    (poll,) = [each for each in polls if each.response_frame is not None]
    assert poll.topics == ["rotated-empty"] and poll.broker_ms > 2000
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


def test_clients_read_it_from_a_replaying_broker(folder: Path, tmp_path: Path) -> None:
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
