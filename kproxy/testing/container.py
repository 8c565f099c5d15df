"""kproxy in a container, for testcontainers: a recording, or a real broker, behind kproxy.

::

    with KproxyContainer(IMAGE, recording="orders.mcap") as broker:
        app.run_once(bootstrap=broker.get_bootstrap_server())

Clients connect to each broker at a port of its own, which kproxy advertises: so the ports outside
are those inside, chosen here for the bootstrap address and for each node id.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path

from testcontainers.core.container import DockerContainer
from testcontainers.core.wait_strategies import LogMessageWaitStrategy

from kproxy.replay.opening import Wanted, open_recorded

_NODE_IDS = range(10)
"""Node ids of a cluster that is not known yet."""
_INSIDE = "/recordings"


def arguments(
    source: Sequence[str], host: str, ports: Sequence[int], node_ids: Sequence[int]
) -> list[str]:
    """Return the arguments of kproxy for a source (`replay FILE`, `run --bootstrap …`), advertised
    as `host`; the first port is the bootstrap address, the others are of the node ids, in order."""
    first, *others = ports
    place = ["--listen", f"0.0.0.0:{first}", "--advertise", host]
    for node_id, port in zip(node_ids, others, strict=True):
        place += ["--node-port", f"{node_id}={port}"]
    return [*source, *place]


def recorded_nodes(path: Path) -> list[int]:
    """Return the node ids of the brokers that a recording serves.

    Raises:
        RecordingError: the path is missing, or is no recording.
    """
    return sorted(open_recorded([path], Wanted()).loaded.cluster.racks)


def free_ports(count: int) -> list[int]:
    """Return so many ports that are free now."""
    with contextlib.ExitStack() as stack:
        bound = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in bound:
            one.bind(("", 0))
        return [one.getsockname()[1] for one in bound]


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
        if (recording is None) == (broker is None):
            raise ValueError("give either a recording or a broker")
        super().__init__(image)
        if recording is not None:
            path = Path(recording).resolve()
            node_ids = recorded_nodes(path)
            source = ["replay", f"{_INSIDE}/{path.name}", *options]
            self.with_volume_mapping(str(path.parent), _INSIDE, "ro")
        else:
            source = ["run", "--bootstrap", str(broker), "--no-record", *options]
        nodes = sorted(set(node_ids))
        self._ports = free_ports(1 + len(nodes))
        host = self.get_container_host_ip()
        self.with_command(arguments(source, host, self._ports, nodes))
        for port in self._ports:
            self.with_bind_ports(port, port)
        self.waiting_for(LogMessageWaitStrategy(f":{self._ports[0]}"))

    def get_bootstrap_server(self) -> str:
        """Return HOST:PORT for the app."""
        return f"{self.get_container_host_ip()}:{self._ports[0]}"
