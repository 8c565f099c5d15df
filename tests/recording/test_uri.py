"""URIs of recordings: what is shown of them, and what wild cards in them mean."""

from __future__ import annotations

import fnmatch
from pathlib import Path

import pytest

from kproxy.recording import RecordingError
from kproxy.recording.uri import Uri
from kproxy.tables import splits

pytest.importorskip("pyarrow")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://bucket/a@b.mcap", "s3://bucket/a@b.mcap"),
        ("s3://AK:SECRET@bucket/x.mcap", "s3://bucket/x.mcap"),
        ("s3://AK:SEC/RET@bucket/x.mcap", "s3://bucket/x.mcap"),
        ("s3://AK:SEC@RET@bucket/x.mcap", "s3://bucket/x.mcap"),
        ("hdfs://node:8020/a@b.mcap", "hdfs://node:8020/a@b.mcap"),
        ("s3://b/x?.mcap?region=us-east-1&a=S?b", "s3://b/x?.mcap?region=us-east-1&a=…"),
        (
            "abfs://captures@acct.dfs.core.windows.net/x",
            "abfs://captures@acct.dfs.core.windows.net/x",
        ),
        ("abfss://acct:PASS@captures/x?client_secret=S", "abfss://acct@captures/x?client_secret=…"),
        ("fsspec+abfs://captures:PASS@acct/x", "fsspec+abfs://captures@acct/x"),
        (
            "s3://b/x?scheme=http&endpoint_override=h:1",
            "s3://b/x?scheme=http&endpoint_override=h:1",
        ),
    ],
)
def test_of_a_uri_no_secret_is_shown_and_what_names_it_is(text: str, shown: str) -> None:
    assert str(Uri(text)) == shown


@pytest.mark.parametrize(
    "text",
    [
        "nosuch://AK:SECRET@host/x.mcap",
        "nosuch://AK:SECRET@host/x*.mcap",
        "s3://AK:SECRET@bu cket/x.mcap",
        "s3://AK:SEC/SECRET@bucket/x.mcap",
        "s3://bucket/x y.mcap?secret_key=SECRET",
        "fsspec+nosuch://AK:SECRET@host/x.mcap",
    ],
)
def test_no_error_shows_a_password(text: str) -> None:
    with pytest.raises(RecordingError, match="cannot be read") as raised:
        splits.find([text])
    assert "SECRET" not in str(raised.value)
    with pytest.raises(OSError, match=r".") as failed:
        Uri(text).open()
    assert "SECRET" not in str(failed.value)


@pytest.mark.parametrize(
    "pattern", ["?.mcap", "[ab].mcap", "[!ab].mcap", "[a-c]*", "*b*", "[^a]?*"]
)
def test_wild_cards_mean_what_they_mean_to_a_shell(pattern: str, tmp_path: Path) -> None:
    names = ["a.mcap", "b.mcap", "c.mcap", "bb.mcap", "^.mcap", "a b", "[ab].mcap"]
    for name in names:
        (tmp_path / name).touch()
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "a.mcap").touch()
    uri = Uri(f"{tmp_path.as_uri()}/{pattern}")
    assert uri.is_pattern
    assert sorted(each.name for each in uri.matches()) == sorted(fnmatch.filter(names, pattern))
    assert not Uri(f"{tmp_path.as_uri()}/a%5Bb%5D.mcap?region=x").is_pattern
