"""Addresses as people write them: HOST:PORT, and lists of them."""

from __future__ import annotations

import re

Address = tuple[str, int]
"""Host and port."""

_PORT_DEFAULT = 9092
_PORT_MAX = 65_535
_PRIVATE = re.compile(r"(?<=://).*|^.*@", re.DOTALL)
_QUERY = re.compile(r"[?#].*", re.DOTALL)


def parse_address(text: str, *, port_default: int | None = None, port_min: int = 1) -> Address:
    """Parse HOST:PORT, an IPv6 host in brackets.

    Raises:
        ValueError: it is none; the text says what is wrong.
    """
    text = text.strip()
    host, colon, port_text = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port_text = text, ""
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    if not host:
        raise ValueError(f"{_quoted(text)}: the host is missing; give HOST:PORT")
    if "/" in host or any(character.isspace() for character in host):
        raise ValueError(f"{_quoted(text)} is not HOST:PORT")
    if ":" in host and not bracketed:
        raise ValueError(f"{_quoted(text)}: write an IPv6 address in brackets, as in [::1]:9092")
    if port_text:
        return host, parse_port(port_text, port_min=port_min)
    if port_default is None or text.endswith(":"):
        raise ValueError(f"{_quoted(text)}: the port is missing; give HOST:PORT")
    return host, port_default


def parse_brokers(text: str) -> list[Address]:
    """Parse HOST:PORT[,…]; the default port is 9092.

    Raises:
        ValueError: one is no address.
    """
    parts = [part for part in text.split(",") if part.strip()]
    if not parts:
        raise ValueError(f"{_quoted(text)} names no address; give HOST:PORT")
    return [parse_address(part, port_default=_PORT_DEFAULT) for part in parts]


def parse_port(text: str, *, port_min: int = 1) -> int:
    """Parse a port.

    Raises:
        ValueError: it is none.
    """
    if not (text.isascii() and text.isdigit() and port_min <= int(text) <= _PORT_MAX):
        raise ValueError(f"{_quoted(text)} is not a port ({port_min} to {_PORT_MAX})")
    return int(text)


def _quoted(text: str) -> str:
    """Return what is no address, in quotes; without what stands where URLs have passwords and keys,
    since this goes into logs."""
    return repr(_QUERY.sub("?…", _PRIVATE.sub("…", text)))
