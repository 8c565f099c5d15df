"""The pytest plugin, as its user sees it: what is typed, what is printed, which files there are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from kproxy import recording
from kproxy.testing import sessions
from tests.bed import needs
from tests.testing.plugin import APP, demo_project, record, run

pytest_plugins = ["pytester"]


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project with a test of a producer, which takes its value from the environment."""
    pytester.makepyfile(
        test_app=APP
        + """
    import os

    def test_produces(kproxy):
        if "NOTHING" not in os.environ:
            produce(kproxy.bootstrap, os.environ.get("VALUE", "one"))
        assert len(kproxy.produced("orders")) == 1
        if "FAIL" in os.environ:
            assert kproxy.produced("orders") == []
        assert kproxy.produced("orders")[0].value == os.environ.get("VALUE", "one").encode()
    """
    )
    return pytester


RECORDED = Path("recordings/test_app/test_produces.mcap")


def test_a_test_is_recorded_once_and_replayed_from_then_on(
    project: pytest.Pytester, mock_brokers: str
) -> None:
    first = run(project)
    first.assert_outcomes(failed=1)
    first.stdout.fnmatch_lines(
        [
            "kproxy: replay, recordings in recordings",
            f"there is no recording {RECORDED}; make it: pytest --kproxy-mode=once * *_produces",
        ]
    )
    assert not (project.path / "recordings").exists()
    record(project, mock_brokers).assert_outcomes(passed=1)
    made = project.path / RECORDED
    recording.verify(made)
    assert b"one" in made.read_bytes(), "it is not compressed, for git"
    run(project).assert_outcomes(passed=1)
    stamp = made.stat().st_mtime_ns
    run(project, "--kproxy-mode=once").assert_outcomes(passed=1)
    assert made.stat().st_mtime_ns == stamp
    assert sorted(each.name for each in made.parent.iterdir()) == [made.name]


def test_live_writes_nothing(project: pytest.Pytester, mock_brokers: str) -> None:
    record(project, mock_brokers, "live").assert_outcomes(passed=1)
    assert not (project.path / "recordings").exists()


def test_recordings_have_the_folder_that_the_settings_name(pytester: pytest.Pytester) -> None:
    demo_project(pytester, "\n    def test_one(kproxy):\n        pass\n")
    (pytester.path / "recordings").rename(pytester.path / "tapes")
    pytester.makeini("[pytest]\nkproxy_recordings = tapes")
    found = run(pytester)
    found.stdout.fnmatch_lines(
        ["kproxy: replay, recordings in tapes", "there is no recording tapes/test_recordings_*"]
    )


