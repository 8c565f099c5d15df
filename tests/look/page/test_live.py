"""The page of a running proxy: who gets in, what passes is there, rules from the browser."""

from __future__ import annotations

import errno
import http.client
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from kproxy.look.page.relayed import HandedOver, serve
from kproxy.look.page.routes import Pages
from kproxy.net import page_process
from kproxy.net.browser_access import BrowserAccess
from kproxy.net.control import Answer, ControlCall, ControlServer, Encoded, Route
from kproxy.net.control_api import ControlApi
from kproxy.net.page_process import PATHS, PageProcess
from tests.bed import needs, replays
from tests.bed.waiting import until
from tests.net.proxied import proxied
from tests.net.test_control import Visitors, asked, parsed
from tests.net.test_control_api import COORDINATOR_NOT_AVAILABLE, LOCAL, error_of
from tests.net.test_pump import answering

DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"


class Browser:
    """Asks as a browser does: with a cookie, and with its Origin where it changes something."""

    def __init__(self, logs: list[str]) -> None:
        (url,) = [line.partition("page: ")[2] for line in logs if "page: " in line]
        self.origin, _, self.code = url.partition("/enter/")
        self.cookie = ""

    async def __call__(
        self, target: str, method: str = "GET", body: Any = None, **headers: str
    ) -> tuple[int, Any, Mapping[str, str]]:
        """Return the status of an answer, its body, and its head."""
        given = {"Cookie": self.cookie, "Content-Type": "application/json"} | headers
        data = None if body is None else json.dumps(body)

        def ask() -> tuple[int, Any, Mapping[str, str]]:
            connection = http.client.HTTPConnection(self.origin.removeprefix("http://"), timeout=9)
            connection.request(method, target, data, given)
            answer = connection.getresponse()
            text = answer.read()
            connection.close()
            is_json = answer.headers["Content-Type"] == "application/json" and text
            return answer.status, json.loads(text) if is_json else text, dict(answer.headers)

        return await trio.to_thread.run_sync(ask)

    async def enter(self) -> None:
        """Come with the code."""
        status, _, headers = await self(f"/enter/{self.code}")
        assert status == 303
        self.cookie = headers["Set-Cookie"].partition(";")[0]


def test_the_process_of_the_page_ends_with_the_proxy_and_by_no_signal_to_both() -> None:
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "kproxy.look.page.relayed"],
        stdin=theirs,
        stderr=subprocess.PIPE,
    )
    theirs.close()
    try:
        ours.sendall(bytes(page_process.LENGTH_BYTES))
        assert ours.recv(1)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        ours.close()
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, said) == (0, b"")


async def test_what_passes_is_on_the_page_and_a_rule_from_it_holds(tmp_path: Path) -> None:
    async with proxied(answering, tmp_path / "r.mcap", control=LOCAL) as proxy:
        browser = Browser(proxy.logs)
        for target in ("/", "/rows?begin=0&end=9", "/live"):
            status, found, _ = await browser(target)
            assert (status, "open the address" in found["error"]) == (401, True), target
        status, found, _ = await browser("/status")  # as ever, on a loopback address
        assert status == 200
        await browser.enter()
        status, found, headers = await browser("/")
        assert status == 200 and b"<title>kproxy" in found
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        status, found, _ = await browser("/", "HEAD")
        assert (status, found) == (200, b"")
        assert (await browser("/live"))[1] == {"live": True, "recorded": True}
        async with await proxy.connect() as client:
            assert await error_of(client, 1) == 0
            found = None
            with trio.fail_after(15):
                while not (found and found["count"]):
                    _, found, _ = await browser("/rows?begin=0&end=9&known=0")
            assert found["grows"] and not found["done"]
            assert [row["api"] for row in found["rows"]] == ["Heartbeat"]
            rule = {"name": "away", "api": "Heartbeat", "error": COORDINATOR_NOT_AVAILABLE}
            for origin in ({}, {"Origin": "http://evil.example"}):
                status, _, _ = await browser("/faults", "POST", rule, **origin)
                assert status == 403, origin
            origin = {"Origin": browser.origin}
            status, _, _ = await browser("/faults", "POST", rule, **origin)
            assert status == 201
            assert await error_of(client, 2) == COORDINATOR_NOT_AVAILABLE
            status, found, _ = await browser("/faults/1", "DELETE", **origin)
            assert (status, found["fired"]) == (200, 1)
            assert await error_of(client, 3) == 0
            findings: Any = {"exchanges": 0}
            with trio.fail_after(30):
                while findings["exchanges"] < 3:
                    _, findings, _ = await browser("/findings")
            assert not findings["done"], "they grow"
            assert "COORDINATOR_NOT_AVAILABLE of Heartbeat" in findings["findings"][0]["text"]
        proxy.stop.set()


async def test_a_proxy_that_records_nothing_says_so() -> None:
    async with proxied(answering, control=LOCAL) as proxy:
        browser = Browser(proxy.logs)
        await browser.enter()
        assert (await browser("/live"))[1] == {"live": True, "recorded": False}
        status, found, _ = await browser("/rows?begin=0&end=9")
        assert (status, "nothing to show" in found["error"]) == (410, True)
        proxy.stop.set()


