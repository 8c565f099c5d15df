"""How a browser gets in: a code in the address, once, for a cookie.

    http://127.0.0.1:9191/enter/CODE ─▶ Set-Cookie, and on to / ─▶ requests with the cookie

A browser cannot send a token when it navigates. So the address that is printed has a code; whoever
comes with it first gets the cookie, and addresses of the page that are shared have neither.

Invariants: the code is worth nothing once it was used. Scripts cannot read the cookie. The browser
sends it when somebody follows a link, and never with what a page of another site sends (SameSite).
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping

import attrs

PATH = "/enter/"


@attrs.define(eq=False)
class BrowserAccess:
    """The one code and the one cookie of a server."""

    port: int
    """Of the server: browsers send cookies of all ports of a host."""
    _code: str | None = attrs.field(factory=lambda: secrets.token_urlsafe(16), init=False)
    _secret: str = attrs.field(factory=lambda: secrets.token_urlsafe(32), init=False)

    @property
    def path(self) -> str:
        """The path with the code; as it was, after the code was used."""
        return f"{PATH}{self._code or ''}"

    def enter(self, path: str) -> Mapping[str, str] | None:
        """Return the headers that let a browser in, if its path has the code."""
        code = path.removeprefix(PATH).encode("utf-8", "replace")
        if self._code is None or not hmac.compare_digest(code, self._code.encode()):
            return None
        self._code = None
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
