"""Files of other versions of kproxy: what is not known is passed over, or the file is refused in a
line."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kproxy import __version__, recording
from kproxy.cli import main
from kproxy.exchange.entries import Note
from kproxy.recording import Recording, RecordingError, encoding, info, layout
from kproxy.tables import splits
from tests.recording.making import (
    SETTINGS,
    START_NS,
    conversation,
    event,
    opened,
    plains,
    request,
    rewrite,
    write,
)


def test_extras_and_notes_that_are_not_ours_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = write(tmp_path / "a.mcap", conversation())
    own = encoding._json

    def more(extras: dict[str, Any]) -> bytes:
        later = {"rtt_ns": 5, "later": [1, {"a": None}], "text": base64.b64encode(b"x").decode()}
        return json.dumps(later | json.loads(own(extras) or b"{}")).encode()

    monkeypatch.setattr(encoding, "_json", more)
    batches = conversation()
    batches[0].append(event("of a later kproxy", what={"a": []}))
    path = write(tmp_path / "b.mcap", batches)
    *_, note, _, _, _, _, _, _, _ = recording.entries(path)
    assert note.body["event"] == "of a later kproxy"
    found = [each for each in plains(recording.entries(path)) if each[-1] != note.body]
    assert found == plains(recording.entries(expected))
    rows = [each.row for each in recording.read(path)]
    assert rows == [each.row for each in recording.read(expected)]


def test_the_next_file_repeats_what_it_does_not_know_of_connections(tmp_path: Path) -> None:
    run = Recording(tmp_path / "run.mcap", **SETTINGS, rotate_bytes=1, rotate_ns=None)
    run.write([opened(3, tls={"cipher": "x", "later": [1, {"a": None}]}, quic=True)])
    more_said = {"event": "renamed", "connection": 3, "tls": {"alpn": "kafka"}, "since": 5}
    run.write([Note("connections", START_NS + 1, more_said)])
    run.write([request(1, b"x" * 30)])
    run.close()
    *_, last = run.paths
    (first, *_) = [each for each in recording.entries(last) if isinstance(each, Note)]
    tls = {"cipher": "x", "later": [1, {"a": None}], "alpn": "kafka"}
    assert first.body["event"] == "open"
    assert {key: first.body[key] for key in ("tls", "quic", "since")} == {
        "tls": tls, "quic": True, "since": 5,
    }  # fmt: skip


# ---------------------------------------------------------------- the version


def of_version(path: Path, version: str, kproxy_min: str) -> Path:
    """Make a file of a format version."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(layout, "FORMAT_VERSION", version)
        patched.setattr(layout, "KPROXY_MIN", kproxy_min)
        return write(path, conversation())


COMMANDS: dict[str, Callable[[Path, Path], list[str]]] = {
    "show": lambda path, folder: [str(path)],
    "stats": lambda path, folder: [str(path)],
    "tail": lambda path, folder: [str(path)],
    "why": lambda path, folder: [str(path), "number:1"],
    "scan": lambda path, folder: [str(path)],
    "recover": lambda path, folder: [str(path)],
    "replay": lambda path, folder: [str(path)],
    "export": lambda path, folder: [str(path), "--to", str(folder / "out.mcap")],
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("native", [True, False])
def test_every_command_says_which_kproxy_reads_a_newer_file(
    command: str, native: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = of_version(tmp_path / "x.mcap", "4", "0.7")
    if not native:
        path = rewrite(path, tmp_path / "y.mcap")
    data = path.read_bytes()
    code = main([command, *COMMANDS[command](path, tmp_path)])
    out, err = capsys.readouterr()
    assert (code, out) == (1, "")
    expected = f"{path}: has format version 4: it needs kproxy 0.7 or newer, this is {__version__}"
    assert err == f"kproxy {command}: {expected}\n"
    assert path.read_bytes() == data and not (tmp_path / "out.mcap").exists()


@pytest.mark.parametrize(
    "said_min", ["", "0.7\nrm -rf", "soon", "9" * 100, "\x1b[2J", __version__, "0.0.9"]
)
def test_a_newer_file_that_does_not_say_needs_a_newer_kproxy(said_min: str, tmp_path: Path) -> None:
    path = of_version(tmp_path / "x.mcap", "4", said_min)
    with pytest.raises(RecordingError) as raised:
        info(path)
    expected = f"has format version 4: it needs a newer kproxy than {__version__}"
    assert str(raised.value) == f"{path}: {expected}"


def test_spark_says_it_too(tmp_path: Path) -> None:
    path = of_version(tmp_path / "x.mcap", "4", "1.12.3")
    with pytest.raises(RecordingError, match=r"version 4: it needs kproxy 1\.12\.3 or newer"):
        splits.stretches(splits.find([str(path)]))
