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

FORMATS = Path(__file__).parent / "formats"
UNFINISHED = {"2/cut.mcap", "2/torn.mcap", "3/cut.mcap", "3/torn.mcap"}
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
        "900d2d6456ffc71612af3accc77219304703e8cd768ddc475608a9a4c12763b4",
        "6feda3ff6ee65b5a35df2553c48bdb49470e6d0fbb9dcaae9a18242ce7be9291",
        47, 15,
    ),
    "3/confluent-kafka.mcap": Recorded(
        "c71498ecf43d09343f10b99b9ffb10fccafcedd29b07e0af4ac333ae5dc3808d",
        "96070a6c24ad3ce29bb22ffaa0dd00ded48bf060de88e0588a8160904788472f",
        73, 15,
    ),
    "3/cut.mcap": Recorded(
        "5654da865709d0ce7b849ae9904c70b14c7684d3ed9ee0073b290478042db5c3",
        "a55f37fbeca64177d5920dc8c999b9ccf6da233d26f89ab636731300c371727a",
        12, 6,
    ),
    "3/faults.mcap": Recorded(
        "390668138367c30eda4a6ba53f152c75f0ac03f85ce31f93eea7d8847ba2619e",
        "3b1cfd0b385b2ad70ef893278e9a34bab2d412ed9ddae2c5a5b3b60581e6bb2f",
        64, 8,
    ),
    "3/java-4.4.0.mcap": Recorded(
        "d3f7c0435bfacade355eb3aaeb32cb33de0af8238e0b3397b146d81d9d14ec9c",
        "0cb0481513aa4dc60424d58d763ccbc0ec8829cfab68813f0177151473b0549b",
        78, 15,
    ),
    "3/kafka-python.mcap": Recorded(
        "1e9e784292c4676da498e2dcf9d6d804e5a47ab0f2190141dee4c9e4193905dc",
        "f0d8020484d61880a879db217a853c53756df90d7de25c48affa1b6e5b36c212",
        52, 15,
    ),
    "3/kafkajs.mcap": Recorded(
        "5425928079edafe17e3134bdcb9fe9f8835d296bb1d9a16659faf9f74147271c",
        "336239c2ca6a16af048dfeef916c55d0b08cce200fc57a477592cc14f2243f3e",
        29, 15,
    ),
    "3/large.mcap": Recorded(
        "6181020701af8ba665e34199c20689829a063de873509b6b2f51861a453963fe",
        "edf8ae934f697f3481157adf874f61ba4d943ba15146fa7d5e365772d19be6ac",
        13, 1,
    ),
    "3/login.mcap": Recorded(
        "1e35ff663af0304875dab7f44be65d5ad5d9a53ffc32e6721d5c6846bfb0cec3",
        "193e43d17bac9e1d1308bd93d9875f717d31f2163770b9e727941e0c7a4ecd25",
        9, 0,
    ),
    "3/rotated-0002.mcap": Recorded(
        "66c832815871542117f169eaf0b8bd8e97c92480575ebed2de2c0ffdb562ee34",
        "6d2f9a9bf0679a649c2bda8cc3c5d70aecaedd750ac722d522cf9621f1deb5fa",
        39, 37,
    ),
    "3/rotated-0003.mcap": Recorded(
        "f57f4212a825362b03928b2d5da3077e00a3207648e7e7f0026e29702b6e777b",
        "0f479f018c72f1d5ac76764c887581c8dd6e32ab161332d1a5e73a32e41193cc",
        7, 3,
    ),
    "3/rotated-0004.mcap": Recorded(
        "89fd9e5e4023f45e3620395190a14d9f2c45d3c42ec7f8aeab66cc8e5e98b61b",
        "c552fd5871121c661d10a05991b1706bdde070e50b463770f5dfd678b6ba2cfa",
        1, 0,
    ),
    "3/rotated.mcap": Recorded(
        "04b3b578f34cccc4564487fddb0f1c1e0beb10b5d942fbb3403d55ba4e86109f",
        "54824bd362bf9dae2488d4bf3624e5d547ec1e0ecea3101bff036e33d0972c00",
        40, 30,
    ),
    "3/torn.mcap": Recorded(
        "94510770a77b142f36d218046d7cbc86073cda7102e22d30ebec1adca35d318c",
        "de8540a25e03071eb48954eea308c2c6d9972efd6ecdd44d273a20a95492f37c",
        17, 7,
    ),
    "3/transactions.mcap": Recorded(
        "7d9bb7874483d994856eaacfa6e4bfb82d8aeeb01e9443d89c731b0f244ce594",
        "aff85b20790a580b906165cf1a0e201ba8c8f0d969465e8f9ace325287bc6442",
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
