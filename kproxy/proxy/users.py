"""The user that a client names when it logs in: what of a token is no secret.

::

    PLAIN          authzid NUL user NUL password
    SCRAM          n,[a=authzid],n=user,r=nonce[,extensions]       its first token
    OAUTHBEARER    n,[a=authzid], ^A auth=Bearer JWT ^A ^A         `sub` of the JWT

Whether the name is true the broker says. A token of another form names nobody, nor does another
mechanism, nor a delegation token, whose id takes the place of a user and is half of a password.
"""

from __future__ import annotations

import base64
import json
import re

from kproxy.printable import printable

USER_CHARACTERS_MAX = 256
_SCRAM_FIRST = re.compile(rb"n,(?:a=[^,]*)?,n=([^,]+),r=[^,]+(.*)", re.DOTALL)


def user_in(mechanism: str, token: bytes) -> str:
    """Return the user that the first token of a login names, printable; "" if it names none."""
    read = _READERS.get(mechanism)
    try:
        return shortened(read(token)) if read else ""
    except (ValueError, RecursionError):  # no UTF-8, no base64, no JSON
        return ""


def shortened(user: str) -> str:
    """Return the name of a user as it is recorded: printable, and of a bounded length."""
    user = printable(user)
    return user if len(user) <= USER_CHARACTERS_MAX else user[: USER_CHARACTERS_MAX - 1] + "…"


def _plain(token: bytes) -> str:
    _, user, _ = token.split(b"\0")
    return user.decode()


def _scram(token: bytes) -> str:
    found = _SCRAM_FIRST.fullmatch(token)
    if found is None or b"tokenauth" in found[2].lower():
        return ""
    return found[1].decode().replace("=2C", ",").replace("=3D", "=")


def _bearer(token: bytes) -> str:
    (given,) = (each for each in token.split(b"\x01")[1:] if each.startswith(b"auth="))
    _, claims, _ = given.split(b".")
    found = json.loads(base64.urlsafe_b64decode(claims + b"=="))
    user = found.get("sub") if isinstance(found, dict) else None
    return user if isinstance(user, str) else ""


_READERS = {
    "PLAIN": _plain,
    "SCRAM-SHA-256": _scram,
    "SCRAM-SHA-512": _scram,
    "OAUTHBEARER": _bearer,
}
"""Mechanism → the function that reads the user.

Raises: ValueError, RecursionError."""
