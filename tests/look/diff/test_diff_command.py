"""`kproxy diff`: exit codes, JSON, the page, folders, and recordings of two brokers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kproxy.cli import main
from kproxy.exchange import notes
from kproxy.look.lines.meaning import lines
from kproxy.recording import read
from kproxy.recording.recovery import append_notes
from kproxy.testing import record
from kproxy.wire.payloads.schemas import note_of
from tests.bed.kafka import Kafka
from tests.exchange.making import START_NS
from tests.recording.making import write
from tests.replay.test_compared import UUIDS, Did
from tests.wire.payloads import making


def recorded(path: Path, did: Did, *ignore: str) -> str:
    """A recording of what a client did; of a test that ignores something."""
    path.parent.mkdir(exist_ok=True)
    write(path, [[notes.ignored(START_NS, ignore), *did.entries]])
    return str(path)


def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    then = recorded(tmp_path / "then.mcap", Did().wrote('{"id": 1, "at": 5}'))
    now = recorded(tmp_path / "now.mcap", Did().wrote('{"id": 1, "at": 6}'))
    assert main(["diff", then, then]) == 0
    assert capsys.readouterr() == ("", "kproxy diff: no differences\n")
    assert main(["diff", then, now, "--ignore-json", "at"]) == 0
    assert main(["diff", then, now, "--compare", "groups,errors"]) == 0
    assert main(["diff", then, str(tmp_path / "none.mcap")]) == 2
    assert capsys.readouterr().err.endswith("none.mcap: does not exist\n")
    page = tmp_path / "differences.html"
    assert main(["diff", then, now, "--json", "--html", str(page)]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out) == {
        "aspect": "records",
        "subject": "topic orders, produced by app",
        "which": "value.at of key 'k'",
        "before": "5",
        "after": "6",
    }
    assert err == "kproxy diff: 1 difference: records 1\n"
    assert all(f">{text}<" in page.read_text() for text in ("5", "6", then, now))
    page.write_text("mine")
    assert main(["diff", then, now, "--html", str(page)]) == 2


def test_what_a_recordings_own_test_ignores_is_ignored(tmp_path: Path) -> None:
    then = recorded(tmp_path / "then.mcap", Did().wrote('{"at": 5}'))
    now = recorded(tmp_path / "now.mcap", Did().wrote('{"at": 6}'), "json:at")
    assert main(["diff", then, now]) == main(["diff", now, then]) == 0


def test_what_looks_like_ids_and_times_has_its_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [
        recorded(
            tmp_path / f"{day}.mcap",
            Did().wrote(f'{{"id": "{UUIDS[day]}", "at": "2026-11-0{day}T07:00:00Z", "n": 1}}'),
        )
        for day in (1, 2)
    ]
    assert main(["diff", *paths]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("kproxy diff: what looks like ids and times is new in each run: --")
    assert main(["diff", *paths, *last.split(": ")[-1].split()]) == 0


@pytest.mark.parametrize("key", [b"k", None])
def test_a_schema_that_only_one_has_is_named_where_records_differ(
    key: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ten, twelve = (f'\0\0\0\0\x11{{"amount": {amount}}}' for amount in (10, 12))
    schema = notes.schema(START_NS, note_of([17], making.SCHEMA))
    paths = [str(tmp_path / name) for name in ("with", "same", "other")]
    for path, known, values in zip(
        paths, ([schema], [], []), ((ten, twelve), (twelve, ten), (ten, ten)), strict=True
    ):
        did = Did()
        for at, value in enumerate(values):
            did.wrote(value, at=at, key=key and key + value[-3:].encode())
        write(Path(path), [[*known, *did.entries]])
    assert main(["diff", paths[0], paths[1]]) == main(["diff", paths[1], paths[0]]) == 0
    capsys.readouterr()
    assert main(["diff", paths[0], paths[2]]) == 1
    assert "schema 17 is not in the rec" in capsys.readouterr().out


def test_words_that_are_unknown_here_are_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    then = recorded(tmp_path / "then.mcap", Did().wrote('{"at": 5}'), "newer:x", "json:at")
    now = recorded(tmp_path / "now.mcap", Did().wrote('{"at": 6}'), "newer:x")
    with_note = Path(now)
    varies = [{"word": 5}, 7, {"word": "later"}]
    append_notes(with_note, lambda at: [notes.learned(at, {"event": "learned", "varies": varies})])
    assert main(["diff", then, now]) == 0
    told = capsys.readouterr().err
    for text in (told, *("\n".join(lines([Path(each)])) for each in (then, now))):
        assert text.count("not ignored: 'newer:x' cannot be ignored") == 1
    assert told.count("'later' cannot be ignored") == 1


def test_recordings_of_folders_are_compared_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, values in (("a", "xy"), ("b", "xz")):
        for name, value in zip(("same", "other"), values, strict=True):
            recorded(tmp_path / folder / f"{name}.mcap", Did().wrote(value))
    recorded(tmp_path / "b" / "more.mcap", Did())
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    assert [each for each in capsys.readouterr().out.splitlines() if each[0] != " "] == [
        "records: other: topic orders, produced by app",
        "recordings: recording more",
    ]


@pytest.mark.broker
def test_two_brokers_differ_in_the_versions_that_they_have(
    kafka_431: Kafka, kafka_392: Kafka, prefix: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    known: list[dict[str, int]] = []
    for kafka in (kafka_431, kafka_392):
        path = tmp_path / f"{kafka.version}.mcap"
        with record(kafka.address, path) as broker:
            producer = Producer({"bootstrap.servers": broker.bootstrap, "client.id": "shop"})
            for value in "abc":
                producer.produce(prefix, value, "k")
            producer.flush()
            del producer
        (answer, *_) = (each.response for each in read(path, "api:ApiVersions"))
        known.append({each.api_key: each.max_version for each in answer.api_keys})
        keys = {each.api: each.row.api_key for each in read(path)}
    assert main(["diff", *map(str, sorted(tmp_path.glob("*.mcap"))), "--json"]) == 1
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {each["aspect"] for each in found} - {"latency"} == {"apis"}
    for each in found:
        if each["aspect"] == "apis":
            key = keys[each["subject"].removeprefix("client shop, ")]
            old, new = (int(each[side].removeprefix("v")) for side in ("before", "after"))
            assert old == known[1][key] < new <= known[0][key]
