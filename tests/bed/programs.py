"""The client programs: how each is started, what it can do, and what it says of itself.

`CLIENTS` is the table; `work` runs one of them against a bootstrap address and returns its
summary (see clients/job.py for what is in it).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs

from tests.bed import jvm, needs
from tests.bed.clients.job import COMPRESSIONS

_FOLDER = Path(__file__).parent / "clients"
_TIMEOUT_SECONDS = 300
_NPM_PACKAGES = [
    "kafkajs@2.2.4",
    "kafkajs-snappy@1.1.0",
    "lz4js@0.2.0",
    "@bokuweb/zstd-wasm@0.0.27",
]

SARAMA, FRANZ_GO = "github.com/IBM/sarama@v1.46.3", "github.com/twmb/franz-go/pkg/kgo@v1.20.6"
UUID = "github.com/google/uuid@v1.6.0"

CLASSIC = ("create", "produce", "group", "transactions", "admin")
EVERYTHING = ("create", "produce", "group", "group848", "transactions", "admin")


@attrs.frozen
class Login:
    """An account for a SASL listener."""

    mechanism: str
    user: str
    password: str
    """For OAUTHBEARER, the token."""


@attrs.frozen
class Client:
    """A client program."""

    name: str
    command: Callable[[str, dict], tuple[list[str], dict[str, str]]]
    """(bootstrap, job) to the command line and additions to the environment."""
    steps: dict[str, tuple[str, ...]]
    """By broker ("4.3.1", "3.9.2", "mock"): the steps of the job that the two can do together."""
    login: Callable[[Login], dict[str, Any]]
    """An account in the client's own settings."""


def work(
    client: Client,
    bootstrap: str,
    prefix: str,
    steps: tuple[str, ...],
    login: Login | None = None,
    settings: dict[str, Any] | None = None,
    compressions: Sequence[str] = COMPRESSIONS,
) -> dict[str, Any]:
    """Run a client's program, with more settings of its own, to its end; the results by step.

    AssertionError, with what it said, when it does not end well.
    """
    config = (client.login(login) if login else {}) | (settings or {})
    job = {
        "prefix": prefix,
        "steps": steps,
        "compressions": compressions,
        "config": config,
    }
    command, environment = client.command(bootstrap, job)
    done = run(command, environment)
    said = f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    assert done.returncode == 0 and done.stdout, (
        f"{client.name} ended with {done.returncode}: {said}"
    )
    results = json.loads(done.stdout.splitlines()[-1])["steps"]
    failed = {step: result["error"] for step, result in results.items() if "error" in result}
    assert not failed, f"{client.name} failed: {failed}\n{said}"
    return results


