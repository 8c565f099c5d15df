"""The marker of the pytest plugin, where recordings are, and what is said of mistakes."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Generator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from kproxy import pytest_plugin
from tests.testing.plugin import APP, demo_project, record, run

pytest_plugins = ["pytester"]


@pytest.mark.parametrize(
    ("marker", "words"),
    [
        ("speed=1", "the marker kproxy takes recording=, *, not speed="),
        ("timing='slow'", "the marker kproxy: timing is 'fast', 'recorded' or a factor*"),
        ("ignore=['keys']", "the marker kproxy: 'keys' cannot be ignored: give *"),
        ("'demo'", "the marker kproxy takes recording=, *, not 'demo'"),
        ("recording=7", "the marker kproxy: recording is a name, not 7"),
        ("recording=''", "the marker kproxy: recording is a name, not ''"),
        ("recording='../conftest.py'", "the marker kproxy: recording='../conftest.py' is outside*"),
        ("recording='a/../../b'", "the marker kproxy: recording='a/../../b' is outside of*"),
        ("recording='/abs'", "the marker kproxy: recording='/abs' is outside of*"),
        ("timing=None", "the marker kproxy: timing is 'fast', *, not None"),
        ("ignore='json:'", "the marker kproxy: 'json:' cannot be ignored: give *"),
        ("ignore=[7]", "the marker kproxy: ignore is a list of words *, not [[]7[]]"),
        ("users=['a']", "the marker kproxy: users are passwords by user name, not [[]'a'[]]"),
    ],
)
def test_a_mistake_in_a_marker_is_one_line(
    pytester: pytest.Pytester, marker: str, words: str
) -> None:
    pytester.makepyfile(
        f"""
    import pytest

    @pytest.mark.kproxy({marker})
    def test_one(kproxy):
        pass
    """
    )
    found = run(pytester)
    found.assert_outcomes(errors=1)
    found.stdout.fnmatch_lines([words])
    text = found.stdout.str()
    assert "Traceback" not in text and "During handling" not in text
    assert text.count("\nthe marker kproxy") == 1


def test_two_tests_share_a_recording(pytester: pytest.Pytester, mock_brokers: str) -> None:
    pytester.makepyfile(
        APP
        + """
    pytestmark = pytest.mark.kproxy(recording="shared/one")

    def test_one(kproxy):
        produce(kproxy.bootstrap, "1")

    def test_two(kproxy):
        produce(kproxy.bootstrap, "1")
        assert kproxy.mode == "replay"

    def test_three(kproxy):
        produce(kproxy.bootstrap, "3")
    """
    )
    place = "recordings/shared/one.mcap"
    for mode in ("once", "rewrite"):
        found = record(pytester, mock_brokers, mode)
        found.assert_outcomes(passed=2, failed=1)
        found.stdout.fnmatch_lines([f"the client does not do what it did in {place}"])


def test_a_test_may_change_the_folder(pytester: pytest.Pytester, mock_brokers: str) -> None:
    pytester.makepyfile(
        APP
        + """
    @pytest.mark.kproxy(recording="one")
    def test_one(monkeypatch, tmp_path, kproxy):
        monkeypatch.chdir(tmp_path)
        produce(kproxy.bootstrap, "1")
    """
    )
    record(pytester, mock_brokers).assert_outcomes(passed=1)
    assert (pytester.path / "recordings" / "one.mcap").exists()
    run(pytester).assert_outcomes(passed=1)


def test_the_hint_can_be_typed_where_one_is(pytester: pytest.Pytester) -> None:
    pytester.mkdir("sub").joinpath("test_b.py").write_text(
        "def test_one(kproxy):\n    kproxy.bootstrap\n"
    )
    pytester.makeini("[pytest]")
    hint = "make it: pytest --kproxy-mode=once"
    run(pytester).stdout.fnmatch_lines(
        [f"*{hint} --kproxy-broker HOST:PORT sub/test_b.py::test_one"]
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(pytester.path / "sub")
        run(pytester).stdout.fnmatch_lines([f"*{hint} --kproxy-broker * test_b.py::test_one"])
        found = run(pytester, "--kproxy-broker", "localhost:1")
        found.stdout.fnmatch_lines([f"*{hint} test_b.py::test_one"])
    pytester.makeconftest(
        """
    import pytest

    @pytest.fixture
    def kproxy_broker():
        return "localhost:1"
    """
    )
    run(pytester).stdout.fnmatch_lines([f"*{hint} sub/test_b.py::test_one"])


def test_its_marker_is_told(pytester: pytest.Pytester) -> None:
    found = run(pytester, "--markers")
    line = next(line for line in found.outlines if "kproxy(" in line)
    names = ("recording", "mode", "timing", "visible", "ignore", "unplayed", "users")
    assert all(f"{name}=" in line for name in names)


def test_what_differs_is_told_of_a_test_that_is_interrupted(pytester: pytest.Pytester) -> None:
    source = """
    @pytest.mark.kproxy(recording="demo")
    def test_one(kproxy):
        raise KeyboardInterrupt
"""
    demo_project(pytester, source)
    found = pytester.runpytest_subprocess()
    assert found.ret == pytest.ExitCode.INTERRUPTED
    found.stdout.fnmatch_lines(["kproxy: orders: none of its 12 recorded records; the first: *"])


def cancel_and_raise(*_: object) -> None:
    """A handler as Spark's session has one."""
    raise KeyboardInterrupt


