"""`kproxy run --schema-registry`: the recording has the schemas of its records when it ends."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import cast

import pytest

from kproxy import recording
from kproxy.cli import main
from tests.bed import mock_cluster, proxies, schema_registry
from tests.bed.waiting import until
from tests.net.registry.recorded import framed, values

pytest.importorskip("authlib", reason="confluent-kafka's clients of a schema registry need it")
confluent_kafka = pytest.importorskip("confluent_kafka")
SCHEMA = {"title": "Order", "type": "object", "properties": {"customer": {"type": "string"}}}


def produce(bootstrap: str, registry: str, *customers: str) -> None:
    """Produce orders with confluent-kafka's serialiser, one request after the other."""
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.json_schema import JSONSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    context = SerializationContext("orders", MessageField.VALUE)
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    with SchemaRegistryClient({"url": registry}) as client:
        serializer = JSONSerializer(json.dumps(SCHEMA), client)
        for customer in customers:
            producer.produce("orders", value=serializer({"customer": customer}, context))
            assert not producer.flush(30)


def schemas_noted(path: Path) -> int:
    """The number of notes on schemas in a file, perhaps one that is written."""
    with recording.RecordingFile(path) as file:
        return sum(1 for _ in file.events("schema"))


def test_a_recording_reads_alone_when_the_registry_has_gone(tmp_path: Path) -> None:
    customers = ["ann", *(secrets.token_hex(20_000) for _ in range(10))]
    with mock_cluster.running() as brokers:
        with schema_registry.serving() as registry:
            given = "--schema-registry", registry.address, "--rotate", "64KiB,1h"
            with proxies.running(brokers, tmp_path, *given) as proxy:
                produce(proxy.bootstrap, registry.address, customers[0])
                path = proxy.recording
                until(lambda: schemas_noted(path), "the schema is in the recording")
                produce(proxy.bootstrap, registry.address, *customers[1:8])
                until(lambda: path.stat().st_size > 64 << 10, "the file is full")
                produce(proxy.bootstrap, registry.address, *customers[8:])
    assert registry.asked.count("GET /schemas/ids/1") == 1
    files = recording.recordings(tmp_path)
    assert len(files) > 1
    found = [each for path in files for each in values(path)]
    assert found == [{"customer": customer} for customer in customers]
    assert {schemas_noted(path) for path in files} == {1}, "each file has it, once"


def test_a_registry_that_does_not_answer_is_no_reason_to_stop(tmp_path: Path) -> None:
    with mock_cluster.running() as brokers, schema_registry.serving() as registry:
        given = "--schema-registry", "http://127.0.0.1:1"
        with proxies.running(brokers, tmp_path, *given) as proxy:
            produce(proxy.bootstrap, registry.address, "ann", "ben")
            proxy.says(r"schemas cannot be asked for, .*127\.0\.0\.1:1: Connection refused")
        assert "schemas not found: schema 1; " in proxy.log
        assert len(values(proxy.recording)) == 2
        assert main(["recover", str(proxy.recording), "--schemas", registry.address]) == 0
    assert values(proxy.recording) == [{"customer": "ann"}, {"customer": "ben"}]


def child(proxy: proxies.Proxy, module: str) -> int:
    """The process of a proxy that runs a module."""

    def find() -> int | None:
        for each in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                parent = (each / "stat").read_text().rpartition(")")[2].split()[1]
                command = (each / "cmdline").read_bytes().split(b"\0")
                if parent == str(proxy.process.pid) and module.encode() in command:
                    return int(each.name)
        return None

    return cast("int", until(find, f"{module} runs"))


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_signal_to_all_processes_leaves_time_for_schemas(tmp_path: Path) -> None:
    with mock_cluster.running() as brokers, schema_registry.serving() as registry:
        given = "--schema-registry", registry.address
        with proxies.running(brokers, tmp_path, *given) as proxy:
            collecting = child(proxy, "kproxy.net.registry.process")
            produce(proxy.bootstrap, registry.address, "ann")
            asked = registry.asked
            until(lambda: "GET /schemas/ids/1" in asked, "the registry is asked")
            os.kill(collecting, signal.SIGINT)
            os.kill(collecting, signal.SIGTERM)
    assert "failed" not in proxy.log
    assert values(proxy.recording) == [{"customer": "ann"}]


class Slow(BaseHTTPRequestHandler):
    """A registry that says after a while that it has nothing."""

    asked = threading.Event()
    released = threading.Event()

    def do_GET(self) -> None:
        self.asked.set()
        self.released.wait(3)
        self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_nobody_asks_a_slow_registry_for_a_proxy_that_was_killed(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Slow) as slow, mock_cluster.running() as brokers:
        thread = threading.Thread(target=slow.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        urls = ",".join([f"http://127.0.0.1:{slow.server_address[1]}"] * 20)
        with proxies.running(brokers, tmp_path, "--schema-registry", urls) as proxy:
            proxy.code = -signal.SIGKILL
            collecting = child(proxy, "kproxy.net.registry.process")
            producer = confluent_kafka.Producer(
                {"bootstrap.servers": proxy.bootstrap, "log_level": 0}
            )
            producer.produce("orders", value=framed(1))
            assert not producer.flush(30)
            assert Slow.asked.wait(30)
            proxy.process.kill()
            proxy.process.wait()
            until(lambda: not os.path.exists(f"/proc/{collecting}"), "it ends", 15)
        Slow.released.set()
        slow.shutdown()
        thread.join()


def test_schemas_need_a_recording(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    options = ["--schema-registry", str(tmp_path), "--no-record"]
    assert main(["run", "--bootstrap", "127.0.0.1:1", *options]) == 2
    assert "leave out --no-record" in capsys.readouterr().err
