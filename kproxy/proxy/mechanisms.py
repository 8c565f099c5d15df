"""SASL mechanisms, a row each, and the user that a client names when it logs in: what of a token is
no secret.

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
from collections.abc import Callable

import attrs

from kproxy.printable import printable

USER_CHARACTERS_MAX = 256
_SCRAM_FIRST = re.compile(rb"n,(?:a=[^,]*)?,n=([^,]+),r=[^,]+(.*)", re.DOTALL)


def user_in(mechanism: str, token: bytes) -> str:
    """Return the user that the first token of a login names, printable; "" if it names none."""
    read = mechanism_of(mechanism).user
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


@attrs.frozen
class Mechanism:
    """A SASL mechanism."""

    user: Callable[[bytes], str] | None = None
    """Reads the user of a login's first token. Raises: ValueError, RecursionError."""
    tokens_min: int = 0
    """The least number of tokens that a client sends, which is that of a login that succeeds; 0:
    nobody knows."""
    hash_name: str = ""
    """The hash of SCRAM."""
    takes: str = ""
    """What kproxy itself logs in with: "password" or "token"; "": it does not speak this."""
    module: str = ""
    """The module that kproxy needs for that …"""
    extra: str = ""
    """… and the extra that has it."""
    wrong: str = "user or password is wrong"
    """What may be wrong where a broker refuses it."""
    bound_to_host: str = ""
    """What becomes of it behind a proxy, as it names the host."""


MECHANISMS = {
    "PLAIN": Mechanism(_plain, 1, takes="password"),
    "SCRAM-SHA-256": Mechanism(_scram, 2, "sha256", "password", "scramp", "tls"),
    "SCRAM-SHA-512": Mechanism(_scram, 2, "sha512", "password", "scramp", "tls"),
    "OAUTHBEARER": Mechanism(
        _bearer, 1, takes="token",
        wrong="the token has expired, or is not one that the broker takes",
    ),
    "AWS_MSK_IAM": Mechanism(
        takes="token", module="aws_msk_iam_sasl_signer", extra="msk",
        wrong="it signed kproxy's host instead of the broker's",
        bound_to_host="it signs the host that it connects to, which is kproxy's, and the broker"
        " refuses that: have kproxy log in instead (--authenticate), or use SCRAM",
    ),
    "GSSAPI": Mechanism(
        wrong="its ticket is for kproxy's host instead of the broker's",
        bound_to_host="its ticket is for the Kerberos service at the host that it connects to,"
        " which is kproxy's: the broker takes it only if its keytab has that principal",
    ),
    **dict.fromkeys(
        ("ANONYMOUS", "CRAM-MD5", "DELEGATION_TOKEN", "DIGEST-MD5", "EXTERNAL", "SCRAM-SHA-1"),
        Mechanism(),
    ),
}  # fmt: skip
SCRAM = tuple(name for name, each in MECHANISMS.items() if each.hash_name)
_SPELLED = frozenset(re.sub("[-_]", "", name).encode() for name in MECHANISMS)


def mechanism_of(name: str) -> Mechanism:
    """Return the row of a mechanism; of which there is none, one that says nothing."""
    return MECHANISMS.get(name, Mechanism())


def is_mechanism(name: bytes) -> bool:
    """Return whether this names a SASL mechanism, however it is spelled: `scram_sha256`, too."""
    return name.upper().translate(None, b"-_ ") in _SPELLED
