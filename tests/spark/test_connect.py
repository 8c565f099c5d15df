"""Spark Connect: what kproxy does in a session, it does over a connection to a server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kproxy import recording
from tests.bed import needs
from tests.bed.waiting import free_ports
from tests.spark.conftest import DEMO
from tests.versions import ALL

_CLIENT = Path(__file__).with_name("connect_client.py")

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(not ALL, reason="a quarter of a minute; KPROXY_TEST_ALL=1"),
]


@pytest.fixture
def server(spark: Any) -> Iterator[str]:
    """A server of Spark Connect in the JVM of the session."""
    pytest.importorskip("grpc_status", reason="pip install 'pyspark[connect]'")
    (port,) = free_ports(1)
    context, jvm = spark._jsc.sc(), spark._jvm
    context.conf().set("spark.connect.grpc.binding.port", str(port))
    service = jvm.org.apache.spark.sql.connect.service.SparkConnectService
    service.start(context)
    yield f"sc://127.0.0.1:{port}"
    nothing = jvm.scala.Option.empty()
    service.stop(nothing, nothing)


def test_a_client_of_a_server_reads_and_makes_the_same(server: str, tmp_path: Path) -> None:
    # It needs no Java of its own.
    environment = os.environ | {"PYTHONPATH": str(needs.REPOSITORY), "JAVA_HOME": "/nowhere"}
    done = subprocess.run(
        [sys.executable, _CLIENT, server, DEMO, tmp_path], env=environment,
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    fetches = [[each.number, each.topics] for each in recording.read(DEMO, "api:Fetch")]
    assert found["count"] == len(list(recording.read(DEMO)))
    assert found["batch"] == found["stream"] == sorted(fetches)
    assert found["mistake"].startswith("filter 'apy:Fetch': column 1: there is no key 'apy'")
    assert found["made"]["exchanges"] == found["count"] and found["made"]["latency"] > 0
    assert list(found["tables"].values()) == [found["made"]] * 2
