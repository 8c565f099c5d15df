"""The page over HTTP: who gets in, and what is answered."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from kproxy import recording
from kproxy.cli import main
from kproxy.exchange.words import line
from kproxy.net.browser_access import BrowserAccess
from kproxy.net.control import ControlServer
from kproxy.web.routes import Pages
from tests.bed import needs
from tests.net.test_control import Visitors, asked

DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"
FILES = needs.REPOSITORY / "kproxy" / "web" / "files"


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
async def serving() -> AsyncIterator[Page]:
    """The page of the demo."""
    page, access = Page(), BrowserAccess(9)
    async with trio.open_nursery() as nursery:
        routes = Pages([DEMO], nursery).routes()
        server = ControlServer(routes, "127.0.0.1", None, page.logs.append, access)
        nursery.start_soon(server.serve, [page])
        status, headers, _ = await page.get(access.path)
        assert (status, headers[b"location"]) == (303, b"/")
        page.cookie = headers[b"set-cookie"].decode().partition(";")[0]
        yield page
        nursery.cancel_scope.cancel()


async def test_the_code_works_once_and_nothing_without_a_cookie() -> None:
    access = BrowserAccess(9)
    path = access.path
    headers = access.enter(path)
    assert headers is not None and "SameSite" in headers["Set-Cookie"]
    assert access.enter(path) is None and access.enter("/enter/") is None
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
        status, _, _ = await page.get("/enter/again")
        assert status == 403


async def test_rows_are_the_exchanges_and_a_mistake_is_said_where_it_stands() -> None:
    async with serving() as page:
        found: Any = {"done": False}
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


@pytest.mark.parametrize("name", sorted(path.name for path in FILES.glob("*.js")))
def test_a_module_says_what_it_is(name: str) -> None:
    text = (FILES / name).read_text()
    assert text.startswith("/**\n * ")
    assert max(map(len, text.splitlines())) <= 100
