"""kproxy as a service: what it tells its manager, and what SIGHUP does to it."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from kproxy.recording import entries, verify
from tests.bed import certificates
from tests.bed.proxies import KPROXY
from tests.bed.waiting import until

FAULT = '[[fault]]\nname = "slow"\napi = "Fetch"\nlatency = "{}ms"\n'
START = "--bootstrap", "127.0.0.1:9", "--listen", "127.0.0.1:0"


@attrs.define(eq=False)
class Service:
    """A process that was started as a service is: without a terminal."""

    process: subprocess.Popen[str]
    port: int
    log_path: Path

    def metrics_url(self) -> str:
        """Where the log says that metrics are, which may be after kproxy listens."""

        def told() -> str:
            found = re.search(r"metrics: (http://.*)/metrics\n", self.log_path.read_text())
            return found[1] if found else ""

        return str(until(told, "where metrics are"))

    def hang_up(self, said: str) -> None:
        """Send SIGHUP, and wait until the log has one more line like this."""
        before = len(re.findall(said, self.log_path.read_text()))
        self.process.send_signal(signal.SIGHUP)
        until(lambda: len(re.findall(said, self.log_path.read_text())) > before, said)


@pytest.fixture(autouse=True)
def _hears_hang_ups() -> Iterator[None]:
    """Tests that were begun with nohup hear of them, too."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@contextlib.contextmanager
def service(
    folder: Path, *options: str, cwd: Path | None = None, **environment: str
) -> Iterator[Service]:
    """Run `kproxy run`, which must end well at SIGTERM."""
    log = folder / "log"
    with log.open("w") as err:
        process = subprocess.Popen(
            [KPROXY, *options],
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
            start_new_session=True,
            cwd=cwd,
            env=os.environ | environment,
        )
    assert process.stdout
    try:
        yield Service(process, int(process.stdout.readline().rpartition(":")[2]), log)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("is_abstract", [False, True])
def test_the_manager_is_told_when_it_is_ready_reloads_lives_and_ends(
    tmp_path: Path, is_abstract: bool
) -> None:
    rules = tmp_path / "faults.toml"
    rules.write_text(FAULT.format(1))
    name = f"@kproxy-test-{os.getpid()}" if is_abstract else str(tmp_path / "notify")
    environment = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "100000"}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name.replace("@", "\0"))
        manager.settimeout(20)

        def told(what: str) -> str:
            while not (said := manager.recv(1000).decode()).startswith(what):
                assert said == "WATCHDOG=1"
            return said

        began = time.monotonic_ns()
        run = "run", *START, "--no-record", "--faults", str(rules)
        with service(tmp_path, *run, **environment) as kproxy:
            told("READY=1")
            told("WATCHDOG=1")
            kproxy.hang_up("fault rules have not changed: 1 in use")
            reloading = told("RELOADING=1\nMONOTONIC_USEC=")
            assert began < int(reloading.rpartition("=")[2]) * 1000 < time.monotonic_ns()
            told("READY=1")
            told("WATCHDOG=1")
        told("STOPPING=1")


