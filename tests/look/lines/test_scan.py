"""`kproxy scan`: what slipped through is found, named by its place, and never printed whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kproxy.cli import main
from kproxy.exchange import notes
from kproxy.exchange.entries import (
    CONNECTIONS,
    EVENTS,
    OPAQUE,
    RAW_SASL,
    TRUNCATED,
    Frame,
    Note,
    Side,
)
from kproxy.look.lines.scan import scan
from kproxy.proxy.redact import redact
from kproxy.wire.protocol import messages, records
from kproxy.wire.protocol.record_batch import Record
from tests.exchange.bodies import fetch_request, fetch_response, produce_request
from tests.exchange.making import START_NS, request, response, token
from tests.recording.making import write

DEMO = Path(__file__).parents[3] / "recordings" / "demo.mcap"
SECRET = "hunter2-Xy9"


def recorded(folder: Path, *entries) -> Path:
    """A recording of these entries."""
    path = folder / "some.mcap"
    write(path, [list(entries)])
    return path


def produced(record: Record, compression: str):
    data = records.encode_batch([record], compression=compression)
    return [request("Produce", 9, produce_request({0: data}), 7)]


def fetched(record: Record):
    asked = request("Fetch", 11, fetch_request({0: 5}), 7)
    data = records.encode_batch([record], base_offset=5)
    return [asked, response(asked, fetch_response({0: data}))]


def configs(name: str, value: str):
    kind = messages.AlterConfigsRequest
    entry = kind.AlterableConfig(name=name, value=value)
    body = kind(resources=[kind.AlterConfigsResource(configs=[entry])])
    return [request("AlterConfigs", 1, body, 7)]


def login_and(behind: bytes, *tags: tuple[int, bytes]):
    """A login without a token in its field, but elsewhere."""
    body = messages.SaslAuthenticateRequest(auth_bytes=b"", unknown_tags=tags)
    frame = request("SaslAuthenticate", 2, body, 7)
    data = frame.data + behind
    frame.pieces, frame.frame_bytes = [(len(data) - 4).to_bytes(4) + data[4:]], len(data)
    return [frame]


def configs_and(behind: bytes):
    (frame,) = configs("cleanup.policy", "compact")
    data = frame.data + behind
    frame.pieces, frame.frame_bytes = [(len(data) - 4).to_bytes(4) + data[4:]], len(data)
    return [frame]


def behind(frame: Frame, more: str):
    data = frame.data + more.encode()
    frame.pieces, frame.frame_bytes = [(len(data) - 4).to_bytes(4) + data[4:]], len(data)
    return [frame]


PAYLOAD = json.dumps({"user": "ann", "password": SECRET}).encode()
LOGIN = messages.SaslAuthenticateRequest(auth_bytes=f"\0ann\0{SECRET}".encode())
SLIPPED = {
    "a value": (
        produced(Record(0, 0, None, PAYLOAD), "none"),
        "records record@0 value",
        "password",
    ),
    "a compressed value": (
        produced(Record(0, 0, None, PAYLOAD), "zstd"),
        "records record@0 value",
        "password",
    ),
    "a fetched key": (fetched(Record(5, 0, PAYLOAD, b"v")), "records record@5 key", "password"),
    "a header": (
        produced(Record(0, 0, None, b"v", [("x-api-key", SECRET.encode())]), "gzip"),
        "header x-api-key",
        "password",
    ),
    "the name of a header": (
        produced(Record(0, 0, None, b"v", [(f"password={SECRET}", None)]), "gzip"),
        "record@0 name of a header",
        "password",
    ),
    "bytes behind a body": (
        behind(request("Metadata", 9, messages.MetadataRequest(), 7), f"password={SECRET}"),
        "request behind the body",
        "password",
    ),
    "a login": ([request("SaslAuthenticate", 2, LOGIN, 7)], "request", "SASL token"),
    "a login without a header": ([token(7, f"\0ann\0{SECRET}".encode())], "request", "SASL token"),
    "a login behind the body": (login_and(SECRET.encode()), "request", "SASL token"),
    "a login in an unknown field": (
        login_and(b"", (5, SECRET.encode())),
        "request",
        "SASL token",
    ),
    "bytes behind configs": (configs_and(SECRET.encode()), "request", "secret field"),
    "a config": (configs("ssl.keystore.password", SECRET), "request", "secret field"),
    "a config's text": (
        configs("my.own.thing", f"url=http://ann:{SECRET}@host/"),
        "resources[0] configs[0] value",
        "password in a URL",
    ),
    "a note": (
        [
            Note(
                CONNECTIONS,
                START_NS,
                {"event": "closed", "connection": 1, "reason": f"password={SECRET}"},
            )
        ],
        "note reason",
        "password",
    ),
}


@pytest.mark.parametrize("what", SLIPPED)
def test_what_slipped_through_is_found_and_not_repeated(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries, place, kind = SLIPPED[what]
    path = recorded(tmp_path, *entries)
    assert main(["scan", str(path)]) == 1
    out, err = capsys.readouterr()
    (line,) = out.splitlines()
    assert line.startswith(f"{path}:") and place in line and f": {kind} " in line
    assert ("exchange 7 " in line) == (what != "a note")
    assert SECRET not in out + err
    assert err == "kproxy scan: found what looks like 1 secret\n"
    assert main(["scan", "--json", str(path)]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["path"] == str(path) and found["kind"] == kind and place in found["where"]


def test_what_was_blanked_out_is_no_finding(tmp_path: Path) -> None:
    login = request("SaslAuthenticate", 2, LOGIN)
    blanked = redact(login.data, Side.CLIENT, login.api_key, login.api_version)
    assert blanked
    login.pieces = [blanked]
    raw = token(2, b"****")
    assert raw.flags & RAW_SASL
    config = configs("sasl.jaas.config", SECRET)[0]
    config.pieces = [redact(config.data, Side.CLIENT, config.api_key, 1) or b""]
    assert list(scan([recorded(tmp_path, login, raw, config)])) == []


def test_nothing_is_found_in_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scan", str(DEMO)]) == 0
    assert capsys.readouterr() == ("", "kproxy scan: no secrets found in 34 exchanges\n")
    assert main(["scan", "--json", str(DEMO)]) == 0
    assert capsys.readouterr() == ("", "")


def test_notes_of_foreign_files_are_searched_whatever_their_texts_are(tmp_path: Path) -> None:
    body = {"event": "\ud800", "\udfff": [f"password={SECRET}"]}
    (found,) = scan([recorded(tmp_path, Note(EVENTS, START_NS, body))])
    assert found.kind == "password" and SECRET not in found.line()


def test_records_that_cannot_be_read_are_searched_as_they_are(tmp_path: Path) -> None:
    data = bytearray(records.encode_batch([Record(0, 0, None, PAYLOAD)]))
    data[57:61] = b"\0\0\0\7"  # seven records, it says
    path = recorded(tmp_path, request("Produce", 9, produce_request({0: bytes(data)})))
    found, unread = scan([path])
    assert found.kind == "password" and "batch[0]" in found.where
    assert unread.kind == "not looked into" and unread.where == found.where


def as_token(frame: Frame) -> Frame:
    """The frame as kproxy recorded it before: with the header that a token has by chance."""
    frame.pieces = [len(TOKEN).to_bytes(4) + TOKEN]
    frame.api_key, frame.api_version, frame.flags = 97, 27753, OPAQUE
    frame.frame_bytes = len(TOKEN) + 4
    return frame


def cut_off(frame: Frame) -> Frame:
    frame.pieces, frame.flags = [frame.data[:-3]], TRUNCATED | OPAQUE
    return frame


def unreadable(frame: Frame) -> Frame:
    data = bytearray(records.encode_batch([Record(0, 0, None, b"v")], compression="zstd"))
    data[61:65] = b"\0\0\0\0"
    return request("Produce", 9, produce_request({0: bytes(data)}), frame.number)


TOKEN = b"\0alice\0" + SECRET.encode()
HIDING = {"a token": as_token, "a request that is cut off": cut_off, "records": unreadable}


@pytest.mark.parametrize("kind", HIDING)
def test_what_could_not_be_looked_into_is_no_absence_of_secrets(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither for `scan` nor for a page; the page is written if somebody insists."""
    good = request("Heartbeat", 4, messages.HeartbeatRequest(group_id="g"), 1)
    frames = [HIDING[kind](request("Heartbeat", 4, good_body(), number)) for number in (7, 9)]
    path = recorded(tmp_path, good, *frames)
    assert main(["scan", str(path)]) == 1
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert [line.split(" exchange ")[1].split()[0] for line in lines] == ["7", "9"]
    assert all(": not looked into: " in line for line in lines) and SECRET not in out
    assert err == "kproxy scan: could not look into exchanges 7, 9\n"
    page = tmp_path / "page.html"
    assert main(["export", str(path), "--to", str(page)]) == 1
    err = capsys.readouterr().err
    assert "kproxy export: could not look into exchanges 7, 9, so nothing is written" in err
    assert not page.exists()
    assert main(["export", str(path), "--to", str(page), "--with-secrets"]) == 0
    assert main(["export", str(path), "number:1", "--to", str(tmp_path / "other.html")]) == 0


