"""The control server: who may ask, what is answered, and that nobody can hold it up."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import AsyncIterator

import h11
import pytest
import trio
import trio.testing

from kproxy.net import control
from kproxy.net.control import Answer, ControlCall, ControlServer, Route, json_answer

HELLO = b"hello\n"


async def hello(call: ControlCall) -> Answer:
    """Answer hello."""
    return Answer(200, HELLO)


async def echo(call: ControlCall) -> Answer:
    """Answer with what was asked."""
    return json_answer([*call.words, call.body])


HELLO_ROUTE = Route(hello)
HEAD = b"Host: localhost:9191\r\n\r\n"


class Visitors(trio.abc.Listener):
    """A listener to which visitors come through memory."""

    def __init__(self) -> None:
        self._bring, self._next = trio.open_memory_channel(1000)
        self.logs: list[str] = []

    async def accept(self) -> trio.StapledStream:
        return await self._next.receive()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()

    def visit(self) -> trio.StapledStream:
        """The stream of a new visitor."""
        ours, theirs = trio.testing.memory_stream_pair()
        self._bring.send_nowait(theirs)
        return ours


@contextlib.asynccontextmanager
async def serving(token: str | None = None, host: str = "127.0.0.1") -> AsyncIterator[Visitors]:
    """A control server that says hello at /hello, and fails at /broken."""

    async def broken(call: ControlCall) -> Answer:
        raise ZeroDivisionError("oh")

    routes = {"/hello": {"GET": HELLO_ROUTE}, "/broken": {"GET": Route(broken)}}
    routes["/echo/{word}"] = {"POST": Route(echo, takes_body=True)}
    visitors = Visitors()
    async with trio.open_nursery() as nursery:
        server = ControlServer(routes, host, token, visitors.logs.append)
        nursery.start_soon(server.serve, [visitors])
        yield visitors
        nursery.cancel_scope.cancel()


async def read(stream: trio.StapledStream) -> bytes:
    """Everything until the end."""
    async with stream:
        return b"".join([chunk async for chunk in stream])


def parsed(data: bytes, method: bytes = b"GET") -> tuple[int, dict[bytes, bytes], bytes]:
    """Status, headers and body of the one response that `data` is, as a client reads it."""
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method=method, target="/", headers=[("Host", "x")]))
    client.send(h11.EndOfMessage())
    client.receive_data(data)
    client.receive_data(b"")
    head, body = client.next_event(), b""
    while isinstance(event := client.next_event(), h11.Data):
        body += event.data
    assert isinstance(event, h11.EndOfMessage) and client.next_event() == h11.ConnectionClosed()
    return head.status_code, dict(head.headers), body


async def asked(visitors: Visitors, request: bytes, method: bytes = b"GET"):
    """What a request is answered with."""
    stream = visitors.visit()
    await stream.send_all(request)
    return parsed(await read(stream), method)


async def test_an_answer_that_takes_too_long_is_a_sentence() -> None:
    async def never(call: ControlCall) -> Answer:
        await trio.sleep_forever()
        raise AssertionError

    visitors = Visitors()
    async with trio.open_nursery() as nursery:
        routes = {"/never": {"GET": Route(never, seconds=0.05)}}
        server = ControlServer(routes, "127.0.0.1", None, visitors.logs.append)
        nursery.start_soon(server.serve, [visitors])
        status, _, body = await asked(visitors, b"GET /never HTTP/1.1\r\n" + HEAD)
        assert (status, b"took longer than 0.05 s" in body) == (503, True)
        nursery.cancel_scope.cancel()


async def test_a_request_is_answered_however_it_is_cut() -> None:
    request = b"GET /hello?x=1 HTTP/1.1\r\n" + HEAD
    async with serving() as visitors:
        for cut in range(len(request)):
            stream = visitors.visit()
            await stream.send_all(request[:cut])
            await trio.testing.wait_all_tasks_blocked()
            await stream.send_all(request[cut:])
            status, headers, body = parsed(await read(stream))
            assert (status, body) == (200, HELLO)
            assert headers[b"connection"] == b"close"
        stream = visitors.visit()
        for byte in request:
            await stream.send_all(bytes([byte]))
        assert parsed(await read(stream))[0] == 200


@pytest.mark.parametrize(
    ("request_head", "status", "words"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost", 404, "there is no / here; there is /hello"),
        (b"GET /hello/ HTTP/1.1\r\nHost: localhost", 404, "/hello/"),
        (b"GET http://x/hello HTTP/1.1\r\nHost: localhost", 404, "http://x/hello"),
        (b"POST /hello HTTP/1.1\r\nHost: localhost", 405, "takes GET, HEAD, not POST"),
        (b"BREW /hello HTTP/1.1\r\nHost: localhost", 405, "not BREW"),
        (b"GET /broken HTTP/1.1\r\nHost: localhost", 500, "ZeroDivisionError"),
        (b"GET /hello HTTP/1.0", 403, "not ours"),
        (b"GET /hello HTTP/1.1\r\nHost: evil.example:9191", 403, "'evil.example'"),
        (b"GET /hello HTTP/1.1\r\nHost: localhost.evil.example", 403, "not ours"),
        (b"GET /hello HTTP/1.1\r\nHost: 127.0.0.1.evil.example", 403, "not ours"),
        (b"GET /hello HTTP/1.1\r\nHost: a\r\nOrigin: http://b", 403, "pages of http://b"),
        (b"GET /hello HTTP/1.1\r\nHost: localhost:1\r\nOrigin: null", 403, "pages of null"),
        (b"GET /hello HTTP/1.1\r\nHost: localhost:1\r\nOrigin: http://localhost:2", 403, "pages"),
        (b"GET /hello HTTP/1.1", 400, "not HTTP"),
        (b"GET /hello HTTP/1.1\r\nHost: a\r\nHost: b", 400, "not HTTP"),
        (b"GET /hello HTTP/1.1\r\nHost: localhost\r\n\x00: 1", 400, "not HTTP"),
        (b"GET /\xff\x1b[31m HTTP/1.1\r\nHost: localhost", 400, "not HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n", 400, "not HTTP"),
        (b"GET /hello HTTP/1.1\r\nHost: localhost\r\nContent-Length: x", 400, "not HTTP"),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: localhost", 404, "aaa ..."),
        (b"GET /" + b"a" * 99000, 431, "not HTTP"),
        (b"GET /hello HTTP/1.1\r\n" + b"A: b\r\n" * 9999, 431, "not HTTP"),
    ],
)
async def test_what_is_not_to_be_had_is_answered_in_one_line(
    request_head: bytes, status: int, words: str
) -> None:
    async with serving() as visitors:
        code, headers, body = await asked(visitors, request_head + b"\r\n\r\n")
        assert (code, body[-1:], body.count(b"\n")) == (status, b"\n", 1)
        assert words in json.loads(body)["error"] and len(body) < 600
        assert (b"allow" in headers) == (status == 405)
        good = await asked(visitors, b"GET /hello HTTP/1.1\r\n" + HEAD)
        assert good[0] == 200, "and the next one is served"
        assert len(visitors.logs) == (status == 500)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:80", "kp:9191"])
async def test_our_own_names_are_answered(host: str) -> None:
    async with serving(host="kp") as visitors:
        for origin in (b"", b"Origin: http://" + host.encode() + b"\r\n"):
            head = b"GET /hello HTTP/1.1\r\nHost: " + host.encode() + b"\r\n" + origin + b"\r\n"
            assert (await asked(visitors, head))[0] == 200


async def test_a_head_is_answered_without_its_body() -> None:
    async with serving() as visitors:
        stream = visitors.visit()
        await stream.send_all(b"HEAD /hello HTTP/1.1\r\n" + HEAD)
        status, headers, body = parsed(await read(stream), b"HEAD")
        assert (status, headers[b"content-length"], body) == (200, b"%d" % len(HELLO), b"")


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (b"Bearer s3cret", 200),
        (b"Bearer s3cre", 401),
        (b"Bearer s3crets", 401),
        (b"Basic s3cret", 401),
        (b"s3cret", 401),
        (b"Bearer \xff", 401),
        (b"", 401),
        (None, 401),
    ],
)
async def test_with_a_token_only_who_sends_it_is_answered_by_any_name(
    authorization: bytes | None, status: int
) -> None:
    async with serving(token="s3cret") as visitors:
        line = b"" if authorization is None else b"Authorization: " + authorization + b"\r\n"
        head = b"GET /hello HTTP/1.1\r\nHost: kproxy.svc:9191\r\n" + line + b"\r\n"
        code, headers, body = await asked(visitors, head)
        assert code == status and (body == HELLO) == (status == 200)
        assert (headers.get(b"www-authenticate") == b"Bearer") == (status == 401)
        assert b"s3cret" not in body


async def test_a_body_is_not_waited_for_and_a_second_request_not_answered() -> None:
    async with serving() as visitors:
        stream = visitors.visit()
        get = b"GET /hello HTTP/1.1\r\nContent-Length: 999999999\r\n" + HEAD
        await stream.send_all(get + b"x" * 100_000)
        assert parsed(await read(stream))[0] == 200
        stream = visitors.visit()
        await stream.send_all((b"GET /hello HTTP/1.1\r\n" + HEAD) * 3)
        assert parsed(await read(stream))[2] == HELLO


async def test_the_slow_and_the_silent_hold_up_nobody(autojump_clock) -> None:
    async with serving() as visitors:
        started = trio.current_time()
        silent = [visitors.visit() for _ in range(64)]
        for stream in silent[::2]:
            await stream.send_all(b"GET /hello")
        last = await asked(visitors, b"GET /hello HTTP/1.1\r\n" + HEAD)
        assert last[0] == 200
        assert trio.current_time() == started
        for stream in silent:
            with pytest.raises(trio.BrokenResourceError):  # closed without an answer
                while True:
                    await stream.send_all(b"x")
                    await trio.sleep(1)


async def test_who_was_heard_is_not_ended_for_who_keeps_silent() -> None:
    """A slow reader of a large answer is served, however many come and say nothing."""
    large = b"x" * (8 << 20)
    visitors = Visitors()

    async def answer_large(call: ControlCall) -> Answer:
        return Answer(200, large)

    routes = {"/large": {"GET": Route(answer_large)}}
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        address = listener.socket.getsockname()
        server = ControlServer(routes, "127.0.0.1", None, visitors.logs.append)
        nursery.start_soon(server.serve, [listener])
        reader = await trio.open_tcp_stream(*address)
        await reader.send_all(b"GET /large HTTP/1.1\r\n" + HEAD)
        first = await reader.receive_some(1)
        silent = [await trio.open_tcp_stream(*address) for _ in range(3 * control.CONNECTIONS_MAX)]
        assert await silent[0].receive_some() == b"", "the oldest of these had to go"
        assert parsed(first + await read(reader))[2] == large
        nursery.cancel_scope.cancel()
    for stream in silent:
        await trio.aclose_forcefully(stream)


async def test_a_byte_a_second_is_not_enough(autojump_clock) -> None:
    async with serving() as visitors:
        stream = visitors.visit()
        with pytest.raises(trio.BrokenResourceError):
            for byte in (b"GET /hello HTTP/1.1\r\n" + HEAD) * 9:
                await stream.send_all(bytes([byte]))
                await trio.sleep(1)
        assert trio.current_time() < 10


async def test_noise_is_answered_or_ended_and_never_ends_the_server() -> None:
    noise = random.Random(7)
    words = [b"GET", b" ", b"/hello", b"HTTP/1.1", b"\r\n", b"Host:", b"\0", b"localhost", b":"]
    async with serving() as visitors:
        for _ in range(500):
            stream = visitors.visit()
            data = b"".join(noise.choice(words) for _ in range(noise.randrange(1, 20)))
            await stream.send_all(data + noise.randbytes(noise.randrange(4)))
            await stream.send_eof()
            await read(stream)
        assert (await asked(visitors, b"GET /hello HTTP/1.1\r\n" + HEAD))[0] == 200
        assert not visitors.logs, "none of it is a defect"


async def test_the_server_outlives_a_lack_of_descriptors(autojump_clock) -> None:
    class Starved(Visitors):
        refusals = 3

        async def accept(self) -> trio.StapledStream:
            if self.refusals:
                self.refusals -= 1
                raise OSError(24, "Too many open files")
            return await super().accept()

    starved = Starved()
    routes = {"/hello": {"GET": HELLO_ROUTE}}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ControlServer(routes, "localhost", None, print).serve, [starved])
        assert (await asked(starved, b"GET /hello HTTP/1.1\r\n" + HEAD))[0] == 200
        nursery.cancel_scope.cancel()


JSON = b"Content-Type: application/json\r\n"


def post(body: bytes, *headers: bytes, path: bytes = b"/echo/a%2Fb%20c") -> bytes:
    """A POST of this body."""
    length = b"Content-Length: %d\r\n" % len(body)
    return b"POST " + path + b" HTTP/1.1\r\n" + b"".join(headers) + length + HEAD + body


async def test_a_body_is_taken_where_a_route_wants_one_however_it_is_cut() -> None:
    request = post(b'{"a": [1, "\xc3\xa4"]}', JSON)
    async with serving() as visitors:
        for cut in range(len(request)):
            stream = visitors.visit()
            await stream.send_all(request[:cut])
            await trio.testing.wait_all_tasks_blocked()
            await stream.send_all(request[cut:])
            status, _, body = parsed(await read(stream))
            assert (status, json.loads(body)) == (200, ["a/b c", {"a": [1, "ä"]}])
        chunks = b'3\r\n{"a\r\n5\r\n": 1}\r\n0\r\n\r\n'
        head = b"POST /echo/x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + JSON + HEAD
        assert json.loads((await asked(visitors, head + chunks))[2]) == ["x", {"a": 1}]
        assert json.loads((await asked(visitors, post(b"")))[2]) == ["a/b c", {}]


async def test_who_waits_to_be_told_to_go_on_is_told(autojump_clock) -> None:
    async with serving() as visitors:
        stream = visitors.visit()
        request = post(b'{"a": 1}', JSON, b"Expect: 100-continue\r\n")
        await stream.send_all(request[:-8])
        assert (await stream.receive_some(1000)).startswith(b"HTTP/1.1 100")
        await stream.send_all(request[-8:])
        assert parsed(await read(stream))[0] == 200


@pytest.mark.parametrize(
    ("request_bytes", "status", "words"),
    [
        (post(b"{}"), 415, "application/json"),
        (post(b"a=b", b"Content-Type: application/x-www-form-urlencoded\r\n"), 415, "json"),
        (post(b"{", JSON), 400, "no JSON"),
        (post(b"[" * 60_000, JSON), 400, "no JSON"),
        (post(b"\xff\xfe\x00", JSON), 400, "no JSON"),
        (post(b"[1]", JSON), 422, "not a JSON object"),
        (post(b"{}" + b" " * control.BODY_BYTES_MAX, JSON), 413, "65536 bytes at most"),
        (post(b"{}", JSON, path=b"/echo/x/y"), 404, "there is no /echo/x/y"),
        (post(b"{}", JSON, path=b"/hello"), 405, "takes GET, HEAD"),
        (b"GET /echo/x HTTP/1.1\r\n" + HEAD, 405, "takes POST, not GET"),
    ],
)
async def test_a_body_that_is_not_wanted_is_refused(
    request_bytes: bytes, status: int, words: str
) -> None:
    async with serving() as visitors:
        code, _, body = await asked(visitors, request_bytes)
        assert code == status and words in json.loads(body)["error"]
        assert not visitors.logs


async def test_a_body_without_an_end_is_not_waited_for(autojump_clock) -> None:
    async with serving() as visitors:
        stream = visitors.visit()
        head = b"POST /echo/x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + JSON + HEAD
        await stream.send_all(head + b"ffffff\r\n" + b" " * 2 * control.BODY_BYTES_MAX)
        assert parsed(await read(stream))[0] == 413
        stream = visitors.visit()
        await stream.send_all(post(b"{}", JSON)[:-1])
        assert await read(stream) == b"", "it has ended without an answer"
        assert trio.current_time() < 10
