"""The unit of systemd and the sidecar of Kubernetes in the manual are right."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from kproxy.commands import config
from kproxy.commands.keeping import keep_limits, rotation_within
from kproxy.commands.parser import command_parser
from kproxy.units import parse_bytes
from tests.bed.pages import MANUAL_PAGES
from tests.bed.proxies import KPROXY
from tests.bed.waiting import until
from tests.net.test_service import service

PAGES = {page.name: page for page in MANUAL_PAGES}
MIB = 1 << 20
KPROXY_ALONE_BYTES = 128 * MIB
"""More than kproxy takes that has nothing to do."""


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    (unit,) = PAGES["service"].blocks("ini")
    (command,) = re.findall(r"^ExecStart=\S*/kproxy (.*)", unit, re.MULTILINE)
    command_parser("run").parse_args(command.split()[1:])
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    path = tmp_path / "kproxy.service"
    path.write_text(unit.replace("/opt/kproxy/bin/kproxy", KPROXY))
    verify = ["systemd-analyze", "verify", "--man=no", str(path)]
    verified = subprocess.run(verify, capture_output=True, text=True, timeout=60)
    assert verified.returncode == 0, verified.stderr
    assert "kproxy.service" not in verified.stderr


def test_the_unit_lets_kproxy_write_what_the_file_of_options_wants(tmp_path: Path) -> None:
    """Where the home is read-only, as with DynamicUser and ProtectHome."""
    (unit,) = PAGES["service"].blocks("ini")
    (options,) = PAGES["service"].blocks("toml")
    path = tmp_path / "kproxy.toml"
    path.write_text(options)
    environment = " ".join(re.findall("^Environment=(.*)", unit, re.MULTILINE))
    words = environment.replace("/var/lib/kproxy", str(tmp_path)).split()
    given = dict(each.split("=") for each in words)
    typed = "--config", str(path), "--bootstrap", "127.0.0.1:9", "--listen", "127.0.0.1:0"
    run = KPROXY, "run", *typed, "--", "true"
    env = {"PATH": os.environ["PATH"], "HOME": "/proc", **given}
    done = subprocess.run(run, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "kproxy" / "ca.pem").exists()


@pytest.fixture
def pod() -> dict[str, Any]:
    (text,) = PAGES["containers"].blocks("yaml")
    return yaml.safe_load(text)["spec"]


def test_the_sidecar_asks_for_health_where_kproxy_tells_it(pod: dict[str, Any]) -> None:
    (sidecar,) = pod["initContainers"]
    options = config.parse(command_parser("run"), sidecar["args"][1:])
    host, port = options.health
    assert host == "0.0.0.0" and options.listen[0] == "127.0.0.1"
    asked = [
        sidecar[each]["httpGet"] for each in ("startupProbe", "livenessProbe", "readinessProbe")
    ]
    assert [each["path"] for each in asked] == ["/healthz", "/healthz", "/readyz"]
    assert {each["port"] for each in asked} == {port}
    assert sidecar["restartPolicy"] == "Always"
    assert options.control[0] == "0.0.0.0" and sidecar["envFrom"], "kproxy wants a token then"


def test_the_sidecar_fits_the_standard_restricted(pod: dict[str, Any]) -> None:
    (sidecar,) = pod["initContainers"]
    allowed = sidecar["securityContext"]
    assert allowed["runAsNonRoot"] and not allowed["allowPrivilegeEscalation"]
    assert allowed["capabilities"] == {"drop": ["ALL"]}
    assert allowed["seccompProfile"] == {"type": "RuntimeDefault"}


def test_the_bounds_of_the_sidecar_hold(pod: dict[str, Any]) -> None:
    (sidecar,) = pod["initContainers"]
    options = config.parse(command_parser("run"), sidecar["args"][1:])
    limits, _ = keep_limits(options)
    rotation_within(options.rotate, limits)
    assert limits is not None and limits.size_bytes
    (volume,) = [each for each in pod["volumes"] if each["name"] == "recordings"]
    room = kubernetes_bytes(volume["emptyDir"]["sizeLimit"])
    assert room > limits.size_bytes * 1.1 + 64 * MIB
    memory = kubernetes_bytes(sidecar["resources"]["limits"]["memory"])
    assert memory >= KPROXY_ALONE_BYTES + options.backlog_bytes_max + options.held_bytes_max
    assert kubernetes_bytes(sidecar["resources"]["requests"]["memory"]) <= memory


def test_the_sidecar_answers_its_probes_and_ends_in_time(
    pod: dict[str, Any], mock_brokers: str, tmp_path: Path
) -> None:
    (sidecar,) = pod["initContainers"]
    given = [re.sub(r"(0\.0\.0\.0|127\.0\.0\.1):\d+$", r"\1:0", each) for each in sidecar["args"]]
    given = [each.replace("kafka:9092", mock_brokers) for each in given]
    home = {"HOME": "/proc", "KPROXY_CONTROL_TOKEN": "t"}
    with service(tmp_path, *given, cwd=tmp_path, **home) as kproxy:

        def asked(probe: str) -> int | None:
            found = re.search(r"health: (http://\S+)/readyz", kproxy.log_path.read_text())
            with contextlib.suppress(OSError):
                url = (found[1] if found else "") + sidecar[probe]["httpGet"]["path"]
                return found and urllib.request.urlopen(url, timeout=5).status
            return None

        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            until(lambda probe=probe: asked(probe) == 200, probe, sidecar_starts_s(sidecar))
        ends = time.monotonic()
    assert time.monotonic() - ends < pod.get("terminationGracePeriodSeconds", 30)
    assert [*(tmp_path / "recordings" / "captures").glob("*.mcap")], "below what is mounted"


def sidecar_starts_s(sidecar: dict[str, Any]) -> int:
    """How long it may take to start, in seconds."""
    return sidecar["startupProbe"]["periodSeconds"] * sidecar["startupProbe"]["failureThreshold"]


def kubernetes_bytes(text: str) -> int:
    return parse_bytes(f"{text}B")
