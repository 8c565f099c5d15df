"""A replay knows the schemas of its recording: it says in which part of a record clients differ,
and leaves parts of decoded values out of the comparison."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from kproxy.replay import opening
from kproxy.replay.ignore_words import parse
from kproxy.replay.settings import ReplaySettings
from kproxy.wire.payloads.own import OwnDecoder
from kproxy.wire.payloads.schemas import note_of
from tests.replay.making import Playing, Recorded, batch
from tests.wire.payloads import making

ID = "\0\0\0\0\x11"
UNKNOWN = "\0\0\0\0\x63"


def findings(
    was: str,
    now: str,
    *ignored: str,
    key: bytes = b"k",
    decoders: Sequence[OwnDecoder] | None = None,
) -> list[str]:
    """What is told of a client that produces another value than the recorded one."""
    loaded = Recorded().metadata().produced(batch(was, key=key)).loaded
    for schema_id in (17, 18):
        loaded.note_schema(note_of([schema_id], making.SCHEMA))
    left_out = parse(f"json:{each}" for each in ignored)
    settings = ReplaySettings(ignored=left_out, decoders=decoders)
    playing = Playing(loaded, settings)
    playing.connect().produce(batch(now, key=key))
    return [each.text.partition(" has ")[2].rpartition(" (")[0] for each in playing.report.findings]


@pytest.mark.parametrize(
    ("was", "now", "text"),
    [
        (
            f'{ID}{{"amount": 12, "id": 1}}',
            f'{ID}{{"amount": 13, "id": 1}}',
            "amount 13, recorded 12",
        ),
        (f"{ID}1", f"{ID}2", "value 2, recorded 1"),
        (f"{ID}1", "\0\0\0\0\x121", "value JSON, schema 18, recorded JSON, schema 17"),
        (
            f"{ID}1",
            f"{UNKNOWN}1",
            (
                r"value '\x00\x00\x00\x00c1' [schema 99 is not in the recording]"
                r", recorded '\x00\x00\x00\x00\x111'"
            ),
        ),
    ],
)
def test_the_part_that_differs_is_named(was: str, now: str, text: str) -> None:
    assert findings(was, now) == [text]


def test_parts_of_decoded_values_are_left_out() -> None:
    was = f'{ID}{{"at": 5, "items": [{{"id": 1}}]}}'
    assert findings(was, f'{ID}{{"items": [{{"id": 1}}], "at": 6}}', "at") == []
    assert findings(was, f'{ID}{{"items": [{{"id": 7}}], "at": 5}}', "items[*].id") == []
    assert findings(was, f'{ID}{{"items": [{{"id": 2}}], "at": 6}}', "at") == [
        "items[0].id 2, recorded 1"
    ]


def test_a_decoder_of_the_project_tells_the_part_and_what_is_left_out() -> None:
    def decode(topic: str, part: str, data: bytes, headers: object) -> object:
        customer, at = data.decode().split() if part == "value" else ("", "")
        return {"customer": customer, "at": at} if customer else None

    decoders = [OwnDecoder("decoder mine", lambda: decode)]
    assert findings("ann 1", "ben 1", decoders=decoders) == ['customer "ben", recorded "ann"']
    assert findings("ann 1", "ann 2", "at", decoders=decoders) == []


def test_a_value_of_an_unknown_schema_is_compared_as_bytes() -> None:
    was = f'{UNKNOWN}{{"at": 5}}'
    assert findings(was, was, "at") == []
    (text,) = findings(was, f'{UNKNOWN}{{"at": 6}}', "at")
    assert "schema 99 is not in the recording" in text


def test_schemas_are_in_the_index_of_a_large_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "INDEXED_BYTES_MIN", 0)
    path = making.write(tmp_path / "shop.mcap")
    opened = [
        opening.open_recorded([path], opening.Wanted(), folder=tmp_path / "cache") for _ in range(2)
    ]
    assert list((tmp_path / "cache").iterdir())
    assert [each.loaded.schemas.find(17) for each in opened] == [making.SCHEMA, making.SCHEMA]
