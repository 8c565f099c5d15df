"""The control API by real HTTP, through the Python client: what it changes holds for the next
request, and drops no connection."""

from __future__ import annotations

import functools
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from kproxy import __version__
from kproxy.control import Control, ControlError
from kproxy.exchange.entries import Note, each_frame
from kproxy.net import control_api
from kproxy.proxy.faults import Rules
from kproxy.recording.delays import broker_delays
from kproxy.recording.reader import entries
from kproxy.wire.protocol import decode_response
from tests.net.proxied import Proxied, proxied
from tests.net.test_metrics import fetch as fetch_metrics
from tests.net.test_metrics import values
from tests.net.test_pump import answer, answering, ask

DEMO = Path(__file__).parents[2] / "recordings" / "demo.mcap"
LOCAL = ("127.0.0.1", 0)
COORDINATOR_NOT_AVAILABLE = 15


class Asking:
    """The client's calls, from trio."""

    def __init__(self, proxy: Proxied) -> None:
        (url,) = [line.partition("metrics: ")[2] for line in proxy.logs if "metrics: " in line]
        found = re.search(r"http://([^/]+)/", url)
        assert found is not None
        self.control = Control(found[1])

    async def __call__(self, verb: str, *words: Any, **named: Any) -> Any:
        method: Callable[..., Any] = getattr(self.control, verb)
        return await trio.to_thread.run_sync(functools.partial(method, *words, **named))

    async def refused(self, verb: str, *words: Any, **named: Any) -> ControlError:
        """Why a call is refused."""
        with pytest.raises(ControlError) as refusal:
            await self(verb, *words, **named)
        return refusal.value


async def error_of(client: trio.SocketStream, correlation_id: int) -> int:
    """Send a Heartbeat; return the error in its response."""
    await client.send_all(ask(correlation_id))
    data = b""
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4]):
        chunk = await client.receive_some()
        assert chunk, "the connection ended"
        data += chunk
    response = decode_response(data, 12, 4)
    assert response.header.correlation_id == correlation_id
    return response.body.error_code


async def test_rules_change_for_the_next_request_and_no_connection_is_dropped(
    tmp_path: Path,
) -> None:
    path = tmp_path / "r.mcap"
    async with proxied(answering, path, control=LOCAL) as proxy:
        call = Asking(proxy)
        async with await proxy.connect() as client:
            assert await error_of(client, 1) == 0
            added = await call("add", name="away", api="Heartbeat", error=COORDINATOR_NOT_AVAILABLE)
            assert (added.fault_id, added.name, added.enabled) == (1, "away", True)
            assert await error_of(client, 2) == COORDINATOR_NOT_AVAILABLE
            await call("disable", "away")
            assert await error_of(client, 3) == 0
            await call("enable", added.fault_id)
            changed = await call("change", "away", error="REBALANCE_IN_PROGRESS", times=2)
            assert changed.rule["error"] == "REBALANCE_IN_PROGRESS" and changed.fired == 1
            assert [await error_of(client, number) for number in (4, 5)] == [27, 0]
            await call("reset")
            assert [await error_of(client, number) for number in (6, 7, 8)] == [27, 27, 0]
            (fault,) = await call("faults")
            assert (fault.matched, fault.fired) == (3, 2)
            removed = await call("remove", "away")
            assert (removed.matched, removed.fired) == (3, 2)
            assert await error_of(client, 9) == 0
            assert await call("faults") == []
            assert (await call("status"))["connections_accepted"] == 1
    events = [e.body for e in entries(path) if isinstance(e, Note) and "rules" in e.body]
    names = [[rule["name"] for rule in body["rules"]] for body in events]
    assert names == [["away"]] * 5 + [[]], "each change is in the recording"


async def test_a_block_breaks_and_mends() -> None:
    async with proxied(answering, control=LOCAL) as proxy:
        call = Asking(proxy)
        async with await proxy.connect() as client:

            def within() -> Any:
                with call.control.fault({"api": "Heartbeat"}, error="NOT_COORDINATOR") as fault:
                    assert (fault.matched, fault.fired) == (0, 0)
                    assert trio.from_thread.run(error_of, client, 1) == 16
                    assert (fault.matched, fault.fired) == (1, 1), "counted inside the block"
                return fault

            fault = await trio.to_thread.run_sync(within)
            assert (fault.matched, fault.fired) == (1, 1)
            assert await error_of(client, 2) == 0