WAITING = """
    import asyncio, signal, threading, time
    import aiokafka, confluent_kafka, trio

    pytestmark = pytest.mark.kproxy(recording="demo", fail_fast=True)

    def produce(kproxy, value="wrong"):
        producer = confluent_kafka.Producer({"bootstrap.servers": kproxy.bootstrap})
        producer.produce("orders", value, "k")
        assert producer.flush(20) == 0

    def wait_with_confluent(kproxy):
        config = {"bootstrap.servers": kproxy.bootstrap, "group.id": "new"}
        consumer = confluent_kafka.Consumer(config)
        consumer.subscribe(["orders"])
        until = time.monotonic() + 100
        while time.monotonic() < until:
            message = consumer.poll(0.1)
            if message is not None and not message.error():
                return

    async def wait_with_aiokafka(kproxy):
        consumer = aiokafka.AIOKafkaConsumer("orders", bootstrap_servers=kproxy.bootstrap)
        await consumer.start()
        try:
            await asyncio.wait_for(consumer.getone(), 100)
        finally:
            await consumer.stop()

    def test_confluent(kproxy):
        produce(kproxy)
        wait_with_confluent(kproxy)

    def test_aiokafka(kproxy):
        produce(kproxy)
        asyncio.run(wait_with_aiokafka(kproxy))

    def test_event(kproxy):
        produce(kproxy)
        assert threading.Event().wait(100)

    def test_trio(kproxy):
        produce(kproxy)
        async def tasks():
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(trio.sleep, 100)
        trio.run(tasks)

    def test_blocked(kproxy):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        produce(kproxy)
        time.sleep(2)

    def test_that_goes_on(kproxy):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        produce(kproxy)
        try:
            time.sleep(100)
        except BaseException:
            time.sleep(100)
"""


def test_a_test_that_waits_though_it_has_failed_is_ended_if_that_is_wanted(
    pytester: pytest.Pytester,
) -> None:
    """A client that takes no error for an answer, and code that asks no broker at all."""
    demo_project(
        pytester,
        WAITING,
    )
    began = time.monotonic()
    found = run(pytester)
    assert time.monotonic() - began < 60
    found.assert_outcomes(failed=6)
    found.stdout.no_fnmatch_line("*abandoned*")
    red = "orders: the record is not in the recording: key 'k', value 'wrong' (orders[1])"
    assert [line.startswith(red) for line in found.outlines].count(True) == 6


def begun(when_red: Any) -> Generator[None, Any, Any]:
    """A test with `fail_fast` that has begun; `when_red` gets what to call when it fails."""
    item: Any = SimpleNamespace(stash=pytest.Stash())
    run = SimpleNamespace(fails_fast=True, when_red=when_red, findings=[], text=lambda found: "")
    item.stash[pytest_plugin._run] = run
    running = pytest_plugin._ended_when_red(item)
    next(running)
    return running


def test_a_test_that_ends_by_itself_in_that_moment_leaves_nobody_who_interrupts() -> None:
    calls: list[Any] = []

    def when_red(call: Any) -> None:
        calls.append(call)
        call()
        if len(calls) == 2:
            raise KeyboardInterrupt  # it was on its way

    threads = threading.active_count()
    running = begun(when_red)
    assert threading.active_count() == threads + 1
    with pytest.raises(StopIteration):
        next(running)
    assert threading.active_count() == threads


@pytest.mark.parametrize("before", [signal.SIG_IGN, cancel_and_raise])
def test_whoever_had_ctrl_c_has_it_again_and_trio_can_begin_anew(
    before: Any, pytester: pytest.Pytester
) -> None:
    """A process in the background ignores it; Spark's session has a handler of its own."""
    demo_project(pytester, WAITING)
    ours = signal.signal(signal.SIGINT, before)
    try:
        run(pytester, "-k", "test_trio").assert_outcomes(failed=1)
        assert signal.getsignal(signal.SIGINT) is before
    finally:
        signal.signal(signal.SIGINT, ours)
    assert trio.run(trio.sleep, 0) is None


def test_an_app_that_ends_by_ctrl_c_of_its_own_does_so_under_fail_fast(
    pytester: pytest.Pytester,
) -> None:
    source = """
    import os, signal

    @pytest.fixture
    def app():
        asked_to_end = []
        before = signal.signal(signal.SIGINT, lambda *_: asked_to_end.append(1))
        yield asked_to_end
        signal.signal(signal.SIGINT, before)

    @pytest.mark.kproxy(recording="demo", fail_fast=True, expect="none")
    def test_it_ends(kproxy, app):
        os.kill(os.getpid(), signal.SIGINT)
        assert app == [1]
"""
    run(demo_project(pytester, source)).assert_outcomes(passed=1)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Sets the handler of now again, behind a test that sets others."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("own", [signal.SIG_IGN, cancel_and_raise])
def test_a_handler_that_the_test_has_set_stays(own: Any) -> None:
    running = begun(lambda call: None)
    signal.signal(signal.SIGINT, own)
    next(running, None)
    assert signal.getsignal(signal.SIGINT) is own


@pytest.mark.usefixtures("ctrl_c")
def test_a_handler_that_python_did_not_set_is_not_set_again(monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(signal, "getsignal", lambda number: None)
        running = begun(lambda call: None)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    next(running, None)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("ctrl_c")
def test_a_test_that_ignores_ctrl_c_ends_as_it_does_itself(monkeypatch) -> None:
    calls, looks = [], threading.Semaphore(0)

    def getsignal(number: int) -> Any:
        looks.release()
        return signal.SIG_IGN

    monkeypatch.setattr(pytest_plugin, "_GIVE_UP_SECONDS", 0)
    monkeypatch.setattr(pytest_plugin, "_AGAIN_SECONDS", 0)
    running = begun(calls.append)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    monkeypatch.setattr(signal, "getsignal", getsignal)
    calls[0]()
    try:
        for _ in range(2):  # by the second, it has decided on the first
            assert looks.acquire(timeout=5)
    finally:
        with pytest.raises(RuntimeError, match="its own"):
            running.throw(RuntimeError("its own"))
