"""Faults as a user types them: flags, a file, `kproxy fault`, with a real client and a cluster."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kproxy import recording
from kproxy.control import Control
from tests.bed import mock_cluster, proxies
from tests.bed.waiting import until

confluent_kafka = pytest.importorskip("confluent_kafka")

_CONTROL = ("--control", "127.0.0.1:0")


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The bootstrap addresses of a mock cluster."""
    with mock_cluster.running() as bootstrap:
        yield bootstrap


def produce(bootstrap: str, topic: str = "orders", **settings: Any) -> tuple[str | None, float]:
    """Produce a record: its error, if any, and how long its producer measured for it."""
    seen: list[Any] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "log_level": 0, "retry.backoff.ms": 10, **settings}
    )
    producer.produce(topic, b"x", on_delivery=lambda error, message: seen.append((error, message)))
    assert producer.flush(20) == 0
    ((error, message),) = seen
    return None if error is None else error.name(), message.latency()


def control_of(proxy: proxies.Proxy) -> str:
    """HOST:PORT of a proxy's control address."""
    return proxy.says("metrics: http").partition("http://")[2].partition("/")[0]


def typed(proxy: proxies.Proxy, *words: str) -> subprocess.CompletedProcess[str]:
    """What `kproxy fault` does with these words."""
    command = [proxies.KPROXY, "fault", "--control", control_of(proxy), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=30)


