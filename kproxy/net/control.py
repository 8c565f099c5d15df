"""The control server: HTTP for the operator of the proxy, never for its clients.

::

    accept, a few at once ─▶ h11 ─▶ check token, Host, Origin ─▶ route ─▶ one answer, and close
                                                                       └ JSON body, if it takes one

Invariants: a request costs bounded memory (its head and body are limited, and a body is read only
where a route takes one) and bounded time (`REQUEST_SECONDS` for all of it, and `Route.seconds` more
for an answer). No connection waits for others: of too many, the one that has been silent for
longest ends. A refusal is one line of JSON: `{"error": "…"}`.

Access: a browser may have a cookie (`browser_access`). Otherwise, if there is a token, each request
must carry it (`Authorization: Bearer TOKEN`), but for public routes. Without a token, private
routes take the cookie, and the server listens on the loopback address only (`open_addresses` checks
that), where web pages are the danger: they can make a browser on this machine send requests.
So requests of a page of another origin are refused, and so are those for a foreign host name, as
DNS rebinding sends them, whatever they carry. A change with a cookie must name its origin. Answers
are not kept by who gets them.

h11 parses; there is no framework on it. A server such as Hypercorn with Starlette has what is the
smallest part here, a table of routes, and leaves the rest as it is: bounds on heads, bodies, time
and connections, who may ask, and requests that are handed over to the process of the page. All of
it would be as long, around a loop that is not ours.
"""

from __future__ import annotations

import hmac
import http
import ipaddress
import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote

import attrs
import h11
import trio

from kproxy.defects import defect
from kproxy.levels import Logger
from kproxy.net import browser_access
from kproxy.net.browser_access import BrowserAccess

CONNECTIONS_MAX = 8
"""The most connections at once; for one more, the oldest without a request ends. A browser makes
several for a page (`BROWSER_CONNECTIONS_MAX`)."""
BROWSER_CONNECTIONS_MAX = 64
HEAD_BYTES_MAX = 16 << 10
"""The most bytes in the first line and headers of a request."""
BODY_BYTES_MAX = 64 << 10
"""The most bytes in a request's body."""
REQUEST_SECONDS = 5.0
"""The time for a request to arrive and its answer to be taken."""
_RECEIVE_BYTES = 4096
_UNREAD_BYTES_MAX = 256 << 10
_ACCEPT_AGAIN_SECONDS = 0.1
_ERROR_CHARACTERS_MAX = 500
_JSON = "application/json"


@attrs.frozen
class Answer:
    """The answer to a request."""

    status: int
    body: bytes
    content_type: str = _JSON
    headers: Sequence[tuple[str, str]] = ()


@attrs.frozen
class Encoded:
    """An answer as another server has encoded it: head and body."""

    data: bytes


class RequestRefused(Exception):
    """A request that cannot be fulfilled; the text says why, and may name the wrong key."""

    def __init__(self, status: int, what: str, **more: Any) -> None:
        super().__init__(what)
        self.answer = refusal(status, what, **more)


@attrs.frozen
class ControlCall:
    """A request as its route gets it."""

    words: Sequence[str] = ()
    """The parts of the path that stand for {…} in its template."""
    body: Mapping[str, Any] = attrs.field(factory=dict)
    """The JSON object in the request's body; empty if there is none."""
    query: Mapping[str, str] = attrs.field(factory=dict)
    """The parameters behind the `?`."""
    target: str = ""
    """The path and its parameters, as they were sent."""


Access = Literal["public", "open", "private"]


@attrs.frozen
class Route:
    """The function that answers a method of a path."""

    run: Callable[[ControlCall], Awaitable[Answer | Encoded]]
    """The function; it may raise RequestRefused."""
    takes_body: bool = False
    seconds: float = 0.0
    """More time for an answer; then the answer says that it took too long."""
    access: Access = "open"
    """public: anybody reads it, without a token, under any host name; open: it takes the token, if
    there is one; private: it takes a cookie or a token also where there is no token, because it
    shows what was recorded."""


_Visitors = dict[trio.CancelScope, bool]
"""The connections, the oldest first → True if it has made its request."""

Routes = Mapping[str, Mapping[str, Route]]
"""path → method → its route; {…} in a path stands for any text without a slash."""


