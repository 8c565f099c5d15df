"""Finds what looks like a secret in bytes: passwords, tokens, keys.

    bytes ─▶ find ─▶ Secret(kind, start, end) …

Few false alarms matter more than the last secret: a name such as `password` must stand right before
its value, a value must look like one (no placeholder, no number, no flag), and well-known tokens
have their issuer's prefix. What is found is never given out whole: `hint` shows a few characters.
Every repetition in a pattern has a limit, or hostile bytes would take it quadratic time.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator

import attrs


@attrs.frozen
class Secret:
    """A place where bytes look like a secret."""

    kind: str
    start: int
    end: int


def find(data: bytes) -> list[Secret]:
    """Return the secrets in some bytes, in order; overlapping ones count as one."""
    found: list[Secret] = []
    folded = data.lower()
    for kind, clues, pattern, plausible in _PATTERNS:
        for clue in clues:
            if clue in folded:
                break
        else:
            continue
        for match in pattern.finditer(data):
            group = "secret" if "secret" in pattern.groupindex else 0
            if plausible is None or plausible(match[group]):
                found.append(Secret(kind, *match.span(group)))
    return list(_apart(sorted(found, key=lambda secret: (secret.start, -secret.end))))


def find_named(name: bytes, value: bytes) -> list[Secret]:
    """Return the secrets in a value that has a name, like a record's header."""
    head = name + b": "
    found = find(head + value)
    shifted = (attrs.evolve(s, start=s.start - len(head), end=s.end - len(head)) for s in found)
    return [secret for secret in shifted if secret.start >= 0]


def hint(secret: bytes) -> str:
    """Return a few characters of a secret: enough to recognise it, too few to use it."""
    shown = secret[: min(4, len(secret) // 4)].decode("ascii", "replace")
    return f"{shown}… ({len(secret)} characters)"


def _apart(secrets: list[Secret]) -> Iterator[Secret]:
    end = -1
    for secret in secrets:
        if secret.start >= end:
            yield secret
            end = secret.end


_PLACEHOLDER = re.compile(
    rb"[*.xX#-]+|\$.*|%.*|<.*|\{.*|\[.*|null|none|nil|undefined|true|false|yes|no"
    rb"|(your|my|the)?[-_ ]?(password|passwd|secret|token|key|value)"
    rb"|redacted|hidden|masked|removed|example|changeme|required|optional|[\d.,:TZ+-]*",
    re.IGNORECASE,
)


def _is_value(value: bytes) -> bool:
    """Return whether this may be a password: no placeholder, number, time or flag, and
    printable."""
    return _PLACEHOLDER.fullmatch(value) is None and value.isascii()


def _is_random(value: bytes) -> bool:
    """Return whether this looks generated: letters and digits, hardly repeated."""
    mixed = any(48 <= byte <= 57 for byte in value) and any(byte > 64 for byte in value)
    return mixed and len(set(value)) >= min(10, len(value) // 2) and _is_value(value)


def _is_basic(value: bytes) -> bool:
    """Return whether this is user:password in base64."""
    try:
        plain = base64.b64decode(value + b"=" * (-len(value) % 4), validate=True)
    except ValueError:
        return False
    user, colon, password = plain.partition(b":")
    return bool(user and colon and password) and plain.isascii() and plain.decode().isprintable()


_PROSE = rb"(?![a-z]{1,30} [a-z]{1,30}[\s.,!?\"'\\])"
_VALUE = (
    rb"""\\?["']?\s{0,4}(?:=>|[:=])\s{0,4}\\?["']?"""
    + _PROSE
    + rb"""(?P<secret>[^\s"'\\,;&<>{}\0-\x1f]{4,256})"""
)
"""The rest of a match after a secret's name: a separator, and the secret, perhaps in quotes."""
_PASSWORD_NAME = (
    rb"(?:password|passwd|passphrase|pwd|client[_.-]?secret|secret[_.-]?(?:access[_.-]?)?key"
    rb"|shared[_.-]?access[_.-]?key|account[_.-]?key|encryption[_.-]?key|private[_.-]?key"
    rb"|api[_.-]?key|apikey|app[_.-]?secret|secret)"
)
_TOKEN_NAME = rb"(?:(?:access|auth|refresh|id|api|sas|bearer|session)[_.-]?token|\bsig)"

_PATTERNS: list[
    tuple[str, tuple[bytes, ...], re.Pattern[bytes], Callable[[bytes], bool] | None]
] = [
    (
        "private key",
        (b"private key-----",),
        re.compile(rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----[^-]*"),
        None,
    ),
    (
        "JWT",
        (b"eyj",),
        re.compile(rb"\beyJ[\w-]{8,4096}\.eyJ[\w-]{8,4096}\.[\w-]{10,1024}"),
        None,
    ),
    (
        "token",
        tuple(
            b"akia asia ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- xox aiza".split()
            + b"k_live_ npm_ sg. hvs.".split()
        ),
        re.compile(
            rb"\b(?:(?:AKIA|ASIA)[A-Z0-9]{16}|gh[pousr]_\w{36,255}|github_pat_\w{22,255}"
            rb"|glpat-[\w-]{20,99}|xox[baprs]-[\w-]{10,99}|AIza[\w-]{35}|[sr]k_live_\w{16,255}"
            rb"|npm_\w{36}|SG\.[\w-]{16,99}\.[\w-]{16,99}|hvs\.[\w-]{24,255})\b"
        ),
        None,
    ),
    (
        "bearer token",
        (b"bearer",),
        re.compile(rb"\bbearer\s{1,4}(?P<secret>[\w.~+/-]{16,4096}={0,2})", re.IGNORECASE),
        _is_random,
    ),
    (
        "user and password",
        (b"basic",),
        re.compile(rb"\bbasic\s{1,4}(?P<secret>[A-Za-z0-9+/]{8,1024}={0,2})", re.IGNORECASE),
        _is_basic,
    ),
    (
        "password in a URL",
        (b"://",),
        re.compile(
            rb"\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@\"'\\]{0,256}:(?P<secret>[^\s/@\"'\\]{1,256})@"
        ),
        _is_value,
    ),
    (
        "password",
        (b"passw", b"passphrase", b"pwd", b"secret", b"key"),
        re.compile(_PASSWORD_NAME + _VALUE, re.IGNORECASE),
        _is_value,
    ),
    (
        "token",
        (b"token", b"sig"),
        re.compile(_TOKEN_NAME + _VALUE.replace(b"{4,256}", b"{16,4096}"), re.IGNORECASE),
        _is_random,
    ),
]
"""Kind, clues in lower case, without any of which the pattern need not be tried, the pattern, and a
check of its matches."""
