"""Metrics, as Prometheus' own parser reads them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest
import trio
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from kproxy import __version__
from kproxy.net import metrics, serve
from kproxy.net.listeners import ListenError
from kproxy.proxy.settings import Settings
from tests.net.proxied import Proxied, proxied, receive_exactly
from tests.net.test_pump import answer, answering, ask

LOCAL = ("127.0.0.1", 0)


async def fetch(proxy: Proxied) -> str:
    """The metrics as they are now."""
    (url,) = [line.partition("metrics: ")[2] for line in proxy.logs if "metrics: " in line]

    def get() -> str:
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            return answer.read().decode()

    return await trio.to_thread.run_sync(get)


def values(text: str) -> dict[str, float]:
    """Metrics by name; of one with a label, by name and value of the label."""
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def until(proxy: Proxied, name: str, value: float) -> dict[str, float]:
    """Wait until a metric has this value; all of them then."""
    with trio.fail_after(10):
        while (found := values(await fetch(proxy)))[name] != value:
            await trio.sleep(0.01)
    return found


async def beat(client: trio.SocketStream, number: int) -> None:
    await client.send_all(ask(number))
    assert await receive_exactly(client, len(answer(number))) == answer(number)


async def test_a_path_that_is_not_text_is_shown_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"odd\xe9.mcap")
    async with proxied(answering, path, control=LOCAL) as proxy:
        found = values(await fetch(proxy))
        assert [name for name in found if name.endswith("odd\\xe9.mcap")]


async def test_what_passes_is_counted(tmp_path: Path) -> None:
    path = tmp_path / 'odd "name"\\.mcap'
    async with proxied(answering, path, control=LOCAL, connections_max=2) as proxy:
        before = values(await fetch(proxy))
        assert before[f"kproxy_build_info {__version__}"] == 1
        assert before[f"kproxy_recording_info {path}"] == 1
        assert before["kproxy_connections_max"] == 2
        assert before["kproxy_backlog_max_bytes"] == 64 << 20
        async with await proxy.connect() as first, await proxy.connect() as second:
            await beat(first, 1)
            await beat(second, 1)
            async with await proxy.connect() as refused:
                assert await refused.receive_some() == b""
            during = await until(proxy, "kproxy_frames_recorded_total", 4)
            assert during["kproxy_connections_open"] == 2
            assert during["kproxy_broker_up bootstrap"] == 1
        after = await until(proxy, "kproxy_connections_open", 0)
        assert after["kproxy_connections_accepted_total"] == 2
        assert after["kproxy_connections_refused_total"] == 1
        assert after["kproxy_frames_lost_total"] == after["kproxy_frames_lost_bytes_total"] == 0
        await until(proxy, "kproxy_backlog_bytes", 0)
        last = await until(proxy, "kproxy_recording_bytes_total", path.stat().st_size)
        assert last["kproxy_recording_bytes_total"] > before["kproxy_recording_bytes_total"] > 0
        assert last["process_cpu_seconds_total"] >= before["process_cpu_seconds_total"] > 0


async def test_a_broker_is_known_to_be_up_or_down_before_a_client_asks() -> None:
    async with proxied(None, control=LOCAL) as proxy:
        assert values(await fetch(proxy))["kproxy_broker_up bootstrap"] == 0
    async with proxied(answering, control=LOCAL) as proxy:
        await until(proxy, "kproxy_broker_up bootstrap", 1)


async def test_a_disk_that_hangs_costs_its_series_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = threading.Event()
    async with proxied(answering, tmp_path / "r.mcap", control=LOCAL) as proxy:
        assert values(await fetch(proxy))["kproxy_disk_free_bytes"] > 0
        monkeypatch.setattr(metrics, "_DISK_SECONDS", 0.01)
        asked: list[object] = []
        monkeypatch.setattr(shutil, "disk_usage", lambda at: asked.append(at) or hangs.wait())
        for _ in range(3):
            assert "kproxy_disk_free_bytes" not in values(await fetch(proxy))
        hangs.set()
    assert len(asked) == 1, "one thread is enough"


async def test_names_and_types_are_those_of_openmetrics(tmp_path: Path) -> None:
    async with proxied(answering, tmp_path / "r.mcap", control=LOCAL) as proxy:
        text = await fetch(proxy)
    for family in text_string_to_metric_families(text):
        assert family.documentation.endswith("."), family.name
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter"), sample
    # The newer format names the type of a counter without its suffix, and knows infos.
    newer = text.replace("_total counter", " counter")
    for line in text.splitlines():
        if line.startswith("# HELP") and "_total " in line:
            newer = newer.replace(line, line.replace("_total ", " ", 1))
    families = list(openmetrics.text_string_to_metric_families(newer + "# EOF\n"))
    assert len(families) > 12


def test_who_wants_no_metrics_does_not_pay_for_them() -> None:
    loaded = "bool({'h11', 'prometheus_client'} & set(sys.modules))"
    code = f"import sys, kproxy.cli, kproxy.net.serve; sys.exit({loaded})"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


async def test_a_taken_control_port_ends_it_before_anything_is_begun(tmp_path: Path) -> None:
    with trio.socket.socket() as taken:
        await taken.bind(LOCAL)
        taken.listen()
        options = serve.Options(
            Settings([("127.0.0.1", 1)]),
            record_path=tmp_path / "r.mcap",
            control=taken.getsockname(),
        )
        with pytest.raises(ListenError, match="taken; choose another with --control"):
            await serve.serve(options, print, print)
    assert list(tmp_path.iterdir()) == []