async def test_mistakes_are_refused_and_change_nothing() -> None:
    rules = Rules([{"name": "one", "api": "Heartbeat", "latency": "1ms"}], seed=5)
    async with proxied(answering, control=LOCAL, rules=rules) as proxy:
        call = Asking(proxy)
        before = await call("faults")
        for verb, words, status, key, text in [
            ("add", {"api": "Fech", "drop": True}, 422, "api", "did you mean Fetch?"),
            ("add", {"api": "Fetch"}, 422, None, "no action"),
            ("add", {"name": {"a": 1}, "drop": True}, 422, "name", "is not a name"),
            ("add", {"name": "\ud800", "drop": True}, 422, "name", "is no character"),
            ("add", {"drop": "soon"}, 422, "drop", "soon"),
            ("add", {"name": "one", "drop": True}, 409, "name", "already a rule 'one'"),
            ("add", {"latency": {"recording": "x"}}, 422, "latency", "--control-recordings DIR"),
            ("add", {"latency": {"recording": 1}}, 422, "latency", "the name of a file"),
            ("add", {"where": "is:error", "drop": True}, 422, "where", "column 1"),
            ("add", {"where": "x" * 70_000, "drop": True}, 413, None, "65536"),
            ("change", {"api": "Fech"}, 422, "api", "did you mean Fetch?"),
            ("change", {"latency": None}, 422, None, "no action"),
        ]:
            names = ["one"] if verb == "change" else []
            refusal = await call.refused(verb, *names, words)
            assert (refusal.status, refusal.key) == (status, key), words
            assert text in str(refusal) and "\n" not in str(refusal)
        for verb in ("get", "change", "remove", "enable", "disable"):
            words = [{"times": 1}] if verb == "change" else []
            refusal = await call.refused(verb, "two", *words)
            assert refusal.status == 404 and "the rules are 'one'" in str(refusal)
        assert await call("faults") == before
        assert not [line for line in proxy.logs if "defect" in line]


async def test_rules_take_latencies_only_from_files_below_the_folder_that_is_named(
    tmp_path: Path,
) -> None:
    folder, outside = tmp_path / "captures", tmp_path / "outside"
    (folder / "below").mkdir(parents=True)
    outside.mkdir()
    for name in (folder / "a.mcap", folder / "below" / "b.mcap", outside / "c.mcap"):
        shutil.copy(DEMO, name)
    (folder / "link.mcap").symlink_to(outside / "c.mcap")
    (folder / "out").symlink_to(outside)
    (folder / "ring.mcap").symlink_to(folder / "ring.mcap")
    (folder / "text.mcap").write_text("no recording")
    (tmp_path / "captures-2").symlink_to(folder)
    read: list[str] = []

    def read_delays(name: str) -> Sequence[int]:
        read.append(name)
        return broker_delays(name)

    typed = {"name": "typed", "latency": {"recording": str(outside / "c.mcap")}}
    rules = Rules([typed], read_delays=read_delays)
    async with proxied(answering, control=LOCAL, control_recordings=folder, rules=rules) as proxy:
        call = Asking(proxy)
        read.clear()
        for name in (
            "../outside/c.mcap", str(outside / "c.mcap"), "link.mcap", "out/c.mcap", "ring.mcap",
            "below/../../outside/c.mcap", "", ".", "below", str(folder), "nowhere.mcap", "a\0b",
            "/dev/zero", "file:///etc/passwd", "x" * 5000,
        ):  # fmt: skip
            words = {"api": "Heartbeat", "latency": {"recording": name}}
            for verb, names in (("add", []), ("change", ["typed"])):
                refusal = await call.refused(verb, *names, words)
                assert (refusal.status, refusal.key) == (422, "latency"), name
                assert "no file below the folder of --control-recordings" in str(refusal)
                assert "\n" not in str(refusal)
        assert read == [], "nothing is opened to find that out"
        refusal = await call.refused("add", latency={"recording": "text.mcap"})
        assert refusal.status == 422 and "text.mcap" in str(refusal)
        for name in ("a.mcap", "below/b.mcap", str(folder / "a.mcap"), "below/../a.mcap"):
            added = await call("add", api="Heartbeat", latency={"recording": name})
            path = added.rule["latency"]["recording"]
            assert path == str((folder / name).resolve())
            again = await call("change", added.fault_id, latency=added.rule["latency"])
            assert again.rule == added.rule
        changed = await call("change", "typed", times=3)
        assert changed.rule["latency"] == typed["latency"], "what the operator typed stays"
        assert not [line for line in proxy.logs if "defect" in line]


async def test_any_name_can_be_asked_for() -> None:
    async with proxied(answering, control=LOCAL) as proxy:
        call = Asking(proxy)
        for name in ("a/b", "reset", "naïve ☃", "50%", "..", "?x=1#y", "3"):
            fault = await call("add", name=name, api="Heartbeat", latency="0.1ms")
            assert fault.name == name
            if name != "reset":
                assert (await call("get", name)).fault_id == fault.fault_id
            await call("remove", fault.fault_id)
        by_words = await call("add", api="Heartbeat", latency="1ms", where='client_id:"a/b"')
        assert (await call("remove", by_words.name)).fault_id == by_words.fault_id


