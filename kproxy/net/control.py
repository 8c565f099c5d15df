"""The control server: HTTP for whoever runs the proxy, never for its clients.

::

    accept, a few at once ─▶ h11 ─▶ who asks? token, Host, Origin ─▶ route ─▶ one answer, and close
                                                                       └ JSON body, if it takes one

Invariants: what is asked costs little and bounded memory (a request's head and body are limited,
and a body is read only where a route takes one), and little and bounded time (`REQUEST_SECONDS` for
all of it), whoever asks. Nobody waits for others: of too many connections the one ends that has
kept silent for longest. A refusal is one line of JSON: `{"error": "…"}`.

Who may ask: with a token, whoever sends it (`Authorization: Bearer TOKEN`). Without one the server
listens on the loopback address only (`serve` sees to that), where web pages are the danger: a
browser on this machine can be made to ask. So what a page of another origin asks is refused, and so
is what comes by a foreign host name, which is how DNS rebinding comes.
"""

from __future__ import annotations

import hmac
import http
import ipaddress
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import attrs
import h11
import trio

CONNECTIONS_MAX = 8
"""Open at once; for one more the oldest ends that has not made its request yet."""
HEAD_BYTES_MAX = 16 << 10
"""Of a request: its first line and headers."""
BODY_BYTES_MAX = 64 << 10
"""Of a request's body."""
REQUEST_SECONDS = 5.0
"""For a request to arrive and its answer to be taken."""
_RECEIVE_BYTES = 4096
_LEFT_BYTES_MAX = 256 << 10
_ACCEPT_AGAIN_SECONDS = 0.1
_SAID_CHARACTERS_MAX = 500
_JSON = "application/json"


@attrs.frozen
class Answer:
    """What a request is answered with."""

    status: int
    body: bytes
    content_type: str = _JSON
    headers: Sequence[tuple[str, str]] = ()


class Refused(Exception):
    """A request that cannot be fulfilled; the text says why, and maybe which key of it is wrong."""

    def __init__(self, status: int, what: str, **more: Any) -> None:
        super().__init__(what)
        self.answer = refusal(status, what, **more)


@attrs.frozen
class Call:
    """What a route is asked."""

    words: Sequence[str] = ()
    """What stands in the path where its template has {…}."""
    body: Mapping[str, Any] = attrs.field(factory=dict[str, Any])
    """The JSON object in the request's body; empty where there is none."""


@attrs.frozen
class Route:
    """What answers a method of a path."""

    run: Callable[[Call], Awaitable[Answer]]
    """Raises Refused."""
    takes_body: bool = False


_Visitors = dict[trio.CancelScope, bool]
"""The connections, the oldest first: has it made its request?"""

Routes = Mapping[str, Mapping[str, Route]]
"""path → method → what answers it; {…} in a path stands for any text without a slash."""


@attrs.frozen(eq=False)
class Control:
    """What is served, and to whom."""

    routes: Routes
    host: str
    """The name or address that the server was told to listen on."""
    token: str | None
    """What a request must carry; None: it need not, but may not come from a web page."""
    log: Callable[[str], None]

    async def serve(self, listeners: Sequence[trio.SocketListener]) -> None:
        """Serve until cancelled; closes the listeners then."""
        visitors: _Visitors = {}
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(self._listen, listener, nursery, visitors)

    def route(self, request: h11.Request) -> tuple[Route, Sequence[str]]:
        """Find what answers a request, and the words in its path.

        Raises:
            Refused: nothing does, or whoever asks may not.
        """
        self._check_sender({n.decode(): value.decode("latin-1") for n, value in request.headers})
        path = request.target.decode("latin-1").partition("?")[0]
        asked = request.method.decode()
        allowed: dict[str, None] = {}
        for template, methods in self.routes.items():
            words = _matched(template, path)
            if words is None:
                continue
            route = methods.get("GET" if asked == "HEAD" else asked)
            if route is not None:
                return route, words
            allowed |= dict.fromkeys([*methods, *(["HEAD"] if "GET" in methods else [])])
        if allowed:
            methods_text = ", ".join(allowed)
            header = ("Allow", methods_text)
            raise Refused(405, f"{path} takes {methods_text}, not {asked}", headers=[header])
        raise Refused(404, f"there is no {path} here; there is {', '.join(self.routes)}")

    async def answer(self, route: Route, call: Call, what: str) -> Answer:
        """Answer a request."""
        try:
            return await route.run(call)
        except Refused as error:
            return error.answer
        except Exception as error:
            return refusal(500, self._defect(what, error))

    def _defect(self, what: str, error: Exception) -> str:
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        text = f"{what} failed by a defect in kproxy, please report it: {why}"
        self.log(text)
        return text

    def _check_sender(self, headers: Mapping[str, str]) -> None:
        host = headers.get("host", "")
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            raise Refused(403, f"pages of {origin} may not ask")
        if self.token is not None:
            given = headers.get("authorization", "").encode("latin-1")
            if hmac.compare_digest(given, b"Bearer " + self.token.encode()):
                return
            why = "send the token in KPROXY_CONTROL_TOKEN as Authorization: Bearer TOKEN"
            raise Refused(401, why, headers=[("WWW-Authenticate", "Bearer")])
        name = _host(host)
        if name not in ("localhost", self.host.lower()) and not _is_address(name):
            raise Refused(403, f"host {name!r} is not ours: ask by address, or as localhost")

    # Connections

    async def _listen(
        self, listener: trio.SocketListener, nursery: trio.Nursery, visitors: _Visitors
    ) -> None:
        async with listener:
            while True:
                try:
                    stream = await listener.accept()
                except OSError:  # no descriptor is left: the clients of the proxy have them all
                    await trio.sleep(_ACCEPT_AGAIN_SECONDS)
                    continue
                if len(visitors) >= CONNECTIONS_MAX:
                    _end_one(visitors)
                scope = trio.CancelScope(deadline=trio.current_time() + REQUEST_SECONDS)
                visitors[scope] = False
                nursery.start_soon(self._handle, stream, scope, visitors)

    async def _handle(
        self, stream: trio.SocketStream, scope: trio.CancelScope, visitors: _Visitors
    ) -> None:
        def heard() -> None:
            if scope in visitors:
                visitors[scope] = True

        try:
            with scope:
                await self._converse(stream, heard)
        except trio.BrokenResourceError:
            pass  # it has gone
        except Exception as error:
            self._defect("a request to the control address", error)
        finally:
            visitors.pop(scope, None)
            await trio.aclose_forcefully(stream)

    async def _converse(self, stream: trio.SocketStream, heard: Callable[[], None]) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        with_body = True
        try:
            request = await _next_event(connection, stream)
            if not isinstance(request, h11.Request):  # the end, before any request
                return
            heard()
            with_body = request.method != b"HEAD"
            route, words = self.route(request)
            body = await _body(connection, stream, request) if route.takes_body else {}
            what = f"{request.method.decode()} {request.target.decode('latin-1')}"
            answer = await self.answer(route, Call(words, body), what)
        except h11.RemoteProtocolError as error:
            answer = refusal(error.error_status_hint, f"not HTTP: {error}")
        except Refused as error:
            answer = error.answer
        await stream.send_all(_encoded(connection, answer, with_body))
        # Closing with something unread would reset the connection, and the answer might be lost.
        await stream.send_eof()
        left = _LEFT_BYTES_MAX
        while left > 0 and (data := await stream.receive_some(left)):
            left -= len(data)


