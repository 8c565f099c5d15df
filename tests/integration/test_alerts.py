"""Alerts and dashboard, by Prometheus' own programs: what fires, and that each query finds data.

::

    series of the table ─▶ promtool test rules ─▶ which alerts fire
    real broker, client ─▶ kproxy ─ scraped by ─▶ prometheus ─▶ every expression, by its API
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from kproxy import recording
from kproxy.exchange import routine
from kproxy.exchange.derived import JOINS
from tests.bed import needs, programs, proxies, ways
from tests.bed.certificates import Certificates
from tests.bed.kafka import PLAIN_USER, Kafka
from tests.bed.pages import MANUAL
from tests.bed.programs import Login
from tests.bed.waiting import until
from tests.bed.ways import Speaks
from tests.net.proxied import unused_port

ALERTS, DASHBOARD = MANUAL / "alerts.yml", MANUAL / "dashboard.json"
PAGE = (MANUAL / "metrics.md").read_text()
RULES: list[dict[str, Any]] = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]

ERRORS = "kproxy_errors_total{api='Produce',error='%s',origin='%s'}"
MINUTES = 20
WELL = {
    "up{job='kproxy'}": "1x20",
    "kproxy_broker_up{node_id='bootstrap'}": "1x20",
    "kproxy_broker_up{node_id='2'}": "1x20",
    "kproxy_exchanges_total{api='Produce'}": "0+1000x20",
    ERRORS % ("NOT_ENOUGH_REPLICAS", "broker"): "0+5x20",
    ERRORS % ("NOT_ENOUGH_REPLICAS", "rule"): "0+900x20",
    ERRORS % ("REBALANCE_IN_PROGRESS", "broker"): "0+900x20",
    ERRORS % ("COORDINATOR_NOT_AVAILABLE", "broker"): "0x13 900 1800x5",
    "kproxy_exchanges_total{api='ListGroups'}": "0+1x20",
    ERRORS.replace("Produce", "ListGroups") % ("GROUP_AUTHORIZATION_FAILED", "broker"): "0+1x20",
    "kproxy_frames_lost_total": "7x20",
    "kproxy_disk_free_bytes": "60x20",
    "kproxy_disk_size_bytes": "1000x20",
    "kproxy_login_failures_total{origin='client',reason='SASL_AUTHENTICATION_FAILED'}": "3x20",
    "kproxy_tls_failures_total{peer='broker',reason='other'}": "1x20",
    "kproxy_tls_failures_total{peer='client',reason='not_tls'}": "0+1x20",
}
"""Series of twenty minutes in which nothing is wrong, but nearly."""
BROKEN: list[tuple[str, Mapping[str, str | None]]] = [
    ("KproxyDown", {"up{job='kproxy'}": "1x10 0x10"}),
    ("KproxyDown", {"up{job='kproxy'}": None}),
    (
        "KproxyBrokerDown",
        {
            "kproxy_broker_up{node_id='2'}": "1x10 0x10",
            "kproxy_tls_failures_total{peer='broker',reason='closed'}": "_x15 1x5",
        },
    ),
    ("KproxyBrokerErrors", {ERRORS % ("NOT_ENOUGH_REPLICAS", "broker"): "0+20x20"}),
    ("KproxyBrokerErrors", {ERRORS % ("COORDINATOR_NOT_AVAILABLE", "broker"): "0x5 0+900x15"}),
    ("KproxyFramesLost", {"kproxy_frames_lost_total": "0x15 1x5"}),
    ("KproxyDiskLow", {"kproxy_disk_free_bytes": "60x10 49x10"}),
    (
        "KproxyLoginsRefused",
        {"kproxy_login_failures_total{origin='kproxy',reason='credentials'}": "0x15 1x5"},
    ),
    (
        "KproxyLoginsRefused",
        {"kproxy_login_failures_total{origin='client',reason='ILLEGAL_SASL_STATE'}": "_x15 1x5"},
    ),
    (
        "KproxyBrokerTlsFails",
        {"kproxy_tls_failures_total{peer='broker',reason='name'}": "_x15 1x5"},
    ),
]


@pytest.mark.parametrize(("alert", "series"), [("", {}), *BROKEN])
def test_each_alert_fires_alone(alert: str, series: Mapping[str, str], tmp_path: Path) -> None:
    promtool = needs.program("promtool")
    shown = {name: values for name, values in (WELL | series).items() if values}
    firing = [{"labels": f'{{alertname="{alert}"}}', "value": 1}] if alert else []
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": each} for name, each in shown.items()],
        "promql_expr_test": [
            {
                "expr": 'group by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{MINUTES}m",
                "exp_samples": firing,
            }
        ],
    }
    file = tmp_path / "test.yml"
    file.write_text(json.dumps({"rule_files": [str(ALERTS)], "tests": [test]}))
    needs.run_or_fail([promtool, "check", "rules", str(ALERTS)])
    needs.run_or_fail([promtool, "test", "rules", str(file)])


def test_each_alert_is_tested_and_in_the_manual() -> None:
    names = {rule["alert"] for rule in RULES}
    assert names == {alert for alert, _ in BROKEN}
    assert names == set(re.findall(r"^\| `(Kproxy\w+)`", PAGE, re.MULTILINE))


def test_the_errors_that_raise_no_alarm_are_those_that_are_routine() -> None:
    (rule,) = [rule for rule in RULES if rule["alert"] == "KproxyBrokerErrors"]
    (left_out,) = re.findall(r'error!~"(.*?)"', rule["expr"])
    moments = {routine._first_looked_up, routine._just_created}
    lasting = {error for error, apis in routine.ROUTINE.items() if set(apis.values()) - moments}
    assert set(left_out.split("|")) == lasting - {
        "UNSUPPORTED_VERSION"
    }  # of an API that is left out


# ---- by Prometheus, before a real broker


@contextlib.contextmanager
def prometheus(target: str, folder: Path) -> Iterator[Callable[[str], list[dict[str, Any]]]]:
    """Prometheus with the alerts, scraping each second; yields what queries it."""
    port, config = unused_port(), folder / "prometheus.yml"
    scraped = {"job_name": "kproxy", "static_configs": [{"targets": [target]}]}
    config.write_text(
        json.dumps(
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(ALERTS)],
                "scrape_configs": [scraped],
            }
        )
    )
    command = [needs.program("prometheus"), f"--config.file={config}"]
    command += [f"--storage.tsdb.path={folder}/tsdb", f"--web.listen-address=127.0.0.1:{port}"]

    def query(expression: str) -> list[dict[str, Any]]:
        found = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?{found}") as answer:
            return json.load(answer)["data"]["result"]

    def ready() -> bool:
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready").status == 200
        return False

    with (folder / "prometheus.log").open("w") as log:
        with subprocess.Popen(command, stdout=log, stderr=log) as running:
            try:
                until(ready, "Prometheus is ready")
                yield query
            finally:
                running.terminate()


def expressions() -> Iterator[str]:
    """All expressions of the dashboard, and those of alerts without their thresholds."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            text = target["expr"].replace("$__rate_interval", "10s").replace("$__range", "1m")
            yield text.replace("$instance", ".*")
    for rule in RULES:
        yield re.sub(r" (==|[<>]) [\d.]+", "", rule["expr"])