def run(
    command: list[str], environment: dict[str, str] | None = None, given: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, with `given` on its standard input.

    AssertionError, with what it said so far, when it does not end in time.
    """
    process = subprocess.Popen(
        command,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = process.communicate(given, timeout=_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"{command} did not end: {out[-3000:]}\n{err[-6000:]}") from None
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _python(file: str) -> Callable:
    def command(bootstrap: str, job: dict) -> tuple[list[str], dict[str, str]]:
        return [sys.executable, str(_FOLDER / file), bootstrap, json.dumps(job)], {}

    return command


def _java(version: str) -> Callable:
    def command(bootstrap: str, job: dict) -> tuple[list[str], dict[str, str]]:
        jars = jvm.client_jars(version)
        classes = jvm.compiled(_FOLDER / "KafkaClient.java", jars)
        lists = [",".join(job["steps"]), ",".join(job["compressions"])]
        settings = [f"{name}={value}" for name, value in job["config"].items()]
        arguments = [bootstrap, job["prefix"], *lists, *settings]
        return jvm.java([classes, jars], "KafkaClient", *arguments), {}

    return command


def node_modules() -> Path:
    """The folder of KafkaJS, and of what it needs."""
    return npm_packages("kafkajs-2.2.4", _NPM_PACKAGES)


def npm_packages(name: str, packages: list[str], *, with_scripts: bool = False) -> Path:
    """The folder node_modules with some packages, kept in the cache under a name; their scripts
    fetch what is compiled."""
    npm = needs.program("npm")

    def install(folder: Path) -> None:
        (folder / "package.json").write_text('{"private": true}')
        quiet = ["--no-audit", "--no-fund", "--no-package-lock"]
        quiet += [] if with_scripts else ["--ignore-scripts"]
        needs.fetched([npm, "install", *quiet, *packages], name, folder)

    return needs.cached(name, install) / "node_modules"


def go_program(source: str, *modules: str) -> str:
    """The path of a program in Go, built of a file here and some modules, and kept in the cache."""
    go, file = needs.program("go"), _FOLDER / source
    digest = hashlib.sha256(file.read_bytes() + " ".join(modules).encode()).hexdigest()[:16]

    def build(folder: Path) -> None:
        shutil.copy(file, folder / "main.go")
        for command in (["mod", "init", "client"], ["get", *modules], ["build", "-o", "client"]):
            needs.fetched([go, *command], source, folder)

    return str(needs.cached(f"{file.stem}-{digest}", build) / "client")


def _node(bootstrap: str, job: dict) -> tuple[list[str], dict[str, str]]:
    node = needs.program("node")
    program = [node, str(_FOLDER / "kafkajs_client.js"), bootstrap, json.dumps(job)]
    return program, {"NODE_PATH": str(node_modules())}


def _login_librdkafka(login: Login) -> dict[str, Any]:
    account = {"sasl.username": login.user, "sasl.password": login.password}
    if login.mechanism == "OAUTHBEARER":
        account = {"oauth_token": login.password}
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": login.mechanism,
        **account,
    }


def _login_python(login: Login) -> dict[str, Any]:
    account = {"sasl_plain_username": login.user, "sasl_plain_password": login.password}
    if login.mechanism == "OAUTHBEARER":
        account = {"oauth_token": login.password}
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": login.mechanism,
        **account,
    }


def login_java(login: Login) -> dict[str, Any]:
    """An account as settings of the Java client and the console tools."""
    kinds = {"PLAIN": "plain.Plain", "OAUTHBEARER": "oauthbearer.OAuthBearer"}
    module = f"org.apache.kafka.common.security.{kinds.get(login.mechanism, 'scram.Scram')}"
    account = f'username="{login.user}" password="{login.password}"'
    more = {}
    if login.mechanism == "OAUTHBEARER":
        account = f'token="{login.password}"'
        more = {"sasl.login.callback.handler.class": "KafkaClient$Token"}
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": login.mechanism,
        "sasl.jaas.config": f"{module}LoginModule required {account};",
        **more,
    }


def _login_kafkajs(login: Login) -> dict[str, Any]:
    account = {"username": login.user, "password": login.password}
    if login.mechanism == "OAUTHBEARER":
        account = {"token": login.password}
    return {"sasl": {"mechanism": login.mechanism.lower(), **account}}


def _java_client(version: str) -> Client:
    everywhere = {"4.3.1": EVERYTHING, "3.9.2": EVERYTHING}
    return Client(f"java-{version}", _java(version), everywhere, login_java)


CLIENTS = [
    Client(
        "confluent-kafka",
        _python("confluent_client.py"),
        {
            "4.3.1": EVERYTHING,
            # librdkafka speaks KIP-848 from version 1 of the heartbeat on, Kafka 3.9 only 0
            "3.9.2": CLASSIC,
            "mock": ("produce", "group", "group848", "transactions"),
        },
        _login_librdkafka,
    ),
    Client(
        "aiokafka",
        _python("aiokafka_client.py"),
        {"4.3.1": CLASSIC, "3.9.2": CLASSIC, "mock": ("produce", "group")},
        _login_python,
    ),
    Client(
        "kafka-python",
        _python("kafka_python_client.py"),
        {"4.3.1": CLASSIC, "3.9.2": CLASSIC},
        _login_python,
    ),
    _java_client("4.4.0"),
    _java_client("4.3.1"),
    _java_client("3.9.2"),
    Client(
        "kafkajs",
        _node,
        {"4.3.1": CLASSIC, "3.9.2": CLASSIC, "mock": ("produce", "group")},
        _login_kafkajs,
    ),
]


def named(name: str) -> Client:
    """The client of this name."""
    return next(each for each in CLIENTS if each.name == name)