def test_a_rule_on_the_command_line_breaks_what_it_means_and_accounts_for_it(
    cluster: str, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(
        '[[fault]]\nname = "no leader"\napi = "Produce"\ntopic = "orders"\n'
        'error = "NOT_LEADER_OR_FOLLOWER"\ntimes = 2\n\n[[fault]]\napi = "Heartbeat"\ndrop = true\n'
    )
    late = "name=late api=Produce topic=late latency=300ms"
    options = ("--faults", str(rules), "--fault", late, "--seed", "42", "--expect-faults")
    with proxies.running(cluster, tmp_path, *options) as proxy:
        proxy.code = 1  # no Heartbeat passes
        proxy.says("3 fault rules; --seed 42 repeats")
        assert produce(proxy.bootstrap)[0] is None, "the client tries again"
        error, seconds = produce(proxy.bootstrap, "late")
        assert error is None and seconds >= 0.3
    assert "fault  matched  fired  rule" in proxy.log
    assert "    1        3      2  no leader" in proxy.log
    assert "fault rule 'api=Heartbeat drop=true' never matched" in proxy.log
    found = [each for each in recording.read(proxy.recording) if each.api == "Produce"]
    hit = [each for each in found if each.faults == ["no leader"]]
    assert [each.errors for each in hit] == [["NOT_LEADER_OR_FOLLOWER"]] * 2
    assert [each.faults for each in found if each.topics == ["late"]] == [["late"]]
    (said,) = [
        entry.body
        for entry in recording.entries(proxy.recording)
        if getattr(entry, "body", {}).get("event") == "fault_rules"
    ]
    assert said["seed"] == 42 and said["rules"][0]["name"] == "no leader"
    shown = subprocess.run(
        [proxies.KPROXY, "show", str(proxy.recording), "fault:no*"], capture_output=True, text=True
    )
    assert shown.stdout.count("injected, fault no leader") == 2, shown


def test_rules_are_added_looked_at_and_removed_while_a_client_works(
    cluster: str, tmp_path: Path
) -> None:
    with proxies.running(cluster, tmp_path, *_CONTROL) as proxy:
        assert produce(proxy.bootstrap)[0] is None
        added = typed(proxy, "add", "name=big", "api=Produce", "error=MESSAGE_TOO_LARGE")
        assert (added.returncode, added.stderr) == (0, "")
        assert produce(proxy.bootstrap)[0] == "MSG_SIZE_TOO_LARGE"
        listed = typed(proxy, "list").stdout.splitlines()
        assert listed[1].split(maxsplit=3) == [
            *("1", "1", "1"),
            "big: api=Produce error=MESSAGE_TOO_LARGE",
        ]
        changed = typed(proxy, "change", "big", "error=TOPIC_AUTHORIZATION_FAILED", "times=9")
        assert changed.stdout.endswith("api=Produce times=9 error=TOPIC_AUTHORIZATION_FAILED\n")
        assert produce(proxy.bootstrap)[0] == "TOPIC_AUTHORIZATION_FAILED"
        assert "times=9" not in typed(proxy, "change", "big", "times=").stdout
        assert "off  big: " in typed(proxy, "disable", "big").stdout
        assert produce(proxy.bootstrap)[0] is None
        assert "off" not in typed(proxy, "enable", "big").stdout
        assert typed(proxy, "reset").stdout.splitlines()[1].split()[:3] == ["1", "0", "0"]
        for words, code, text in (
            (["add", "api=Fech drop=true"], 2, "api: 'Fech' is no API of Kafka"),
            (["add", "name=big drop=true"], 1, "already a rule 'big'"),
            (["remove", "small"], 1, "there is no rule 'small'; the rules are 'big'"),
        ):
            refused = typed(proxy, *words)
            assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (code, "", 1)
            assert text in refused.stderr
        assert typed(proxy, "clear").returncode == 0
        assert typed(proxy, "list").stdout.splitlines() == ["fault  matched  fired  rule"]
        assert produce(proxy.bootstrap)[0] is None


def test_a_client_whose_connection_is_ended_comes_back(cluster: str, tmp_path: Path) -> None:
    with proxies.running(cluster, tmp_path, *_CONTROL) as proxy:
        control = Control(control_of(proxy))
        quiet = {"bootstrap.servers": proxy.bootstrap, "log_level": 0, "client.id": "shop"}
        producer = confluent_kafka.Producer(quiet)
        producer.produce("orders", b"1")
        assert producer.flush(20) == 0
        mine = [each["connection"] for each in control.connections() if each["client_id"] == "shop"]
        for number in mine:
            control.end(number)
        until(
            lambda: not {each["connection"] for each in control.connections()} & {*mine},
            "they have ended",
        )
        producer.produce("orders", b"2")
        assert producer.flush(20) == 0
    ends = [
        entry.body
        for entry in recording.entries(proxy.recording)
        if getattr(entry, "body", {}).get("event") == "closed"
    ]
    by_operator = [body["connection"] for body in ends if "operator" in body["reason"]]
    assert sorted(by_operator) == sorted(mine) != []


def test_only_records_what_is_wanted_of_a_real_client(cluster: str, tmp_path: Path) -> None:
    with proxies.running(cluster, tmp_path, "--only", "api:Produce node_id:2,1") as proxy:
        for _ in range(3):
            assert produce(proxy.bootstrap)[0] is None
    shown = subprocess.run(
        [proxies.KPROXY, "show", "--json", str(proxy.recording)], capture_output=True, text=True
    )
    objects = [json.loads(line) for line in shown.stdout.splitlines()]
    found = [each for each in objects if "api" in each]
    assert {each["api"] for each in found} <= {"ApiVersions", "Metadata", "Produce"}
    assert all(each["node_id"] in (1, 2) for each in found if each["api"] == "Produce")
    assert not [each for each in found if each["unanswered"]]
    assert "LOST" not in proxy.log


def test_latencies_of_a_recording_are_those_that_its_brokers_had(
    cluster: str, tmp_path: Path
) -> None:
    slow = ("--fault", "latency=300ms")
    with proxies.running(cluster, tmp_path / "slow", *slow) as broker:
        with proxies.running(broker.bootstrap, tmp_path / "first") as proxy:
            assert produce(proxy.bootstrap)[0] is None
    again = f"api=Produce latency={{recording={proxy.recording}}}"
    with proxies.running(cluster, tmp_path / "second", "--fault", again) as proxy:
        error, seconds = produce(proxy.bootstrap)
        assert error is None and 0.3 <= seconds < 3
