"""The access of a browser: a code in the address, once, for a cookie.

    http://127.0.0.1:9191/enter/CODE ─▶ Set-Cookie, and on to / ─▶ requests with the cookie

A browser cannot send a token when it navigates. So the address that is printed has a code; whoever
comes with it first gets the cookie, and addresses of the page that are shared have neither. Then
another code is given out, for another browser, or for this one when it has lost its cookie.

Invariants: a code is worth nothing once it was used. Scripts cannot read the cookie. The browser
sends it when somebody follows a link, and never with what a page of another site sends (SameSite).
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Mapping

import attrs

PATH = "/enter/"


class CodeRefused(Exception):
    """A path whose code lets nobody in; the text says why."""


def _new_code() -> str:
    return secrets.token_urlsafe(16)


@attrs.define(eq=False)
class BrowserAccess:
    """The code and the cookie of a server."""

    port: int
    """The server's port, which names the cookie: browsers send cookies of all ports of a host."""
    on_next: Callable[[str], None] = lambda path: None
    """Takes the path for the next browser, once one has come."""
    _code: str = attrs.field(factory=_new_code, init=False)
    _used: set[str] = attrs.field(factory=set, init=False)
    _secret: str = attrs.field(factory=lambda: secrets.token_urlsafe(32), init=False)

    @property
    def path(self) -> str:
        """The path with the code, for the next browser."""
        return f"{PATH}{self._code}"

    def enter(self, path: str) -> Mapping[str, str]:
        """Return the headers that let a browser in, if its path has the code.

        Raises: CodeRefused.
        """
        code = path.removeprefix(PATH)
        if not hmac.compare_digest(code.encode("utf-8", "replace"), self._code.encode()):
            why = "was used before" if code in self._used else "is not of this kproxy"
            raise CodeRefused(f"this address {why}: open the last one that kproxy has printed")
        self._used.add(code)
        self._code = _new_code()
        self.on_next(self.path)
        cookie = f"{self._name}={self._secret}; Path=/; HttpOnly; SameSite=Lax"
        return {"Location": "/", "Set-Cookie": cookie}

    def knows(self, cookies: str) -> bool:
        """Return whether the cookies of a request have ours."""
        wanted = f"{self._name}={self._secret}".encode()
        given = (each.strip().encode("utf-8", "replace") for each in cookies.split(";"))
        return any(hmac.compare_digest(each, wanted) for each in given)

    @property
    def _name(self) -> str:
        return f"kproxy-{self.port}"