@attrs.frozen(eq=False)
class ControlServer:
    """The routes of the server, and its access rules."""

    routes: Routes
    host: str
    """The name or address that the server was told to listen on."""
    token: str | None
    """The token that a request must carry; None: none, but no web page may send requests."""
    log: Logger
    browser: BrowserAccess | None = None
    """The access of browsers; None: a token alone lets in, if there is one."""
    connections_max: int = CONNECTIONS_MAX

    async def serve(self, listeners: Sequence[trio.abc.Listener[trio.SocketStream]]) -> None:
        """Serve until cancelled, then close the listeners."""
        visitors: _Visitors = {}
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(self._listen, listener, nursery, visitors)

    def route(self, request: h11.Request) -> tuple[Route, Sequence[str]]:
        """Return the route of a request, and the words in its path.

        Raises:
            RequestRefused: there is none, or the sender has no access.
        """
        method = request.method.decode()
        path = request.target.decode("latin-1").partition("?")[0]
        reads = method in ("GET", "HEAD")
        read = self.routes.get(path, {}).get("GET") if reads else None
        if read and read.access == "public":
            return read, ()
        known = self._check_sender(_headers(request), reads)
        allowed: dict[str, None] = {}
        for template, methods in self.routes.items():
            words = _match_path(template, path)
            if words is None:
                continue
            route = methods.get("GET" if method == "HEAD" else method)
            if route is not None:
                if route.access == "private" and self.browser is not None and not known:
                    why = "open the address that kproxy has printed last; each works once"
                    raise RequestRefused(401, why)
                return route, words
            allowed |= dict.fromkeys([*methods, *(["HEAD"] if "GET" in methods else [])])
        if allowed:
            methods_text = ", ".join(allowed)
            header = ("Allow", methods_text)
            raise RequestRefused(
                405, f"{path} takes {methods_text}, not {method}", headers=[header]
            )
        raise RequestRefused(404, f"there is no {path} here; there is {', '.join(self.routes)}")

    async def answer(self, route: Route, call: ControlCall, what: str) -> Answer | Encoded:
        """Answer a call; `what` names it in errors."""
        try:
            with trio.move_on_after(route.seconds or math.inf):
                return await route.run(call)
            return refusal(503, f"the answer took longer than {route.seconds:g} s: ask again")
        except RequestRefused as error:
            return error.answer
        except Exception as error:
            return refusal(500, self._log_defect(what, error))

    def _log_defect(self, what: str, error: Exception) -> str:
        text = f"{what} failed {defect(error)}"
        self.log(text)
        return text

    def _check_sender(self, headers: Mapping[str, str], reads: bool) -> bool:
        """Check that a sender may ask; return whether it has a cookie or the token."""
        self._check_origin(headers)
        origin = headers.get("origin")
        if self.browser is not None and self.browser.knows(headers.get("cookie", "")):
            if not reads and origin is None:
                raise RequestRefused(403, "a change with a cookie must name its Origin")
            return True
        if self.token is not None:
            given = headers.get("authorization", "").encode("latin-1")
            if hmac.compare_digest(given, b"Bearer " + self.token.encode()):
                return True
            why = "send the token in KPROXY_CONTROL_TOKEN as Authorization: Bearer TOKEN"
            raise RequestRefused(401, why, headers=[("WWW-Authenticate", "Bearer")])
        return False

    def _check_origin(self, headers: Mapping[str, str]) -> None:
        """Check what web pages cannot choose: the origin, and on a loopback address the host."""
        host = headers.get("host", "")
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            raise RequestRefused(403, f"pages of {origin} may not ask")
        if self.token is not None:
            return
        name = _host(host)
        if name not in ("localhost", self.host.lower()) and not _is_address(name):
            raise RequestRefused(403, f"host {name!r} is not ours: ask by address, or as localhost")

    # Connections

    async def _listen(
        self,
        listener: trio.abc.Listener[trio.SocketStream],
        nursery: trio.Nursery,
        visitors: _Visitors,
    ) -> None:
        async with listener:
            while True:
                try:
                    stream = await listener.accept()
                except OSError:  # no descriptor is left: the clients of the proxy have them all
                    await trio.sleep(_ACCEPT_AGAIN_SECONDS)
                    continue
                if len(visitors) >= self.connections_max:
                    _end_one(visitors)
                scope = trio.CancelScope(deadline=trio.current_time() + REQUEST_SECONDS)
                visitors[scope] = False
                nursery.start_soon(self._handle, stream, scope, visitors)

    async def _handle(
        self, stream: trio.SocketStream, scope: trio.CancelScope, visitors: _Visitors
    ) -> None:
        def on_request(seconds: float) -> None:
            scope.deadline += seconds
            if scope in visitors:
                visitors[scope] = True

        try:
            with scope:
                await self._converse(stream, on_request)
        except trio.BrokenResourceError:
            pass  # it has gone
        except Exception as error:
            self._log_defect("a request to the control address", error)
        finally:
            visitors.pop(scope, None)
            await trio.aclose_forcefully(stream)

    async def _converse(
        self, stream: trio.SocketStream, on_request: Callable[[float], None]
    ) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        with_body = True
        try:
            request = await _next_event(connection, stream)
            if not isinstance(request, h11.Request):  # the end, before any request
                return
            on_request(0)
            with_body = request.method != b"HEAD"
            answer = self._enter(request)
            if answer is None:
                answer = await self._answer(connection, stream, request, on_request)
        except h11.RemoteProtocolError as error:
            answer = refusal(error.error_status_hint, f"not HTTP: {error}")
        except RequestRefused as error:
            answer = error.answer
        if isinstance(answer, Encoded):
            head, end, _ = answer.data.partition(b"\r\n\r\n")
            await stream.send_all(answer.data if with_body else head + end)
        else:
            await stream.send_all(_encode(connection, answer, with_body))
        # Closing with unread bytes would reset the connection, and the answer might be lost.
        await stream.send_eof()
        left_bytes = _UNREAD_BYTES_MAX
        while left_bytes > 0 and (data := await stream.receive_some(left_bytes)):
            left_bytes -= len(data)

    def _enter(self, request: h11.Request) -> Answer | None:
        """Let a browser in that comes with the code."""
        path = request.target.decode("latin-1")
        if self.browser is None or not path.startswith(browser_access.PATH):
            return None
        self._check_origin(_headers(request))
        if request.method != b"GET":  # what looks at links does not use them up
            raise RequestRefused(405, "open this address in a browser", headers=[("Allow", "GET")])
        try:
            headers = self.browser.enter(path)
        except browser_access.CodeRefused as error:
            return Answer(403, f"{error}\n".encode(), "text/plain; charset=utf-8")
        return Answer(303, b"", headers=tuple(headers.items()))

    async def _answer(
        self,
        connection: h11.Connection,
        stream: trio.SocketStream,
        request: h11.Request,
        on_request: Callable[[float], None],
    ) -> Answer | Encoded:
        route, words = self.route(request)
        on_request(route.seconds)
        body = await _read_body(connection, stream, request) if route.takes_body else {}
        target = request.target.decode("latin-1")
        query = dict(parse_qsl(target.partition("?")[2], keep_blank_values=True))
        what = f"{request.method.decode()} {target}"
        return await self.answer(route, ControlCall(words, body, query, target), what)


