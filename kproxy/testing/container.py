"""kproxy in a container, for testcontainers: a recording, or a real broker, behind kproxy.

::

    with KproxyContainer(IMAGE, recording="orders.mcap") as broker:
        app.run_once(bootstrap=broker.get_bootstrap_server())

Clients connect to each broker at a port of its own, which kproxy advertises: so the ports outside
are those inside, chosen here, one after the other: the bootstrap port, then one for each node id.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from pathlib import Path

import attrs
from testcontainers.core.container import DockerContainer
from testcontainers.core.wait_strategies import LogMessageWaitStrategy

from kproxy import recording as recordings

_NODE_IDS = range(10)
"""Node ids of a cluster that is not known yet."""
_INSIDE = "/recordings"
_PORT_MIN, _PORT_MAX = 20_000, 32_000
"""Below the ports that systems give to outgoing connections."""


@attrs.frozen
class Plan:
    """What the container runs, and its ports."""

    arguments: Sequence[str]
    ports: Sequence[int]
    """The bootstrap port first."""


def plan(source: Sequence[str], node_ids: Iterable[int], host: str, first_port: int) -> Plan:
    """Return the arguments of kproxy for a source (`replay FILE`, `run --bootstrap …`), with ports
    from `first_port` on, advertised as `host`."""
    ports = [first_port, *(first_port + 1 + node_id for node_id in sorted(set(node_ids)))]
    place = ["--listen", f"0.0.0.0:{first_port}", "--advertise", host]
    return Plan([*source, *place], ports)


def recorded_nodes(path: Path) -> set[int]:
    """Return the node ids of the brokers in a recording.

    Raises:
        RecordingError: the path is missing, or is no recording.
    """
    found = {exchange.node_id for exchange in recordings.read(path)}
    return {each for each in found if each is not None}


def free_ports(count: int) -> int:
    """Return the first of so many free ports in a row.

    Raises:
        OSError: there are none.
    """
    for first in range(_PORT_MIN, _PORT_MAX, count):
        if all(_is_free(first + offset) for offset in range(count)):
            return first
    raise OSError(f"there are no {count} free ports in a row")


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        try:
            one.bind(("", port))
        except OSError:
            return False
    return True


class KproxyContainer(DockerContainer):
    """kproxy in a container; a context manager, like all containers of testcontainers.

    Give either `recording`, a file that is replayed, or `broker`, HOST:PORT as the container
    reaches it. With a broker, `node_ids` are those of its cluster. `options` are further options of
    `kproxy replay` or `kproxy run`.

    Raises:
        ValueError: neither or both are given.
        RecordingError: the recording is missing, or is none.
    """

    def __init__(
        self,
        image: str,
        recording: Path | str | None = None,
        broker: str | None = None,
        node_ids: Iterable[int] = _NODE_IDS,
        options: Sequence[str] = (),
    ) -> None:
        super().__init__(image)
        if (recording is None) == (broker is None):
            raise ValueError("give either a recording or a broker")
        if recording is not None:
            path = Path(recording).resolve()
            node_ids = recorded_nodes(path)
            source = ["replay", f"{_INSIDE}/{path.name}", *options]
            self.with_volume_mapping(str(path.parent), _INSIDE, "ro")
        else:
            source = ["run", "--bootstrap", str(broker), "--no-record", *options]
        nodes = sorted(set(node_ids))
        first = free_ports(2 + max(nodes, default=0))
        self._plan = plan(source, nodes, self.get_container_host_ip(), first)
        self.with_command(list(self._plan.arguments))
        for port in self._plan.ports:
            self.with_bind_ports(port, port)
        self.waiting_for(LogMessageWaitStrategy(f":{first}"))

    def get_bootstrap_server(self) -> str:
        """Return HOST:PORT for the app."""
        return f"{self.get_container_host_ip()}:{self._plan.ports[0]}"
