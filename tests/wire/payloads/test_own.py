"""A user's own decoders: which is asked, and what one that fails says."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from kproxy.exchange.topic_records import TopicRecord
from kproxy.wire.payloads import own
from kproxy.wire.payloads.meaning import Decoded, Undecoded
from kproxy.wire.payloads.schemas import Schema, Schemas, note_of


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages."""
    monkeypatch.syspath_prepend(tmp_path)
    own.installed.cache_clear()
    yield tmp_path
    own.installed.cache_clear()
    sys.modules.pop("own_decoders", None)


def install(site: Path, code: str, points: str) -> None:
    (site / "own_decoders.py").write_text(code)
    (site / "own-1.dist-info").mkdir()
    (site / "own-1.dist-info" / "METADATA").write_text("Name: own\nVersion: 1\n")
    (site / "own-1.dist-info" / "entry_points.txt").write_text(f"[kproxy.decoders]\n{points}\n")


def record(value: bytes | None, schemas: Schemas | None = None) -> TopicRecord:
    headers = (("trace", b"7"),)
    return TopicRecord("orders", 0, 1, 0, b"k", value, headers, True, schemas=schemas)


def test_decoders_of_packages_are_asked_first(site: Path) -> None:
    code = """
def first(topic, part, data, headers):
    return None
def second(topic, part, data, headers):
    return [topic, part, data, list(headers)] if part == "value" else None
"""
    install(site, code, "a = own_decoders:first\nb = own_decoders:second")
    schemas = Schemas()
    schemas.note(note_of([17], Schema("JSON", "{}")))
    found = record(b"\0\0\0\0\x11{}", schemas).meaning("value")
    data = "AAAAABF7fQ=="
    assert found == Decoded(["orders", "value", data, [["trace", "Nw=="]]], "decoder b")
    assert record(b"").decoded_key == "k"
    assert record(None).decoded is None, "a tombstone is asked nobody about"


BROKEN = """
import datetime, decimal
def raises(topic, part, data, headers):
    raise KeyError("x" * 500 + "\\n")
def returns(topic, part, data, headers):
    return {"it": object()}
def grows(topic, part, data, headers):
    return ["x" * 1_000_000] * 1_000_000
"""


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("own_decoders:raises", "decoder own_decoders:raises: KeyError: 'xxx"),
        ("own_decoders:returns", "decoder own_decoders:returns: a object is no value of JSON"),
        ("own_decoders:grows", "decoder own_decoders:grows: it is too large"),
        ("own_decoders:nope", "decoder own_decoders:nope cannot be imported: AttributeError"),
        ("no_such_module:f", "decoder no_such_module:f cannot be imported: ModuleNotFoundError"),
        ("nothing", "decoder nothing cannot be imported: ValueError: write module:function"),
    ],
)
def test_one_that_fails_says_so_beside_the_bytes(site: Path, name: str, why: str) -> None:
    install(site, BROKEN, "")
    one = record(b"abc", Schemas(own=[own.named(name)]))
    found = one.meaning("value")
    assert isinstance(found, Undecoded)
    assert found.why.startswith(why)
    assert len(found.why) < 200 and "\n" not in found.why
    assert one.decoded == "abc"


def test_its_values_become_plain() -> None:
    day, time = datetime.date(2026, 3, 1), datetime.datetime(2026, 3, 1, 9, tzinfo=datetime.UTC)
    value = {1: (Decimal("2.50"), day, time), None: {b"\xff"}, "nan": float("nan")}
    plain: dict[str, Any] = {
        "1": ["2.50", "2026-03-01", "2026-03-01T09:00:00+00:00"],
        "null": ["/w=="],
        "nan": "NaN",
    }
    decoder = own.OwnDecoder("mine", lambda: lambda *about: value)
    assert record(b"abc", Schemas(own=[decoder])).decoded == plain