def test_what_the_client_swallowed_fails_the_test_with_the_closest_record(
    project: pytest.Pytester, mock_brokers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(project, mock_brokers).assert_outcomes(passed=1)
    monkeypatch.setenv("VALUE", "two")
    found = run(project)
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(
        [
            "orders: the record of key 'k' has value 'two', recorded 'one' (orders*",
            f"the client does not do what it did in {RECORDED}",
            "if that is meant, record again: pytest --kproxy-mode=rewrite *::test_produces",
            "*Captured kproxy call*",
            "*Produce v* orders* 1 record,*",
        ]
    )
    assert "object at 0x" not in found.stdout.str()


def test_the_summary_names_what_differs_where_the_apps_own_assertion_came_first(
    project: pytest.Pytester, mock_brokers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(project, mock_brokers).assert_outcomes(passed=1)
    monkeypatch.setenv("VALUE", "two")
    monkeypatch.setenv("FAIL", "1")
    monkeypatch.setenv("COLUMNS", "300")
    found = run(project, "--junitxml=found.xml", "--kproxy-annotate")
    mark = (
        "::error file=test_app.py,title=test_app.py%3A%3Atest_produces::kproxy: orders: the record"
    )
    assert mark in found.stdout.str()
    said = "kproxy: orders: the record of key 'k' has value 'two', recorded 'one'*| *assert *"
    found.stdout.fnmatch_lines([f"FAILED test_app.py::test_produces - {said}"])
    xml = (project.path / "found.xml").read_text()
    assert "<failure message=\"kproxy: orders: the record of key 'k' has value 'two'" in xml
    monkeypatch.setenv("NOTHING", "1")
    missing = "orders: the record of key 'k' was never produced: value 'one'"
    summary = f"FAILED *::test_produces - kproxy: {missing} *| *assert 0 == 1"
    run(project).stdout.fnmatch_lines([f"{missing} (orders*", summary])


def test_a_topic_that_was_not_recorded_fails_the_test_whatever_is_allowed(
    pytester: pytest.Pytester,
) -> None:
    demo_project(
        pytester,
        APP
        + """
    @pytest.mark.kproxy(recording="demo", unplayed="allow", ignore=["partition"])
    def test_swallows(kproxy):
        producer = confluent_kafka.Producer({"bootstrap.servers": kproxy.bootstrap, **QUIET})
        producer.produce("order", "x")
        producer.flush(0.5)
    """,
    )
    found = run(pytester)
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(["topic order is not in the recording (closest: orders)"])


def test_a_failed_test_leaves_its_recording_beside_the_good_one(
    project: pytest.Pytester, mock_brokers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(project, mock_brokers).assert_outcomes(passed=1)
    good = (project.path / RECORDED).read_bytes()
    monkeypatch.setenv("FAIL", "1")
    found = record(project, mock_brokers, "rewrite")
    found.assert_outcomes(failed=1)
    failed = project.path / RECORDED.with_name("test_produces.failed.mcap")
    shown = failed.relative_to(project.path)
    found.stdout.fnmatch_lines([f"its recording: kproxy show {shown}"])
    assert (project.path / RECORDED).read_bytes() == good
    assert len(list(recording.read(failed, "api:Produce"))) == 1
    monkeypatch.delenv("FAIL")
    record(project, mock_brokers, "rewrite").assert_outcomes(passed=1)
    assert (project.path / RECORDED).read_bytes() != good
    assert not failed.exists(), "it is about what is no more"


def test_verify_compares_and_writes_nothing(
    project: pytest.Pytester, mock_brokers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(project, mock_brokers).assert_outcomes(passed=1)
    good = (project.path / RECORDED).read_bytes()
    record(project, mock_brokers, "verify").assert_outcomes(passed=1)
    monkeypatch.setenv("VALUE", "two")
    found = record(project, mock_brokers, "verify")
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(
        [f"this run (+) differs from {RECORDED} (-):", "*- 'one'", "*+ 'two'"]
    )
    assert (project.path / RECORDED).read_bytes() == good
    assert [each.name for each in (project.path / RECORDED).parent.iterdir()] == [RECORDED.name]


def test_recording_needs_a_broker_and_says_how_to_give_one(project: pytest.Pytester) -> None:
    found = run(project, "--kproxy-mode=once")
    found.assert_outcomes(errors=1)
    found.stdout.fnmatch_lines(["a real broker is needed: give --kproxy-broker HOST:PORT, *"])


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return tmp_path / "temporary"


def test_an_address_that_does_not_resolve_is_one_line(
    project: pytest.Pytester, temporary: Path
) -> None:
    found = record(project, "no..host:9092")
    found.assert_outcomes(errors=1)
    found.stdout.fnmatch_lines(["cannot resolve no..host: *; check the address for typing *"])
    assert "Traceback" not in found.stdout.str() and "runs.py" not in found.stdout.str()
    assert list(temporary.glob("kproxy-*")) == []


def test_a_recording_that_cannot_be_completed_is_not_kept(
    project: pytest.Pytester, mock_brokers: str, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = sessions.RecordingSession.end

    def fail(recording: sessions.RecordingSession, fine: bool) -> None:
        end(recording, fine)
        raise OSError("the disk is full")

    monkeypatch.setattr(sessions.RecordingSession, "end", fail)
    found = record(project, mock_brokers)
    found.assert_outcomes(failed=1, errors=1)
    found.stdout.fnmatch_lines(["*the disk is full*"])
    assert list(temporary.glob("kproxy-*")) == []
    assert not (project.path / RECORDED).exists()


def test_recording_is_refused_in_ci(
    project: pytest.Pytester, mock_brokers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    found = record(project, mock_brokers)
    found.assert_outcomes(errors=1)
    found.stdout.fnmatch_lines(["there is no recording *--kproxy-record-in-ci allows it"])
    assert record(project, mock_brokers, "rewrite").ret == pytest.ExitCode.USAGE_ERROR
    allowed = run(
        project, "--kproxy-mode=rewrite", "--kproxy-record-in-ci", "--kproxy-broker", mock_brokers
    )
    allowed.assert_outcomes(passed=1)
    run(project).assert_outcomes(passed=1)


def test_a_fixture_names_the_broker_only_where_one_is_needed(
    pytester: pytest.Pytester, mock_brokers: str
) -> None:
    pytester.makeconftest(
        f"""
    import pathlib, pytest

    class Container:
        def get_bootstrap_server(self):
            return "{mock_brokers}"

    @pytest.fixture(scope="session")
    def kproxy_broker():
        pathlib.Path("started").touch()
        return Container()
    """
    )
    pytester.makepyfile(
        APP
        + """
    @pytest.mark.parametrize("value", ["a b", "a/b"])
    @pytest.mark.kproxy(timing="recorded")
    class TestOrders:
        def test_one(self, kproxy, value):
            produce(kproxy.bootstrap, value, f"orders-{ord(value[1])}")
    """
    )
    run(pytester, "--kproxy-mode=once").assert_outcomes(passed=2)
    (pytester.path / "started").unlink()
    names = sorted(str(path.relative_to(pytester.path)) for path in pytester.path.rglob("*.mcap"))
    assert len(names) == 2 and len(set(names)) == 2
    assert all("/TestOrders.test_one-a-b-" in name for name in names)
    run(pytester).assert_outcomes(passed=2)
    assert not (pytester.path / "started").exists()


def test_tests_run_side_by_side(pytester: pytest.Pytester) -> None:
    demo_project(
        pytester,
        """
    @pytest.mark.parametrize("number", range(2))
    @pytest.mark.kproxy(recording="demo")
    def test_many(kproxy, number):
        assert demo.produce(kproxy.bootstrap) == 12
        assert len(demo.consume(kproxy.bootstrap)) == 12
        assert len(kproxy.consumed("orders")) == 12
    """,
    )
    pytester.runpytest_subprocess("-n", "2").assert_outcomes(passed=2)


def test_a_client_that_does_nothing_fails_unless_that_is_allowed(
    pytester: pytest.Pytester,
) -> None:
    demo_project(
        pytester,
        """
    @pytest.mark.kproxy(recording="demo")
    def test_dead(kproxy):
        pass

    @pytest.mark.kproxy(recording="demo", unplayed="allow")
    def test_allowed(kproxy):
        pass

    @pytest.mark.kproxy(recording="demo", visible="all")
    def test_dead_though_all_is_visible(kproxy):
        demo.consume(kproxy.bootstrap)

    @pytest.mark.kproxy(recording="demo", visible="all")
    def test_does_all(kproxy):
        assert len(demo.consume(kproxy.bootstrap)) == 12
        demo.produce(kproxy.bootstrap)

    @pytest.mark.kproxy(recording="demo", unplayed="allow")
    def test_only_consumes(kproxy):
        assert len(demo.consume(kproxy.bootstrap)) == 12

    @pytest.mark.kproxy(recording="demo")
    def test_skips(kproxy):
        pytest.skip("not today")
    """,
    )
    found = run(pytester)
    found.assert_outcomes(failed=2, passed=3, skipped=1)
    line = "\norders: none of its 12 recorded records; the first: "
    assert found.stdout.str().count(line) == 2
    found.stdout.fnmatch_lines(["no exchange passed through kproxy"])


def test_what_is_skipped_needs_no_recording_and_the_rest_does(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
    import pytest

    def test_skips(kproxy):
        pytest.skip("not today")

    def test_passes(kproxy):
        pass

    def test_uses(kproxy):
        kproxy.bootstrap

    @pytest.fixture
    def app(kproxy):
        return kproxy.bootstrap

    def test_uses_before(app):
        pass
    """
    )
    found = run(pytester)
    found.assert_outcomes(skipped=1, failed=2, errors=1)
    assert found.stdout.str().count("\nthere is no recording ") == 3
    assert "Traceback" not in found.stdout.str()


def test_what_a_fixture_produces_when_it_ends_counts(pytester: pytest.Pytester) -> None:
    demo_project(
        pytester,
        """
    @pytest.fixture
    def app(kproxy):
        yield
        demo.produce(kproxy.bootstrap)

    @pytest.mark.kproxy(recording="demo")
    def test_late(app):
        pass

    @pytest.fixture
    def address(kproxy):
        return kproxy.bootstrap

    @pytest.fixture
    def other_app(address):
        yield
        demo.produce(address)

    @pytest.mark.kproxy(recording="demo")
    def test_late_and_far(other_app):
        pass

    @pytest.fixture
    def dead_app(kproxy):
        yield

    @pytest.mark.kproxy(recording="demo")
    def test_never(dead_app):
        pass
    """,
    )
    found = run(pytester)
    found.assert_outcomes(passed=3, errors=1)
    found.stdout.fnmatch_lines(["*ERROR at teardown of test_never*"])


def test_faults_compose(pytester: pytest.Pytester) -> None:
    demo_project(
        pytester,
        """
    @pytest.mark.kproxy(recording="demo")
    def test_survives(kproxy):
        error = "NOT_LEADER_OR_FOLLOWER"
        with kproxy.fault(api="Produce", topic="orders", error=error, times=1) as fault:
            assert demo.produce(kproxy.bootstrap) == 12
        assert fault.fired == 1
        assert kproxy.exchanges("is:injected")[0].errors == [error]
        assert len(kproxy.produced("orders")) == 12
    """,
    )
    run(pytester).assert_outcomes(passed=1)


def test_it_needs_no_other_plugin(pytester: pytest.Pytester) -> None:
    others = ["trio", "xdist", "cacheprovider", "tmpdir", "logging", "capture", "threadexception"]
    arguments = ["-W", "error", *(part for name in others for part in ("-p", f"no:{name}"))]
    demo_project(
        pytester,
        """
    @pytest.mark.kproxy(recording="demo")
    def test_one(kproxy):
        assert demo.produce(kproxy.bootstrap) == 12
    """,
    )
    assert pytester.runpytest_subprocess(*arguments).ret == 0


def test_it_starts_without_trio(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_one():\n    pass")
    pytester.makeconftest(
        """
    import sys

    def pytest_sessionfinish(session):
        heavy = {"trio", "kproxy.net", "kproxy.wire.protocol", "testcontainers"} & set(sys.modules)
        assert not heavy, heavy
    """
    )
    plugins = "-p", "no:trio", "-p", "no:anyio"  # of others, which import it
    pytester.runpytest_subprocess(*plugins).assert_outcomes(passed=1)


def test_the_three_pastes_of_the_manual(
    pytester: pytest.Pytester, mock_brokers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (needs.REPOSITORY / "kproxy" / "manual" / "testing.md").read_text()
    section = page.partition("\n## Any language")[0]
    program, record_it, replay_it = re.findall(
        r"^```(?:python|sh)\n(.*?)^```", section, re.MULTILINE | re.DOTALL
    )
    path = pytester.path / "test_orders.py"
    path.write_text(program)
    recording_command = shlex.split(record_it.replace("localhost:9092", mock_brokers))
    pytester.runpytest_inprocess(*recording_command[1:]).assert_outcomes(passed=1)
    assert shlex.split(replay_it) == ["pytest"]
    run(pytester).assert_outcomes(passed=1)
    path.write_text(program.replace('{"state": "new"}', '{"state": "old"}'))
    found = run(pytester)
    found.assert_outcomes(failed=1)
    (shown,) = re.findall(r"^orders: the record .*$", section, re.MULTILINE)
    pattern = re.sub(r"(\\\[|offset\\ )\d+", r"\1\\d+", re.escape(shown))
    assert re.search(f"^{pattern}$", found.stdout.str(), re.MULTILINE)


def test_records_are_decoded_by_a_decoder_of_the_project(pytester: pytest.Pytester) -> None:
    project = demo_project(
        pytester,
        """
    @pytest.mark.kproxy(recording="demo", visible="all", unplayed="allow")
    def test_it(kproxy):
        demo.consume(kproxy.bootstrap)
        first, *_ = kproxy.consumed("orders")
        assert first.decoded == ["orders", "value", len(first.value)]
        assert first.decoded_key == first.key.decode()
    """,
    )
    project.makepyfile(
        decoding="""
    def decode(topic, part, data, headers):
        return [topic, part, len(data)] if part == "value" else None
    """
    )
    project.makeini("[pytest]\npythonpath = .\nkproxy_decoder = decoding:decode\n")
    run(project).assert_outcomes(passed=1)
    project.makepyfile(
        """
    import confluent_kafka
    import pytest

    @pytest.mark.kproxy(recording="demo")
    def test_it(kproxy):
        producer = confluent_kafka.Producer({"bootstrap.servers": kproxy.bootstrap})
        producer.produce("orders", key="customer-1", value="abc")
        producer.flush(30)
    """
    )
    found = run(project)
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines("*the record of key* has value?2? 3, recorded *")