@pytest.mark.parametrize("option", ["--faults", "--config"])
@pytest.mark.parametrize("command", ["run", "replay"])
def test_rules_are_read_again_and_wrong_ones_leave_those_from_before(
    tmp_path: Path, option: str, command: str
) -> None:
    rules, recorded = tmp_path / "rules.toml", tmp_path / "r.mcap"
    rules.write_text(FAULT.format(1))
    where = [*START, "--record", str(recorded)] if command == "run" else [*START[2:], DEMO]
    typed = command, *where, "--control", "127.0.0.1:0", option, str(rules)
    with service(tmp_path, *typed) as kproxy:

        def active() -> str:
            url = kproxy.metrics_url()
            with urllib.request.urlopen(f"{url}/faults", timeout=10) as answer:
                return " ".join(re.findall(r'"latency": "(\w+)"', answer.read().decode()))

        assert active() == "1ms"
        rules.write_text(FAULT.format(2) + FAULT.format(3).replace("slow", "slower"))
        kproxy.hang_up("fault rules are loaded again: 2 in use")
        assert active() == "2ms 3ms"
        rules.write_text(FAULT.format("x"))
        kproxy.hang_up(r"the fault rules from before stay in use: .*rules.toml:4: latency: ")
        rules.unlink()
        kproxy.hang_up(r"the fault rules from before stay in use: .*No such file or directory")
        assert active() == "2ms 3ms"
    if command == "run":
        notes = [each.body for each in entries(recorded) if getattr(each, "body", None)]
        noted = [each["rules"] for each in notes if each["event"] == "fault_rules"]
        assert [[rule["rule"]["latency"] for rule in each] for each in noted] == [
            ["1ms"],
            ["2ms", "3ms"],
        ]


DEMO = str(Path(__file__).parents[2] / "recordings" / "demo.mcap")


@pytest.mark.parametrize("command", ["run", "replay"])
def test_certificates_are_loaded_again_and_broken_ones_leave_those_from_before(
    tmp_path: Path, command: str
) -> None:
    made = certificates.make(tmp_path / "certificates")
    shown = tmp_path / "shown.pem"
    shown.write_bytes(made.broker.read_bytes())
    where = [*START, "--no-record"] if command == "run" else [*START[2:], DEMO]
    with service(tmp_path, command, *where, "--listen-tls", str(shown)) as kproxy:

        def certificate() -> str:
            return ssl.get_server_certificate(("127.0.0.1", kproxy.port), timeout=10)

        assert certificate() in made.broker.read_text()
        shown.write_bytes(made.elsewhere.read_bytes())
        kproxy.hang_up("files of TLS to clients are loaded again and in use")
        assert certificate() in made.elsewhere.read_text()
        for broken in ("no certificate", "nothing at all"):
            shown.write_text(broken)
            kproxy.hang_up("TLS to clients goes on with the files from before: ")
            assert certificate() in made.elsewhere.read_text()


def test_properties_are_read_again_and_wrong_ones_leave_those_from_before(tmp_path: Path) -> None:
    made, path = certificates.make(tmp_path / "certificates"), tmp_path / "client.properties"
    text = f"security.protocol=SASL_SSL\nssl.ca.location={made.ca}\nsasl.mechanism=PLAIN\n"
    path.write_text(text + "sasl.username=a\nsasl.password=b\n")
    with service(tmp_path, "run", *START, "--no-record", "--config", str(path)) as kproxy:
        kproxy.hang_up("properties are loaded again: new connections use them")
        path.write_text(text.replace(str(made.ca), str(tmp_path / "nothing.pem")))
        kproxy.hang_up("the properties from before stay in use: .*nothing.pem")
        path.unlink()
        os.mkfifo(path)
        kproxy.process.send_signal(
            signal.SIGHUP
        )  # nobody writes into it: the end comes all the same


@pytest.mark.parametrize("is_nohup", [False, True])
def test_it_ends_with_its_terminal_but_for_nohup(tmp_path: Path, is_nohup: bool) -> None:
    path = tmp_path / "r.mcap"
    terminal, its_end = pty.openpty()
    # A session gets the first terminal that it opens.
    ignoring = 'trap "" HUP;' if is_nohup else ""
    command = f'{ignoring} exec "$@" <>{os.ttyname(its_end)} >&0 2>&0'
    run = KPROXY, "run", *START, "--record", str(path)
    process = subprocess.Popen(["sh", "-c", command, "sh", *run], start_new_session=True)
    try:
        with open(terminal, "rb") as shown:
            while b"no broker yet" not in shown.readline():
                pass
        # The terminal is closed now.
        if is_nohup:
            process.send_signal(signal.SIGHUP)
            assert process.poll() is None
            process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        os.close(its_end)
    verify(path)