async def test_a_replay_shows_the_recording_that_it_replays(tmp_path: Path) -> None:
    with replays.running(DEMO, tmp_path, "--control", "127.0.0.1:0") as replay:
        until(lambda: "page: " in replay.log, "the log names the page")
        browser = Browser(replay.log.splitlines())
        await browser.enter()
        told = {"live": True, "recorded": True, "replayed": True, "title": "demo.mcap"}
        assert (await browser("/live"))[1] == told
        found: dict[str, Any] = {"done": False}
        with trio.fail_after(15):
            while not found["done"]:
                _, found, _ = await browser("/rows?begin=0&end=9&known=0")
        assert (found["count"], found["rows"][1]["api"]) == (34, "Metadata")
        rule = {"api": "Metadata", "error": "UNKNOWN_SERVER_ERROR"}
        status, _, _ = await browser("/faults", "POST", rule, Origin=browser.origin)
        assert status == 201


async def test_the_process_ends_when_nobody_asks_and_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_process, "IDLE_SECONDS", 0.5)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trio.py").write_text("raise SystemExit('a module of the user was executed')")
    many = [tmp_path / f"{number:0200}" / f"{'long' * 60}.mcap" for number in range(6000)]
    started: list[int] = []

    def recorded() -> list[Path]:
        started.append(1)
        return [DEMO, *many]  # more than a command can have

    page = PageProcess(recorded)
    call = ControlCall(target="/keys")
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(page.run)
            await trio.testing.wait_all_tasks_blocked()
            assert not started, "nobody has asked"
            for _ in range(2):
                answer = await page.relay(call)
                assert isinstance(answer, Encoded) and b"client_id:" in answer.data
            assert len(started) == 1
            while page.running:
                await trio.sleep(0.02)
            answer = await page.relay(call)
            assert isinstance(answer, Encoded) and len(started) == 2
            nursery.cancel_scope.cancel()


async def test_a_system_with_nothing_left_for_the_page_ends_no_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = [OSError(errno.EMFILE, "Too many open files"), RuntimeError("can't start new thread")]
    begin = trio.lowlevel.open_process

    async def open_process(*args: Any, **named: Any) -> trio.Process:
        if left:
            raise left[0]
        return await begin(*args, **named)

    monkeypatch.setattr(trio.lowlevel, "open_process", open_process)
    page = PageProcess(lambda: [DEMO])
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(page.run)
            while left:
                answer = await page.relay(ControlCall(target="/keys"))
                assert isinstance(answer, Answer) and answer.status == 503
                assert str(left.pop(0).args[-1]).encode() in answer.body
            answer = await page.relay(ControlCall(target="/keys"))
            assert isinstance(answer, Encoded) and b"client_id:" in answer.data
            nursery.cancel_scope.cancel()


async def test_requests_are_handed_over_until_the_proxy_has_gone() -> None:
    ours, theirs = socket.socketpair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, [str(DEMO)], HandedOver(trio.socket.from_stdlib_socket(theirs)))
        for target, expected in (("/keys", 200), ("/nothing", 404), ("/rows?begin=x&end=1", 422)):
            here, there = socket.socketpair()
            stream = trio.SocketStream(trio.socket.from_stdlib_socket(here))
            socket.send_fds(ours, [b"."], [there.fileno()])
            there.close()
            async with stream:
                await stream.send_all(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                status, _, _ = parsed(b"".join([chunk async for chunk in stream]))
            assert status == expected
        ours.close()  # … and `serve` returns


async def test_every_path_of_the_page_is_relayed_and_none_hides_one_of_the_api() -> None:
    async with trio.open_nursery() as nursery:
        assert {*PATHS, "/live"} == set(Pages([], nursery, print).routes())
    operated: Any = None
    assert not {*PATHS, "/metrics"} & set(ControlApi(operated).routes())


@pytest.mark.parametrize("token", [None, "secret"])
async def test_what_was_recorded_takes_the_cookie_or_the_token(token: str | None) -> None:
    async def hello(call: ControlCall) -> Answer:
        return Answer(200, b"hello")

    routes = {
        "/open": {"GET": Route(hello), "POST": Route(hello)},
        "/private": {"GET": Route(hello, access="private")},
    }
    access, visitors = BrowserAccess(9), Visitors()
    entered = access.enter(access.path)
    assert entered is not None
    cookie = f"Cookie: {entered['Set-Cookie'].partition(';')[0]}\r\n"
    bearer = f"Authorization: Bearer {token}\r\n"
    expected = {
        ("GET /open", ""): 401 if token else 200,
        ("GET /private", ""): 401,
        ("GET /open", bearer): 200,
        ("GET /private", bearer): 200 if token else 401,
        ("GET /private", cookie): 200,
        ("POST /open", cookie): 403,
        ("POST /open", f"{cookie}Origin: http://127.0.0.1:9\r\n"): 200,
        ("POST /open", f"{cookie}Origin: http://127.0.0.1:8\r\n"): 403,
    }
    async with trio.open_nursery() as nursery:
        server = ControlServer(routes, "127.0.0.1", token, visitors.logs.append, access)
        nursery.start_soon(server.serve, [visitors])
        for (line, headers), wanted in expected.items():
            request = f"{line} HTTP/1.1\r\nHost: 127.0.0.1:9\r\n{headers}\r\n"
            status, head, _ = await asked(visitors, request.encode())
            assert status == wanted, (line, headers)
            assert head[b"cache-control"] == b"no-store"
        if token is None:
            origin = "Host: evil.example\r\nOrigin: http://evil.example\r\n"
            request = f"POST /open HTTP/1.1\r\n{cookie}{origin}\r\n"
            status, _, _ = await asked(visitors, request.encode())
            assert status == 403, "a cookie makes no foreign host ours"
        nursery.cancel_scope.cancel()
