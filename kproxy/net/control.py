"""The control server: HTTP for whoever runs the proxy, never for its clients.

::

    accept, a few at once ─▶ h11 ─▶ who asks? token, Host, Origin ─▶ route ─▶ one answer, and close

Invariants: what is asked costs little and bounded memory (a request's head is limited, its body is
never read), and little and bounded time (`REQUEST_SECONDS` for all of it), whoever asks. Nobody
waits for others: of too many connections the one ends that has kept silent for longest. Nothing
here touches a connection of the proxy.

Who may ask: with a token, whoever sends it (`Authorization: Bearer TOKEN`). Without one the server
listens on the loopback address only (`serve` sees to that), where web pages are the danger: a
browser on this machine can be made to ask. So what a page of another origin asks is refused, and so
is what comes by a foreign host name, which is how DNS rebinding comes.
"""

from __future__ import annotations

import hmac
import http
import ipaddress
from collections.abc import Callable, Mapping, Sequence

import attrs
import h11
import trio

CONNECTIONS_MAX = 8
"""Open at once; for one more the oldest ends that has not made its request yet."""
HEAD_BYTES_MAX = 16 << 10
"""Of a request: its first line and headers."""
REQUEST_SECONDS = 5.0
"""For a request to arrive and its answer to be taken."""
_RECEIVE_BYTES = 4096
_LEFT_BYTES_MAX = 256 << 10
_ACCEPT_AGAIN_SECONDS = 0.1
_SAID_CHARACTERS_MAX = 200
_TEXT = "text/plain; charset=utf-8"


@attrs.frozen
class Answer:
    """What a request is answered with."""

    status: int
    body: bytes
    content_type: str = _TEXT
    headers: Sequence[tuple[str, str]] = ()


_Visitors = dict[trio.CancelScope, bool]
"""The connections, the oldest first: has it made its request?"""

Routes = Mapping[str, Mapping[str, Callable[[], Answer]]]
"""path → method → what answers it."""


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

    def answer(self, request: h11.Request) -> Answer:
        """Answer one request; the body of the answer to a HEAD is the one that GET would give."""
        headers = {name.decode(): value.decode("latin-1") for name, value in request.headers}
        refusal = self._refusal(headers)
        if refusal is not None:
            return refusal
        path = request.target.decode("latin-1").partition("?")[0]
        methods = self.routes.get(path)
        if methods is None:
            return _said(404, f"there is no {path} here; there is {', '.join(self.routes)}")
        asked = request.method.decode()
        method = methods.get("GET" if asked == "HEAD" else asked)
        if method is None:
            allowed = ", ".join([*methods, *(["HEAD"] if "GET" in methods else [])])
            return _said(405, f"{path} takes {allowed}, not {asked}", ("Allow", allowed))
        try:
            return method()
        except Exception as error:
            return _said(500, self._defect(f"{asked} {path}", error))

    def _defect(self, what: str, error: Exception) -> str:
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        text = f"{what} failed by a defect in kproxy, please report it: {why}"
        self.log(text)
        return text

    def _refusal(self, headers: Mapping[str, str]) -> Answer | None:
        host = headers.get("host", "")
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            return _said(403, f"pages of {origin} may not ask")
        if self.token is not None:
            given = headers.get("authorization", "").encode("latin-1")
            if hmac.compare_digest(given, b"Bearer " + self.token.encode()):
                return None
            why = "send the token in KPROXY_CONTROL_TOKEN as Authorization: Bearer TOKEN"
            return _said(401, why, ("WWW-Authenticate", "Bearer"))
        name = _host(host)
        if name in ("localhost", self.host.lower()) or _is_address(name):
            return None
        return _said(403, f"host {name!r} is not ours: ask by address, or as localhost")

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
        try:
            while (request := connection.next_event()) is h11.NEED_DATA:
                connection.receive_data(await stream.receive_some(_RECEIVE_BYTES))
            if not isinstance(request, h11.Request):  # the end, before any request
                return
            heard()
            answer = self.answer(request)
            with_body = request.method != b"HEAD"
        except h11.RemoteProtocolError as error:
            answer, with_body = _said(error.error_status_hint, f"not HTTP: {error}"), True
        await stream.send_all(_encoded(connection, answer, with_body))
        # Closing with something unread would reset the connection, and the answer might be lost.
        await stream.send_eof()
        left = _LEFT_BYTES_MAX
        while left > 0 and (data := await stream.receive_some(left)):
            left -= len(data)


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


def _said(status: int, text: str, *headers: tuple[str, str]) -> Answer:
    """One line, which may quote what was asked: it cannot end the line or hide anything."""
    shown = text if len(text) <= _SAID_CHARACTERS_MAX else f"{text[:_SAID_CHARACTERS_MAX]} ..."
    line = shown.encode("ascii", "backslashreplace").decode()
    printable = "".join(each if each.isprintable() else "?" for each in line)
    return Answer(status, f"kproxy: {printable}\n".encode(), headers=headers)


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
