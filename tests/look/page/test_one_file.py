"""The page in one file: what it holds, what it may do, and when it is not written."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from kproxy import recording
from kproxy.cli import main
from kproxy.look.page import one_file, shown
from tests.bed import needs
from tests.look.lines.test_scan import SECRET, SLIPPED, recorded

DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"
FILES = needs.REPOSITORY / "kproxy" / "look" / "page" / "files"


class Elements(HTMLParser):
    """The elements of a page that hold texts, as another parser sees them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.scripts: dict[str | None, str] = {}
        self.policy = self.style = ""
        self._in: tuple[str, str | None] = "", None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self._in = tag, given.get("id")
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"] or ""

    def handle_data(self, data: str) -> None:
        tag, name = self._in
        if tag == "script" and data.strip():
            self.scripts[name] = data
        if tag == "style":
            self.style += data.rstrip("\n") and data

    def handle_endtag(self, tag: str) -> None:
        self._in = "", None

    def data(self, name: str) -> Any:
        """The JSON of an element."""
        return json.loads(zlib.decompress(base64.b64decode(self.scripts[name])))


def exported(to: Path, *arguments: str, source: Path = DEMO) -> Elements:
    assert main(["export", str(source), *arguments, "--to", str(to)]) == 0
    return Elements(to.read_text("utf-8"))


def test_it_holds_each_exchange_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(one_file, "PORTION_CHARACTERS", 30_000)
    path = tmp_path / "x.html"
    found = exported(path, "topic:orders")
    size = path.stat().st_size / 1024
    assert capsys.readouterr().out == f"{path}: 19 exchanges, {size:.1f} KiB\n"
    assert path.stat().st_mode & 0o777 == 0o600
    content = found.data("content")
    begins = content["portions"]
    assert len(begins) > 2 and begins[0] == 0
    portions = [found.data(f"portion-{number}") for number in range(len(begins))]
    ends = [*begins[1:], len(content["rows"])]
    assert [len(each) for each in portions] == [b - a for a, b in zip(begins, ends, strict=True)]
    rests = [rest for portion in portions for rest in portion]
    for row, rest, each in zip(
        content["rows"], rests, recording.read(DEMO, "topic:orders"), strict=True
    ):
        expected = json.loads(json.dumps(shown.whole(each)))
        assert row.pop("topics") == ["orders"] == each.topics
        assert {"row": row, **rest} == expected
    assert [each["count"] for each in content["tables"]["topic"]] == [19]


def test_its_policy_allows_its_own_script_and_style_and_nothing_else(tmp_path: Path) -> None:
    found = exported(tmp_path / "x.html", "number:1")
    rules = dict(each.strip().partition(" ")[::2] for each in found.policy.split(";"))
    for name, text in (("script-src", found.scripts[None]), ("style-src", found.style)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules.pop(name) == f"'sha256-{digest}'", name
        assert not re.search(r"<!--|</?(?:script|style)", text), "it would end, or not end"
    assert rules == {
        "default-src": "'none'", "img-src": "data:", "base-uri": "'none'", "form-action": "'none'",
    }  # fmt: skip
    page = (tmp_path / "x.html").read_text("utf-8")
    assert not re.search(
        r'(?:src|href)="(?!data:)|/static/|^(?:import|export) ', page, re.MULTILINE
    )


def test_the_modules_that_ask_and_that_hold_answer_the_same() -> None:
    export = re.compile(r"^export (?:async )?(?:const|function) (\w+)", re.MULTILINE)
    asks, holds = (
        set(export.findall((FILES / name).read_text())) for name in ("source.js", "embedded.js")
    )
    assert asks == holds and "rows" in asks


def refused(to: Path, *arguments: str, source: Path) -> int | str | None:
    """The exit code of an export that writes nothing."""
    try:
        code = main(["export", str(source), *arguments, "--to", str(to)])
    except SystemExit as error:
        code = error.code
    assert [each.suffix for each in to.parent.iterdir() if each != source] == []
    return code


@pytest.mark.parametrize("what", SLIPPED)
def test_what_a_scan_finds_is_not_written_unless_it_is_asked_for(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries, place, kind = SLIPPED[what]
    source = recorded(tmp_path, *entries)
    assert refused(tmp_path / "x.html", source=source) == main(["scan", str(source)]) == 1
    out, err = capsys.readouterr()
    finding, said = err.splitlines()[:2]
    assert finding == out.strip() and place in finding and f": {kind} " in finding
    assert said == (
        "kproxy export: found what looks like 1 secret, so nothing is written; --with-secrets"
        " writes it all the same"
    )
    assert SECRET not in out + err
    exported(tmp_path / "x.html", "--with-secrets", source=source)


def test_the_filter_in_the_title_is_searched_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = f"client_id:billing,password={SECRET}"
    assert refused(tmp_path / "x.html", wanted, source=DEMO) == 1
    err = capsys.readouterr().err
    assert "title of the page" in err and SECRET not in err and err.count("\n") == 1
    exported(tmp_path / "x.html", "--with-secrets", wanted)


def test_too_much_is_refused_in_one_line_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for wanted, name, limit, said in (
        ([], "EXCHANGES_MAX", 33, "33 exchanges"),
        (["topic:orders"], "EXCHANGES_MAX", 18, "18 exchanges"),
        ([], "PAGE_BYTES_MAX", 30 << 10, "30.0 KiB"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(one_file, name, limit)
            assert refused(tmp_path / "x.html", *wanted, source=DEMO) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"kproxy export: a page holds at most {said}: choose fewer with")
    source = recorded(tmp_path, *SLIPPED["a value"][0])
    assert refused(tmp_path / "x.jsonl", "--with-secrets", source=source) == 2
    assert "--with-secrets is for --to FILE.html" in capsys.readouterr().err
