"""kproxy in a container: what it runs and its ports; and, where Docker is, the container."""

from __future__ import annotations

import shutil
import socket
import subprocess
from typing import Any

import pytest

from kproxy import demo
from kproxy.commands.parser import command_parser
from kproxy.testing import KproxyContainer, container
from tests.bed import needs

DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"


def test_each_broker_has_a_port_of_its_own() -> None:
    assert container.recorded_nodes(DEMO) == [1, 2, 3]
    found = container.arguments(["replay", "demo.mcap"], "docker-host", [40, 41, 42], [1, 1001])
    options = command_parser("replay").parse_args(found[1:])
    assert options.listen == ("0.0.0.0", 40) and options.advertise == "docker-host"
    assert options.node_port == [(1, 41), (1001, 42)]


def test_ports_are_free_and_differ() -> None:
    ports = container.free_ports(20)
    assert len(set(ports)) == 20
    with socket.create_server(("127.0.0.1", ports[0])):
        assert ports[0] not in container.free_ports(20)


@pytest.mark.parametrize("given", [{}, {"recording": DEMO, "broker": "kafka:9092"}])
def test_it_takes_a_recording_or_a_broker(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="either a recording or a broker"):
        KproxyContainer("kproxy", **given)


def test_a_container_serves_a_recording() -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True).returncode:
        pytest.skip("this machine has no Docker engine")
    image = "kproxy:test"
    build = ["docker", "build", "-q", "-f", ".github/Dockerfile", "-t", image, "."]
    subprocess.run(build, cwd=needs.REPOSITORY, check=True)
    with KproxyContainer(image, recording=DEMO) as broker:
        assert demo.produce(broker.get_bootstrap_server()) == demo.RECORDS
