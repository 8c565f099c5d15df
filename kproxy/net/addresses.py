"""Addresses, as people write them and as clients reach them.

HOST:PORT[,…] ─▶ host and port … ─▶ HOST:PORT
"""

from __future__ import annotations

import socket
from collections.abc import Sequence


def address_text(host: str, port: int) -> str:
    """Return HOST:PORT as people write it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reachable(host: str) -> str:
    """Return the host that clients on this machine connect to; for a wildcard, the loopback."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)


def listening_at(host: str, listening: Sequence[socket.socket]) -> str:
    """Return HOST:PORT of listeners, as people write it."""
    return address_text(host, listening[0].getsockname()[1])
