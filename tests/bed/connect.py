"""A worker of Kafka Connect at its work: a file source and a file sink, from start to end.

    lines of a file ─▶ source, with keys and headers ─▶ topic ─▶ sink ─▶ another file

`python -m tests.bed.connect BOOTSTRAP PREFIX FOLDER [CHANGE]` starts a distributed worker, which
keeps its configuration, offsets and status in topics that it reads back; makes the connectors
through its REST interface, waits until the lines are in the other file and all of it is RUNNING,
removes them, stops the worker, and prints the lines. A CHANGE does one thing otherwise.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.bed import jvm
from tests.bed.clients.orders import begin_empty
from tests.bed.waiting import free_ports, until

LINES = [f"line {number}" for number in range(20)]
_SECONDS = 60
_WORKER = """\
bootstrap.servers={bootstrap}
group.id={prefix}-connect
config.storage.topic={prefix}-configs
offset.storage.topic={prefix}-offsets
status.storage.topic={prefix}-status
config.storage.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
offset.storage.partitions=1
status.storage.partitions=1
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
plugin.discovery=service_load
listeners=http://127.0.0.1:{port}
"""


_KIND = "org.apache.kafka.connect.transforms."
_TRANSFORMS = {
    "hoist": {"type": f"{_KIND}HoistField$Value", "field": "line"},
    "wrong-key": {"type": f"{_KIND}ValueToKey", "fields": "line"},
    "key": {"type": f"{_KIND}ExtractField$Key", "field": "line"},
    "value": {"type": f"{_KIND}ExtractField$Value", "field": "line"},
    "header-missing": {"type": f"{_KIND}InsertHeader", "header": "trace", "value.literal": "here"},
}
"""Step → its settings; a change with the name of one leaves it out."""


def _source(prefix: str, folder: Path, change: str) -> dict[str, str]:
    """The settings of the source."""
    steps = {name: each for name, each in _TRANSFORMS.items() if name != change}
    steps.pop("key" if change == "wrong-key" else "", None)
    found = {
        f"transforms.{name}.{key}": one for name, each in steps.items() for key, one in each.items()
    }
    topic = f"{prefix}-{'other' if change == 'topic' else 'lines'}"
    return {**found, "transforms": ",".join(steps), "topic": topic, "file": f"{folder}/source.txt"}


def main(bootstrap: str, prefix: str, folder: Path, change: str = "") -> None:
    """Do it; AssertionError when something does not come in time."""
    patience = 10 if change == "topic" else _SECONDS
    begin_empty(bootstrap, prefix, {}, [f"{prefix}-connect", f"connect-{prefix}-sink"])
    folder.mkdir(parents=True, exist_ok=True)
    (port,) = free_ports(1)
    properties = folder / "worker.properties"
    properties.write_text(_WORKER.format(bootstrap=bootstrap, prefix=prefix, port=port))
    source, sink = folder / "source.txt", folder / "sink.txt"
    sink.unlink(missing_ok=True)
    lines = LINES[change == "drop" :]
    lines[1:1] = lines[:1] * (change == "double")
    source.write_text("".join(f"{line}\n" for line in lines))
    main = "org.apache.kafka.connect.cli.ConnectDistributed"
    command = jvm.java([jvm.connect_jars()], main, str(properties), heap="256m")
    url = f"http://127.0.0.1:{port}/connectors"
    with (folder / "worker.log").open("w") as log:
        worker = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        until(lambda: asked(url) == [], "the worker is there", _SECONDS)
        make(url, f"{prefix}-source", "FileStreamSource", _source(prefix, folder, change))
        named = {"topics": f"{prefix}-lines", "file": str(sink)}
        make(url, f"{prefix}-sink", "FileStreamSink", named)
        until(lambda: sink.exists() and sink.read_text() == source.read_text(), "lines", patience)
        until(lambda: states(url) == ["RUNNING"] * 4, "all of it is running", _SECONDS)
        for name in ("source", "sink"):
            asked(f"{url}/{prefix}-{name}", "DELETE")
        until(lambda: asked(url) == [], "the connectors are gone", _SECONDS)
        worker.terminate()
        worker.wait(_SECONDS)
    except BaseException:
        print((folder / "worker.log").read_text()[-6000:], file=sys.stderr)
        raise
    finally:
        worker.kill()
        worker.wait()
    print(sink.read_text(), end="")


def make(url: str, name: str, kind: str, config: dict[str, str]) -> None:
    """Make a connector with one task, as soon as the worker takes it."""
    body = {"name": name, "config": {"connector.class": kind, "tasks.max": "1", **config}}
    until(lambda: asked(url, "POST", body) is not None, f"{name} is made", _SECONDS)


def states(url: str) -> list[str]:
    """The states of all connectors and their tasks."""
    found = asked(f"{url}?expand=status") or {}
    each = [one["status"] for one in found.values()]
    return [part["state"] for one in each for part in (one["connector"], *one["tasks"])]


def asked(url: str, method: str = "GET", body: Any = None) -> Any:
    """What the worker answers; None while it does not, or is about to rebalance."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
            return json.loads(answer.read() or b"0")
    except urllib.error.HTTPError as error:
        if error.code in (404, 409, 500, 503):
            return None
        raise
    except OSError:
        return None


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), *sys.argv[4:])
