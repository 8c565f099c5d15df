"""What watches kproxy learns whether it lives and is ready, and nothing else."""

from __future__ import annotations

import errno
import functools
import http.client
import json
import os
from pathlib import Path
from typing import Any

import pytest
import trio

from kproxy.net import recorder
from kproxy.net.listeners import Interface
from kproxy.proxy import down
from tests.net.proxied import Proxied, proxied
from tests.net.test_pump import answer, answering, ask, receive_exactly

LOCAL = ("127.0.0.1", 0)


def address(proxy: Proxied, what: str) -> str:
    (line,) = [line for line in proxy.logs if line.startswith(f"{what}: http")]
    return line.split("/")[2]


async def get(where: str, path: str, **headers: str) -> tuple[int, Any]:
    """The status and the JSON of an answer."""

    def ask_it() -> tuple[int, Any]:
        connection = http.client.HTTPConnection(where, timeout=10)
        connection.request("GET", path, headers=headers)
        reply = connection.getresponse()
        body = reply.read()
        connection.close()
        return reply.status, json.loads(body)

    return await trio.to_thread.run_sync(ask_it)


async def until(where: str, status: int, **said: bool) -> None:
    """Wait until that is what /readyz answers."""
    expected = {"ready": status == 200, **said}
    with trio.fail_after(10):
        while await get(where, "/readyz") != (status, expected):
            await trio.sleep(0.02)


async def test_anybody_may_ask_for_health_and_for_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both: Any = {"control": LOCAL, "control_token": "s3cret", "health": LOCAL}
    for is_loopback in (True, False):
        monkeypatch.setattr(Interface, "loopback", is_loopback)
        async with proxied(answering, **both) as proxy:
            where, control = address(proxy, "health"), address(proxy, "metrics")
            foreign = {"Host": "kproxy.kafka.svc", "Origin": "http://elsewhere.example"}
            assert await get(where, "/healthz", **foreign) == (200, {"alive": True})
            await until(where, 200, listening=True, broker=True)
            assert (await get(where, "/readyz", **foreign))[0] == 200
            for path in ("/metrics", "/status", "/faults", "/"):
                assert (await get(where, path))[0] == 404
            for path in ("/healthz", "/readyz"):
                assert (await get(control, path))[0] == (200 if is_loopback else 401)
            assert (await get(control, "/status"))[0] == 401


async def test_it_is_ready_while_a_broker_answers_whom_it_asks_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = 0
    monkeypatch.setattr(down, "_ROUND_NS", 250_000_000)
    monkeypatch.setattr(down, "_BOOTSTRAP_INTERVAL_NS", 500_000_000)

    async def broker(stream: trio.SocketStream) -> None:
        nonlocal asked
        asked += 1
        await stream.aclose()

    async with proxied(None, health=LOCAL) as proxy:
        where = address(proxy, "health")
        await until(where, 503, listening=True, broker=False)
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            serve_tcp = functools.partial(trio.serve_tcp, host="127.0.0.1")
            await nursery.start(serve_tcp, broker, proxy.broker_port)
            await until(where, 200, listening=True, broker=True)
            async with trio.open_nursery() as many:
                for _ in range(6):
                    many.start_soon(get, where, "/readyz")
            nursery.cancel_scope.cancel()
        assert 1 <= asked <= 1 + (trio.current_time() - began) / 0.5
        await until(where, 503, listening=True, broker=False)


@pytest.mark.parametrize("disk_hangs", [False, True])
async def test_it_is_not_ready_while_the_disk_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk_hangs: bool
) -> None:
    pwritev, broken, heals = os.pwritev, True, trio.Event()
    token = trio.lowlevel.current_trio_token()

    def put(fd: int, buffers: list[bytes], offset: int) -> int:
        if broken and disk_hangs:
            trio.from_thread.run(heals.wait, trio_token=token)
        elif broken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwritev(fd, buffers, offset)

    monkeypatch.setattr(recorder, "_HANGS_SECONDS", 0.2)
    checks = {"listening": True, "broker": True}
    async with proxied(answering, tmp_path / "r.mcap", health=LOCAL) as proxy:
        where = address(proxy, "health")
        await until(where, 200, recording=True, **checks)
        monkeypatch.setattr(os, "pwritev", put)
        async with await proxy.connect() as client:
            await client.send_all(ask(1))
            assert await receive_exactly(client, len(answer(1))) == answer(1)
        await until(where, 503, recording=False, **checks)
        broken = False
        heals.set()
        await until(where, 200, recording=True, **checks)


async def test_it_is_not_ready_while_it_ends() -> None:
    asked = trio.Event()

    async def silent(stream: trio.SocketStream) -> None:
        async with stream:
            if await stream.receive_some():  # it is no probe
                asked.set()
                await trio.sleep_forever()

    async with proxied(silent, health=LOCAL, drain_seconds=5) as proxy:
        where = address(proxy, "health")
        async with await proxy.connect() as client:
            await client.send_all(ask(1))
            await asked.wait()
            proxy.stop.set()
            await until(where, 503, listening=False, broker=True)