@pytest.mark.broker
@pytest.mark.java
def test_each_expression_finds_what_passed(
    kafka_431: Kafka, issued: Certificates, prefix: str, tmp_path: Path
) -> None:
    needs.program("prometheus")
    client = programs.named("confluent-kafka")
    rule = "api=Heartbeat error=UNKNOWN_MEMBER_ID times=1"
    options = [*ways.to_brokers("SASL_SSL", issued), *ways.to_clients(issued.broker)]
    options += ["--control", "127.0.0.1:0", "--keep", "1GiB", "--fault", rule]

    def told(password: str) -> dict[str, Any]:
        account = Login("PLAIN", PLAIN_USER[0], password)
        return ways.settings(client, Speaks(issued.ca), account)

    def work(password: str, *steps: str) -> None:
        programs.work(client, proxy.bootstrap, prefix, steps, settings=told(password))

    def fail() -> None:
        """Have the broker refuse a topic: its other errors depend on which tests ran before."""
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": proxy.bootstrap, **told(PLAIN_USER[1])})
        (refused,) = admin.create_topics([NewTopic("no topic", 1)]).values()
        assert refused.exception(30)

    with proxies.running(kafka_431.address_of("SASL_SSL"), tmp_path, *options) as proxy:
        url = proxy.says(r"metrics: http").partition("metrics: ")[2]
        with prometheus(url.split("/")[2], tmp_path) as query:
            until(lambda: query("kproxy_broker_up"), "the first scrape")
            with socket.create_connection(("127.0.0.1", proxy.port)) as plain:
                plain.sendall(b"no TLS at all\r\n")
                assert plain.recv(1000) is not None
            work("wrong", "connect")
            work(PLAIN_USER[1], "create", "produce", "group", "steady", "admin")
            fail()
            lacking = until_none(lambda: [each for each in expressions() if not query(each)])
            assert lacking == []
            firing = query("ALERTS{alertname='KproxyLoginsRefused',alertstate='firing'}")
            assert [each["metric"]["reason"] for each in firing] == ["SASL_AUTHENTICATION_FAILED"]
            assert query("kproxy_tls_failures_total{reason='not_tls'}")
        with urllib.request.urlopen(url) as answer:
            families = [*text_string_to_metric_families(answer.read().decode())]
    check_against(proxy.recording, [sample for each in families for sample in each.samples])


def until_none(find: Callable[[], list[str]]) -> list[str]:
    """Wait until nothing is found, or for as long as a few scrapes take; return what is."""
    deadline = time.monotonic() + 20
    while (found := find()) and time.monotonic() < deadline:
        time.sleep(0.5)
    return found


def check_against(path: Path, samples: Sequence[Any]) -> None:
    """Compare metrics with what the recording says of the same exchanges."""
    errors: Counter[tuple[str, str]] = Counter()
    service: Counter[str] = Counter()
    for exchange in recording.read(path):
        errors.update((str(exchange.api), error) for error in exchange.errors)
        if exchange.durations.served_us >= 0 and exchange.api not in JOINS:
            service[str(exchange.api)] += 1
    counted: Counter[tuple[str, str]] = Counter()
    for name, labels, value, *_ in samples:
        if name == "kproxy_errors_total":
            counted[labels["api"], labels["error"]] += int(value)
        elif name == "kproxy_broker_service_seconds_count":
            assert service[labels["api"]] == value, labels
    assert counted == errors
    assert errors["SaslAuthenticate", "SASL_AUTHENTICATION_FAILED"] > 0
