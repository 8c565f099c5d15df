"""The options of where kproxy stands: for every command that has clients connect to it.

::

    --listen HOST:PORT, --advertise HOST, --node-port ID=PORT ─▶ listeners, what clients are told
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from kproxy.commands import options as kinds
from kproxy.commands.options import UsageError


def add_place_options(add: Callable[..., object]) -> None:
    """Say what may be typed about where it stands; `add` adds an argument to a group."""
    add(
        "--listen",
        metavar="HOST:PORT",
        type=kinds.listen_address,
        default="127.0.0.1:19092",
        help="where clients connect (default %(default)s); the broker with node id N is at"
        " PORT + 1 + N; port 0 takes any free ports",
    )
    add(
        "--advertise",
        metavar="HOST",
        type=kinds.host,
        help="host that clients are told to connect to (default: the one at which they reached us)",
    )
    add(
        "--node-port",
        metavar="ID=PORT",
        type=kinds.node_port,
        action="append",
        default=[],
        help="port for the broker with this node id; may be repeated",
    )


def node_ports(options: argparse.Namespace) -> dict[int, int]:
    """Return the ports that the user has fixed, by node id.

    Raises:
        UsageError: a node or a port is given twice.
    """
    _, listen_port = options.listen
    ports: dict[int, int] = {}
    for node_id, port in options.node_port:
        if node_id in ports or port in (*ports.values(), listen_port):
            raise UsageError(f"--node-port {node_id}={port}: the node or the port is taken already")
        ports[node_id] = port
    return ports