async def test_there_is_an_end_to_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_api, "RULES_MAX", 2)
    async with proxied(answering, control=LOCAL) as proxy:
        call = Asking(proxy)
        for _ in range(2):
            await call("add", api="Heartbeat", drop=True)
        refusal = await call.refused("add", api="Heartbeat", drop=True)
        assert refusal.status == 409 and "2 rules already" in str(refusal)
        await call("clear")
        assert await call("faults") == []


async def test_connections_are_listed_and_ended_and_the_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "r.mcap"
    async with proxied(answering, path, control=LOCAL) as proxy:
        call = Asking(proxy)
        async with await proxy.connect() as first, await proxy.connect() as second:
            assert await error_of(first, 1) == await error_of(second, 1) == 0
            one, two = await call("connections")
            assert (one["connection"], two["connection"]) == (1, 2)
            assert (one["client_id"], one["node_id"], one["pending_requests"]) == ("app", None, 0)
            host, _, port = one["client_address"].rpartition(":")
            assert (host, int(port)) == first.socket.getsockname()
            await call("end", 1)
            assert await first.receive_some() == b""
            assert await error_of(second, 2) == 0
            assert [each["connection"] for each in await call("connections")] == [2]
            for number in (1, 99, "x", "-1", "1" * 30):
                assert (await call.refused("end", number)).status == 404
            status = await call("status")
            assert status["connections_open"] == 1 and status["version"] == __version__
            assert status["recording"] == str(path) and status["brokers_up"] == {"bootstrap": True}
    bodies = [e.body for e in entries(path) if isinstance(e, Note)]
    (end,) = [body for body in bodies if body["event"] == "closed" and body["connection"] == 1]
    assert "operator" in end["reason"]


async def test_the_metrics_count_what_passes_and_what_breaks() -> None:
    rules = Rules(
        [{"name": 'a "b"\\\n', "api": "Heartbeat", "times": 2, "error": "NOT_COORDINATOR"}]
    )
    async with proxied(answering, control=LOCAL, rules=rules) as proxy:
        async with await proxy.connect() as client:
            for number in range(1, 6):
                await error_of(client, number)
        found = values(await fetch_metrics(proxy))
    assert found["kproxy_exchanges_total Heartbeat"] == 5
    assert found["kproxy_request_bytes_total Heartbeat"] == sum(len(ask(n)) for n in range(1, 6))
    assert found["kproxy_response_bytes_total Heartbeat"] == sum(
        len(answer(n)) for n in range(1, 6)
    )
    assert found["kproxy_broker_seconds_count Heartbeat"] == 3, "the others no broker has seen"
    assert found["kproxy_broker_seconds_bucket Heartbeat +Inf"] == 3
    assert 0 < found["kproxy_broker_seconds_sum Heartbeat"] < 5
    assert found["kproxy_errors_total Heartbeat NOT_COORDINATOR rule"] == 2
    (matched,) = [value for name, value in found.items() if "faults_matched_total" in name]
    (fired,) = [value for name, value in found.items() if "faults_fired_total" in name]
    assert (matched, fired) == (5, 2)


async def test_only_what_is_wanted_is_recorded_and_the_rest_is_no_loss(tmp_path: Path) -> None:
    from kproxy.exchange.filter import parse

    path = tmp_path / "r.mcap"
    async with proxied(answering, path, only=parse("api:Fetch"), control=LOCAL) as proxy:
        async with await proxy.connect() as client:
            assert await error_of(client, 1) == 0
        found = values(await fetch_metrics(proxy))
    assert found["kproxy_exchanges_total Heartbeat"] == 1
    assert found["kproxy_frames_lost_total"] == 0
    assert proxy.summary is not None and proxy.summary.frames_recorded == 0
    kinds = {type(entry) for entry in each_frame(entries(path))}
    assert kinds == {Note}


def test_where_nobody_or_somebody_else_answers_is_said_in_one_line() -> None:
    import socket
    import threading

    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def speak() -> None:
            peer, _ = server.accept()
            with peer:
                peer.sendall(b"220 smtp.example ESMTP\r\n")

        thread = threading.Thread(target=speak)
        thread.start()
        with pytest.raises(ControlError, match="is no control address of kproxy"):
            Control(address).faults()
        thread.join()
    with pytest.raises(ControlError, match=f"no proxy answers at {address}: Connection refused"):
        Control(address).faults()
    for wrong in ("host", "host:port", ":1", "host:0", "host:70000"):
        with pytest.raises(ControlError, match="is not HOST:PORT"):
            Control(wrong)
