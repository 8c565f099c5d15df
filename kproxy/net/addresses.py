"""Addresses, as people write them and as clients reach them."""

from __future__ import annotations

from collections.abc import Sequence

import trio


def address_text(host: str, port: int) -> str:
    """HOST:PORT as people write it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reachable(host: str) -> str:
    """A host that a client on this machine can connect to where we listen on all addresses."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)


def listening_at(host: str, listening: Sequence[trio.SocketListener]) -> str:
    """HOST:PORT of listeners, as people write it."""
    return address_text(host, listening[0].socket.getsockname()[1])
