"""The options of the listeners, for all commands that clients connect to.

::

    --listen HOST:PORT, --advertise HOST, --node-port ID=PORT ─▶ listeners, advertised addresses
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from kproxy.commands import options as kinds
from kproxy.commands.options import UsageError, declare

if TYPE_CHECKING:
    from kproxy.proxy.actions import Address

DEFAULT = "127.0.0.1:19092"


def add_place_options(add: Callable[..., object]) -> None:
    """Add the options of the listeners; `add` adds an argument to a group."""
    declare(
        add,
        f"""
        --listen HOST:PORT  where clients connect (default {DEFAULT}, with a command any free
            ports); the broker with node id N is at PORT + 1 + N; port 0 takes any free ports
        --advertise HOST  host that clients are told to connect to (default: the one at which they
            reached us)
        --node-port ID=PORT …  port for the broker with this node id; may be repeated
        """,
        advertise=kinds.host,
        node_port=kinds.node_port,
    )


def listen_address(options: argparse.Namespace) -> Address:
    """Return the address of the bootstrap listener."""
    if options.listen is not None:
        return options.listen
    host, port = kinds.listen_address(DEFAULT)
    return host, port if options.command is None else 0


def node_ports(options: argparse.Namespace) -> dict[int, int]:
    """Return the ports given by the user: node id → port.

    Raises:
        UsageError: a node or a port is given twice.
    """
    _, listen_port = listen_address(options)
    ports: dict[int, int] = {}
    for node_id, port in options.node_port:
        if node_id in ports or port in (*ports.values(), listen_port):
            raise UsageError(f"--node-port {node_id}={port}: the node or the port is taken already")
        ports[node_id] = port
    return ports