async def _next_event(connection: h11.Connection, stream: trio.SocketStream) -> Any:
    while (event := connection.next_event()) is h11.NEED_DATA:
        if connection.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[])
            await stream.send_all(connection.send(go_on))
        connection.receive_data(await stream.receive_some(_RECEIVE_BYTES))
    return event


async def _body(
    connection: h11.Connection, stream: trio.SocketStream, request: h11.Request
) -> Mapping[str, Any]:
    """Read the JSON object that is a request's body, or nothing.

    Raises:
        Refused: it is something else, or too large.
    """
    headers = {name.decode(): value.decode("latin-1") for name, value in request.headers}
    too_large = Refused(413, f"a body has {BODY_BYTES_MAX} bytes at most")
    if int(headers.get("content-length", "0")) > BODY_BYTES_MAX:
        raise too_large
    body = b""
    while isinstance(event := await _next_event(connection, stream), h11.Data):
        body += event.data
        if len(body) > BODY_BYTES_MAX:
            raise too_large
    if not body:
        return {}
    if headers.get("content-type", "").partition(";")[0].strip().lower() != _JSON:
        raise Refused(415, f"send the body as {_JSON}")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise Refused(422, "the body is not a JSON object")
    return found


def _matched(template: str, path: str) -> Sequence[str] | None:
    """The words of a path where its template has {…}; None if it is another path."""
    parts, given = template.split("/"), path.split("/")
    if len(parts) != len(given):
        return None
    words: list[str] = []
    for part, text in zip(parts, given, strict=True):
        if part[:1] == "{":
            words.append(unquote(text, errors="surrogateescape"))
        elif part != text:
            return None
    return words


def _end_one(visitors: _Visitors) -> None:
    """End the oldest connection that has made no request; if there is none, the oldest."""
    silent = (scope for scope, heard in visitors.items() if not heard)
    scope = next(silent, None) or next(iter(visitors))
    del visitors[scope]
    scope.cancel()


def _encoded(connection: h11.Connection, answer: Answer, with_body: bool) -> bytes:
    headers = [
        ("Content-Type", answer.content_type),
        ("Content-Length", str(len(answer.body))),
        ("X-Content-Type-Options", "nosniff"),
        ("Connection", "close"),
        *answer.headers,
    ]
    status = http.HTTPStatus(answer.status)
    head = h11.Response(status_code=status, reason=status.phrase, headers=headers)
    events = [head, *([h11.Data(answer.body)] if with_body else []), h11.EndOfMessage()]
    return b"".join(connection.send(event) for event in events)


def json_answer(value: Any, status: int = 200, headers: Sequence[tuple[str, str]] = ()) -> Answer:
    """Answer with a value, as one line of JSON."""
    return Answer(status, f"{json.dumps(value)}\n".encode("ascii"), headers=headers)


def refusal(
    status: int, text: str, key: str | None = None, headers: Sequence[tuple[str, str]] = ()
) -> Answer:
    """Answer why not, in one line; it may quote what was asked, which cannot end or hide it."""
    shown = text if len(text) <= _SAID_CHARACTERS_MAX else f"{text[:_SAID_CHARACTERS_MAX]} ..."
    said = {"error": "".join(each if each.isprintable() else "?" for each in shown)}
    return json_answer(said if key is None else said | {"key": key}, status, headers)


def _host(value: str) -> str:
    """Return the host in HOST, HOST:PORT or [HOST]:PORT."""
    if value.startswith("["):
        return value[1:].partition("]")[0].lower()
    return value.partition(":")[0].lower()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
