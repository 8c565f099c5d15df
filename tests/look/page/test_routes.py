"""The page over HTTP: who gets in, and what is answered."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs
import pytest
import trio

from kproxy import recording
from kproxy.cli import main
from kproxy.exchange.counts import Tally
from kproxy.exchange.words import line
from kproxy.look.lines.stats import Stats
from kproxy.look.lines.stream import Stream
from kproxy.look.page import routes, shown, work
from kproxy.look.page.found import MatchingExchanges
from kproxy.look.page.routes import Pages
from kproxy.net.browser_access import BrowserAccess
from kproxy.net.control import ControlServer
from kproxy.wire.protocol import messages
from tests.bed import needs
from tests.bed.proxies import KPROXY
from tests.exchange import bodies
from tests.net.test_control import Visitors, asked

DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"
FILES = needs.REPOSITORY / "kproxy" / "look" / "page" / "files"


class Page(Visitors):
    """A server of the page, and a browser with its cookie."""

    cookie = ""

    async def get(self, target: str, cookie: str | None = None, **headers: str) -> Any:
        """What a GET is answered with."""
        given = {"Host": "127.0.0.1:9", "Cookie": self.cookie if cookie is None else cookie}
        lines = "".join(f"{name}: {value}\r\n" for name, value in (given | headers).items())
        return await asked(self, f"GET {target} HTTP/1.1\r\n{lines}\r\n".encode())

    async def found(self, target: str) -> Any:
        """The JSON of a GET."""
        status, _, body = await self.get(target)
        assert status == 200, body
        return json.loads(body)


@contextlib.asynccontextmanager
async def serving(paths: Sequence[Path] = (DEMO,)) -> AsyncIterator[Page]:
    """The page of recordings: those of the demo."""
    page, access = Page(), BrowserAccess(9)
    async with trio.open_nursery() as nursery:
        answers = Pages(paths, nursery, page.logs.append).routes()
        server = ControlServer(answers, "127.0.0.1", None, page.logs.append, access)
        nursery.start_soon(server.serve, [page])
        status, headers, _ = await page.get(access.path)
        assert (status, headers[b"location"]) == (303, b"/")
        page.cookie = headers[b"set-cookie"].decode().partition(";")[0]
        yield page
        nursery.cancel_scope.cancel()


async def test_the_code_works_once_and_nothing_without_a_cookie() -> None:
    async with serving() as page:
        name = page.cookie.partition("=")[0]
        for cookie in ("", f"{name}=", f"{name}=no", "kproxy-10=" + page.cookie[9:]):
            for target in ("/", "/rows?begin=0&end=9", "/static/main.js", "/exchange?name=1"):
                status, _, body = await page.get(target, cookie)
                assert (status, b"error" in body) == (401, True)
        status, _, _ = await page.get("/", f"other=1; {page.cookie}; more=2")
        assert status == 200
        status, _, _ = await page.get("/", Origin="http://evil.example")
        assert status == 403


async def test_an_address_lets_one_browser_in_and_then_there_is_another() -> None:
    next_paths: list[str] = []
    page, access = Page(), BrowserAccess(9, next_paths.append)
    first = access.path
    async with trio.open_nursery() as nursery:
        server = ControlServer({}, "127.0.0.1", None, page.logs.append, access)
        nursery.start_soon(server.serve, [page])
        for line, headers, wanted in (
            (f"HEAD {first}", "Host: 127.0.0.1:9", 405),
            (f"POST {first}", "Host: 127.0.0.1:9", 405),
            (f"OPTIONS {first}", "Host: 127.0.0.1:9", 405),
            (f"GET {first}", "Host: evil.example:9", 403),
            (f"GET {first}", "Host: 127.0.0.1:9\r\nOrigin: http://evil.example", 403),
        ):
            request = f"{line} HTTP/1.1\r\n{headers}\r\n\r\n".encode()
            status, _, _ = await asked(page, request, line.partition(" ")[0].encode())
            assert status == wanted, (line, headers)
        assert not next_paths, "these have not used it up"
        status, headers, _ = await page.get(first)
        assert status == 303 and b"SameSite" in headers[b"set-cookie"]
        assert headers[b"cache-control"] == b"no-store"
        for path, said in ((first, b"was used before"), ("/enter/other", b"is not of this")):
            status, headers, body = await page.get(path)
            assert (status, headers[b"content-type"]) == (403, b"text/plain; charset=utf-8")
            assert said in body and b"the last one that kproxy has printed" in body
        (second,) = next_paths
        assert second != first and (await page.get(second))[0] == 303
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("full", [False, True])
def test_an_address_that_nobody_gets_is_said_in_one_line(full: bool) -> None:
    read, write = os.pipe()
    os.close(read)
    with open("/dev/full" if full else os.devnull, "wb") as out:
        done = subprocess.run(
            [KPROXY, "web", DEMO],
            stdout=out if full else write,
            stderr=subprocess.PIPE,
            text=True,
            timeout=30,
        )
    os.close(write)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert ("cannot write the output" if full else "nobody reads the address") in done.stderr


@pytest.mark.parametrize("gone", [False, True], ids=["stopped", "gone"])
def test_a_terminal_that_takes_no_text_holds_no_browser_up(gone: bool) -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write, b"-" * 4096)
    os.set_blocking(write, True)
    command = [KPROXY, "web", str(DEMO)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=write, text=True) as process:
        os.close(write)
        if gone:
            os.close(read)
        assert process.stdout
        try:
            host, _, path = process.stdout.readline().strip()[len("http://") :].partition("/")
            cookie = ""
            for target, wanted in ((f"/{path}", 303), ("/live", 200), ("/keys", 200)):
                connection = http.client.HTTPConnection(host, timeout=10)
                connection.request("GET", target, headers={"Cookie": cookie})
                answer = connection.getresponse()
                assert answer.status == wanted
                cookie = answer.headers.get("Set-Cookie", cookie).partition(";")[0]
                connection.close()
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
        finally:
            process.kill()
    if not gone:
        os.close(read)


async def test_rows_are_the_exchanges_and_a_mistake_is_said_where_it_stands() -> None:
    async with serving() as page:
        found: Any = {"done": False}
        with trio.fail_after(15):
            while not found["done"]:
                found = await page.found("/rows?filter=api%3AFetch&begin=0&end=500")
        expected = [each.name for each in recording.read(DEMO, "api:Fetch")]
        assert [row["name"] for row in found["rows"]] == expected
        assert found["count"] == len(expected) > 2
        some = await page.found("/rows?filter=api%3AFetch&begin=1&end=2")
        assert some["rows"] == found["rows"][1:2]
        for place, each in enumerate(recording.read(DEMO, "api:Fetch")):
            row = found["rows"][place]
            assert f" {row['took'][1]} {row['added']}ms " in line.text(each)
            words = "".join([row["request"], *(text for _, text in row["response"])])
            assert line.text(each).endswith(words)
            some = await page.found(f"/rows?filter=api%3AFetch&begin=0&end=0&name=%23{each.number}")
            assert some["place"] == place
        some = await page.found("/rows?filter=api%3AFetch&begin=0&end=0&name=%231")
        assert some["place"] is None
        over = await page.found("/overview?filter=api%3AFetch")
        assert sum(each["Fetch"] for each in over["counts"].values()) == len(expected)
        status, _, body = await page.get("/rows?filter=api%3AFetch+foo%3A1&begin=0&end=1")
        assert (status, json.loads(body)["key"]) == (422, "11")
        for wrong in ("begin=x&end=1", "begin=-1&end=1", "begin=0", f"begin={'9' * 20}&end=1"):
            status, _, body = await page.get(f"/rows?{wrong}")
            assert status == 422, body


async def test_where_nothing_is_recorded_every_answer_says_so() -> None:
    async with serving([]) as page:
        for target in (
            "rows?begin=0&end=1", "findings", "overview", "lanes", "statistics", "exchange?name=1",
            "records?topic=a", "story?of=topic:a",
        ):  # fmt: skip
            status, _, body = await page.get(f"/{target}")
            assert (status, b"records nothing" in body) == (410, True), target


@pytest.mark.parametrize(
    "of", ["connection:abc", "number:1%234x", "connection:\u0661", "nothing:1"]
)
async def test_a_story_that_cannot_be_is_a_mistake_of_who_asks(of: str) -> None:
    async with serving() as page:
        status, _, body = await page.get(f"/story?of={quote(of, safe='%:')}")
        assert status == 422 and b"invalid literal" not in body


async def test_a_defect_is_said_and_the_server_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **named: Any) -> Any:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(routes, "stats_of", broken)
    monkeypatch.setattr(MatchingExchanges, "read", broken)
    async with serving() as page:
        status, body = 200, b""
        with trio.fail_after(15):
            while status == 200:
                status, _, body = await page.get("/statistics")
        assert status == 500 and b"statistics failed by a defect in kproxy" in body
        found = await page.found("/rows?begin=0&end=1&known=0")
        assert "the search failed by a defect in kproxy" in found["error"]
        assert len(page.logs) == 2


async def test_a_work_that_nobody_asks_for_ends_and_one_that_is_asked_for_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, ended = threading.Event(), threading.Event()

    def endless(stream: Stream) -> Any:
        begun.set()
        try:
            while not stop.wait(0.01):
                stream.on_progress(0)
        finally:
            ended.set()

    stop = threading.Event()
    monkeypatch.setattr(routes, "stats_of", endless)
    monkeypatch.setattr(work, "RESULTS_KEPT", 1)
    try:
        async with serving() as page:
            assert await page.found("/statistics") == {"done": False}
            assert await trio.to_thread.run_sync(begun.wait, 15)
            status, _, body = await page.get("/story?of=topic:orders")
            assert (status, b"ask later" in body) == (503, True)
            assert (await page.found("/rows?begin=0&end=1&known=0"))["count"] > 0
            monkeypatch.setattr(work, "ASKED_SECONDS", 0)
            assert await trio.to_thread.run_sync(ended.wait, 15)
            monkeypatch.undo()
            with trio.fail_after(15):
                while not (await page.found("/story?of=topic:orders"))["done"]:
                    await trio.sleep(0.02)
    finally:
        stop.set()


async def test_as_many_filters_as_are_kept_are_asked_for_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(work, "FILTERS_KEPT", 1)
    monkeypatch.setattr(MatchingExchanges, "read", lambda found, turn: None)  # it is never done
    async with serving() as page:
        assert not (await page.found("/rows?begin=0&end=1"))["done"]
        status, _, body = await page.get("/rows?filter=api:Fetch&begin=0&end=1")
        assert (status, b"close a page" in body) == (503, True)
        monkeypatch.setattr(work, "ASKED_SECONDS", 0)
        await page.found("/rows?filter=api:Fetch&begin=0&end=1")


async def test_a_search_that_failed_begins_again_with_what_is_there_now(tmp_path: Path) -> None:
    path, whole = tmp_path / "some.mcap", DEMO.read_bytes()
    damaged = bytearray(whole + bytes(9))
    damaged[len(whole) // 2] ^= 1
    path.write_bytes(damaged)
    async with serving([path]) as page:
        found: Any = {"error": None}
        with trio.fail_after(15):
            while not found["error"]:
                found = await page.found("/rows?begin=0&end=1&known=0")
            assert "damaged" in found["error"]
            path.write_bytes(whole)
            while not found["done"]:
                found = await page.found("/rows?begin=0&end=1")
        assert found["error"] is None


def test_names_as_long_as_they_can_be_make_no_long_rows() -> None:
    long = "\u202e" * 10_000
    asked = messages.FindCoordinatorRequest(key=long)
    answered = messages.FindCoordinatorResponse(error_code=1, error_message=long)
    made = bodies.exchange("FindCoordinator", 2, asked, answered)
    exchange = attrs.evolve(made, connection_client_id=long)
    row = shown.row(exchange)
    assert row["client_id"].startswith(r"\u202e") and row["client_id"].endswith("…")
    assert len(json.dumps(row)) < 10_000
    stats = Stats()
    stats.counts.clients |= {(None, long): Tally(count=1)}
    assert len(json.dumps(shown.statistics(stats))) < 3000
    topic = "t" * 249  # as long as Kafka has them
    assert shown.shown_name(topic) == topic


async def test_an_exchange_has_every_field_beside_its_bytes() -> None:
    (produced, *_) = recording.read(DEMO, "api:Produce")
    assert produced.request_frame is not None
    async with serving() as page:
        found = await page.found(f"/exchange?name=%23{produced.number}")
        asked_for, _ = found["halves"]
        digits = {each["start"]: each["hex"] for each in asked_for["fields"] if each["hex"]}
        assert produced.request_frame.hex().startswith(digits[0] + digits[4])
        assert found["row"]["api"] == "Produce"
        for name in ("999999", "x", "", "1e9"):
            status, _, body = await page.get(f"/exchange?name={name}")
            assert status in (404, 422) and b"error" in body, name


async def test_the_page_loads_nothing_and_makes_no_markup_of_texts() -> None:
    async with serving() as page:
        status, headers, body = await page.get("/")
        policy = headers[b"content-security-policy"].decode()
        assert status == 200 and "default-src 'none'" in policy and "unsafe" not in policy
        for name in re.findall(r'/static/([\w.-]+)"', body.decode()):
            status, _, _ = await page.get(f"/static/{name}")
            assert status == 200, name
        for name in ("..%2f__init__.py", "%2e%2e", "nothing.js", "__pycache__"):
            status, _, _ = await page.get(f"/static/{name}")
            assert status == 404, name
    for path in FILES.iterdir():
        text = path.read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text)
        assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text), path


def test_what_is_no_recording_is_said_before_an_address(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.mcap"
    other.write_text("no recording")
    for path, what in ((tmp_path / "nosuch.mcap", "does not exist"), (other, "other.mcap")):
        assert main(["web", str(path)]) == 1
        out, err = capsys.readouterr()
        assert out == "" and what in err and err.count("\n") == 1
