"""kproxy in a container: what it runs and its ports; and, where Docker is, the container."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from kproxy import recording
from kproxy.testing import container
from tests.bed import needs

DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"


def test_each_broker_has_the_port_that_kproxy_gives_it() -> None:
    nodes = container.recorded_nodes(DEMO)
    assert nodes == {each.node_id for each in recording.read(DEMO)} - {None}
    found = container.plan(["replay", "demo.mcap"], nodes, "docker-host", 20_000)
    assert list(found.ports) == [20_000, *(20_001 + node for node in sorted(nodes))]
    assert list(found.arguments) == [
        *("replay", "demo.mcap"),
        *("--listen", "0.0.0.0:20000", "--advertise", "docker-host"),
    ]


def test_ports_in_use_are_passed_over() -> None:
    import socket

    first = container.free_ports(3)
    with socket.create_server(("", first + 1)):
        assert container.free_ports(3) > first


def test_it_takes_a_recording_or_a_broker() -> None:
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "info"], capture_output=True).returncode
    ):
        pytest.skip("this machine has no Docker engine")
    from kproxy import demo
    from kproxy.testing import KproxyContainer

    image = "kproxy:test"
    build = ["docker", "build", "-q", "-f", ".github/Dockerfile", "-t", image, "."]
    subprocess.run(build, cwd=needs.REPOSITORY, check=True)
    with pytest.raises(ValueError, match="either"):
        KproxyContainer(image)
    with KproxyContainer(image, recording=DEMO) as broker:
        assert demo.produce(broker.get_bootstrap_server()) == demo.RECORDS