def _headers(request: h11.Request) -> dict[str, str]:
    return {name.decode(): value.decode("latin-1") for name, value in request.headers}


async def _next_event(connection: h11.Connection, stream: trio.SocketStream) -> Any:
    while (event := connection.next_event()) is h11.NEED_DATA:
        if connection.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[])
            await stream.send_all(connection.send(go_on))
        connection.receive_data(await stream.receive_some(_RECEIVE_BYTES))
    return event


async def _read_body(
    connection: h11.Connection, stream: trio.SocketStream, request: h11.Request
) -> Mapping[str, Any]:
    """Read a request's body, a JSON object; return an empty one if there is none.

    Raises:
        RequestRefused: it is no JSON object, or too large.
    """
    headers = _headers(request)
    too_large = RequestRefused(413, f"a body has {BODY_BYTES_MAX} bytes at most")
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
        what = f"send the body as {_JSON}: curl --json, or -H 'Content-Type: {_JSON}'"
        raise RequestRefused(415, what)
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestRefused(400, f"the body is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise RequestRefused(422, "the body is not a JSON object")
    return found


def _match_path(template: str, path: str) -> Sequence[str] | None:
    """Return the words of a path for each {…} of its template; None if it does not match."""
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
    silent = (scope for scope, has_request in visitors.items() if not has_request)
    scope = next(silent, None) or next(iter(visitors))
    del visitors[scope]
    scope.cancel()


def _encode(connection: h11.Connection, answer: Answer, with_body: bool) -> bytes:
    headers = [
        ("Content-Type", answer.content_type),
        ("Content-Length", str(len(answer.body))),
        ("X-Content-Type-Options", "nosniff"),
        ("Cache-Control", "no-store"),
        ("Connection", "close"),
        *answer.headers,
    ]
    status = http.HTTPStatus(answer.status)
    head = h11.Response(status_code=status, reason=status.phrase, headers=headers)
    events = [head, *([h11.Data(answer.body)] if with_body else []), h11.EndOfMessage()]
    return b"".join(connection.send(event) for event in events)


def json_answer(value: Any, status: int = 200, headers: Sequence[tuple[str, str]] = ()) -> Answer:
    """Return an answer with a value, as one line of JSON."""
    return Answer(status, f"{json.dumps(value)}\n".encode("ascii"), headers=headers)


def refusal(
    status: int, text: str, key: str | None = None, headers: Sequence[tuple[str, str]] = ()
) -> Answer:
    """Return an error in one line; control characters of quoted input become `?`."""
    shown = text if len(text) <= _ERROR_CHARACTERS_MAX else f"{text[:_ERROR_CHARACTERS_MAX]} ..."
    body = {"error": "".join(each if each.isprintable() else "?" for each in shown)}
    return json_answer(body if key is None else body | {"key": key}, status, headers)


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