def good_body() -> messages.HeartbeatRequest:
    return messages.HeartbeatRequest(group_id="g", member_id="someone")


def test_mistakes_are_usage_errors_and_no_recording_is_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["scan"])
    assert stopped.value.code == 2
    capsys.readouterr()
    assert main(["scan", "missing.mcap"]) == 1
    assert capsys.readouterr().err == "kproxy scan: missing.mcap: does not exist\n"


def test_the_end_of_a_torn_recording_is_not_looked_into(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cut.mcap"
    path.write_bytes(DEMO.read_bytes()[:-9])
    assert main(["scan", str(path)]) == 1
    out, err = capsys.readouterr()
    assert out.startswith(f"{path}: end of the file at byte ")
    assert ": not looked into: the file ends in the middle of its summary" in out
    assert err.splitlines()[-1] == f"kproxy scan: could not look into the end of {path}"
    assert "no secrets" not in err
    other = recorded(tmp_path, HIDING["records"](request("Heartbeat", 4, good_body(), 7)))
    assert main(["scan", str(other), str(path)]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"kproxy scan: could not look into exchange 7 and the end of {path}"
    assert main(["recover", str(path)]) == 0
    assert main(["scan", str(path)]) == 0, "the rest is gone"


@pytest.mark.parametrize(
    ("frames", "missing"), [((1,), "1 frame is"), ((3, 2), "5 frames are")], ids=["one", "some"]
)
def test_what_was_lost_is_not_said_to_be_without_secrets(
    frames: tuple[int, ...], missing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other").mkdir()
    lost = [notes.lost(each, 99, "the disk was full", START_NS, START_NS) for each in frames]
    good = request("Heartbeat", 4, good_body(), 1)
    assert main(["scan", str(recorded(tmp_path, good, *lost))]) == 0
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith(f"no secrets found in 1 exchange, but {missing} not in the recording")
    hiding = recorded(tmp_path / "other", *produced(Record(0, 0, None, PAYLOAD), "none"), *lost)
    assert main(["scan", str(hiding)]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith(f"found what looks like 1 secret, but {missing} not in the recording")
