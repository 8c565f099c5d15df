"""Addresses, as people write them and as clients reach them."""

from __future__ import annotations


def address_text(host: str, port: int) -> str:
    """HOST:PORT as people write it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reachable(host: str) -> str:
    """A host that a client on this machine can connect to where we listen on all addresses."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
