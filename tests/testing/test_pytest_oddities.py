"""The pytest plugin where tests are run or named in ways of their own."""

from __future__ import annotations

import pytest

from tests.testing.plugin import APP, demo_project, record, run

pytest_plugins = ["pytester"]


def test_names_that_differ_only_in_case_have_files_of_their_own_everywhere(
    pytester: pytest.Pytester, mock_brokers: str
) -> None:
    pytester.makepyfile(
        test_app=APP
        + """
    def test_get(kproxy):
        produce(kproxy.bootstrap, "a")

    def test_Get(kproxy):
        produce(kproxy.bootstrap, "b")

    def test_Alone(kproxy):
        produce(kproxy.bootstrap, "c")

    class TestIt:
        def test_one(self, kproxy):
            produce(kproxy.bootstrap, "d")

    class TestIT:
        def test_one(self, kproxy):
            produce(kproxy.bootstrap, "e")
    """
    )
    record(pytester, mock_brokers).assert_outcomes(passed=5)
    run(pytester).assert_outcomes(passed=5)
    run(pytester, "-k", "test_Get and not TestI").assert_outcomes(passed=2, deselected=3)
    names = [path.name for path in (pytester.path / "recordings" / "test_app").iterdir()]
    assert len({name.lower() for name in names}) == 5
    assert {"test_get.mcap", "test_Alone.mcap"} <= set(names)


def test_what_a_fixture_produces_that_asks_for_it_by_name_counts(
    pytester: pytest.Pytester,
) -> None:
    demo_project(
        pytester,
        """
    @pytest.fixture
    def app(request):
        broker = request.getfixturevalue("kproxy")
        yield broker
        demo.produce(broker.bootstrap)

    @pytest.fixture
    def other(app):
        return app

    @pytest.mark.kproxy(recording="demo")
    def test_late(other):
        pass

    @pytest.mark.kproxy(recording="demo")
    def test_by_itself(request):
        demo.produce(request.getfixturevalue("kproxy").bootstrap)
    """,
    )
    run(pytester).assert_outcomes(passed=2)


def test_a_test_that_is_run_again_is_judged_anew(pytester: pytest.Pytester) -> None:
    """As plugins do that give flaky tests another chance."""
    pytester.makeconftest(
        """
    from _pytest.runner import runtestprotocol

    def pytest_runtest_protocol(item, nextitem):
        for last in (False, True):
            reports = runtestprotocol(item, nextitem=nextitem, log=False)
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        return True
    """
    )
    demo_project(
        pytester,
        """
    times = []

    @pytest.fixture
    def app(kproxy):
        times.append(1)
        yield kproxy
        if len(times) == 2:
            demo.produce(kproxy.bootstrap)
            demo.produce(kproxy.bootstrap)  # which nobody has recorded

    @pytest.mark.kproxy(recording="demo", unplayed="allow")
    def test_one(app):
        if len(times) == 1:
            demo.produce(app.bootstrap)
            demo.produce(app.bootstrap)
    """,
    )
    run(pytester).assert_outcomes(passed=1, errors=1)


def test_a_fixture_that_fails_beside_it_keeps_the_recording_that_was_there(
    pytester: pytest.Pytester, mock_brokers: str
) -> None:
    source = """
    @pytest.fixture
    def other(kproxy):
        produce(kproxy.bootstrap, "a")
        {}

    def test_one(other):
        pass
    """
    pytester.makepyfile(test_app=APP + source.format("pass"))
    record(pytester, mock_brokers).assert_outcomes(passed=1)
    kept = pytester.path / "recordings" / "test_app" / "test_one.mcap"
    before = kept.read_bytes()
    pytester.makepyfile(test_app=APP + source.format("raise ValueError"))
    record(pytester, mock_brokers, "rewrite").assert_outcomes(errors=1)
    assert kept.read_bytes() == before
    assert kept.with_name("test_one.failed.mcap").exists()


def test_what_is_skipped_or_fails_as_expected_is_so_in_every_mode(
    pytester: pytest.Pytester, mock_brokers: str
) -> None:
    pytester.makepyfile(
        test_app=APP
        + """
    def test_skips(kproxy):
        produce(kproxy.bootstrap, "a")
        pytest.skip("not here")

    @pytest.fixture
    def app(kproxy):
        produce(kproxy.bootstrap, "b")
        pytest.skip("nor here")

    def test_is_skipped(app):
        pass

    @pytest.mark.xfail(raises=ValueError, strict=True)
    def test_is_expected_to_fail(kproxy):
        produce(kproxy.bootstrap, "c")
        raise ValueError

    def test_says_that_it_fails(kproxy):
        produce(kproxy.bootstrap, "d")
        pytest.xfail("known")
    """
    )
    names = ["test_is_expected_to_fail", "test_is_skipped", "test_says_that_it_fails", "test_skips"]
    folder = pytester.path / "recordings" / "test_app"
    record(pytester, mock_brokers).assert_outcomes(skipped=2, xfailed=2)
    files = {path.stem: path.read_bytes() for path in sorted(folder.iterdir())}
    assert list(files) == names
    run(pytester).assert_outcomes(skipped=2, xfailed=2)
    record(pytester, mock_brokers, "verify").assert_outcomes(skipped=2, xfailed=2)
    record(pytester, mock_brokers, "rewrite").assert_outcomes(skipped=2, xfailed=2)
    kept = [path.stem for path in sorted(folder.iterdir()) if path.read_bytes() == files[path.stem]]
    assert kept == ["test_is_skipped", "test_skips"], "a skipped test replaces no recording"


@pytest.mark.parametrize("fails", ["before", "after"])
def test_a_fixture_that_fails_in_teardown_fails_the_test(
    pytester: pytest.Pytester, mock_brokers: str, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(
        test_app=APP
        + """
    import os

    @pytest.fixture
    def before():
        yield
        assert os.environ.get("FAILS") != "before"

    @pytest.fixture
    def after(kproxy):
        yield
        assert os.environ.get("FAILS") != "after"

    def test_it(before, kproxy, after):
        produce(kproxy.bootstrap, "a")
    """
    )
    folder = pytester.path / "recordings" / "test_app"
    for mode in ("once", "rewrite"):
        monkeypatch.setenv("FAILS", fails)
        good = {path.name: path.read_bytes() for path in folder.glob("test_it.mcap")}
        record(pytester, mock_brokers, mode).assert_outcomes(passed=1, errors=1)
        there = {path.name: path.read_bytes() for path in folder.iterdir()}
        assert there.pop("test_it.failed.mcap")
        assert there == good
        monkeypatch.delenv("FAILS")
        record(pytester, mock_brokers, mode).assert_outcomes(passed=1)
        assert [path.name for path in folder.iterdir()] == ["test_it.mcap"]


def test_an_interrupted_test_leaves_its_recording_as_that_of_a_failed_one(
    pytester: pytest.Pytester, mock_brokers: str
) -> None:
    source = """
    def test_it(kproxy):
        produce(kproxy.bootstrap, "a")
        {}
    """
    folder = pytester.path / "recordings" / "test_app"

    def interrupted(mode: str) -> list[str]:
        pytester.makepyfile(test_app=APP + source.format("raise KeyboardInterrupt"))
        words = ["-p", "no:cacheprovider", f"--kproxy-mode={mode}", "--kproxy-broker", mock_brokers]
        found = pytester.runpytest_inprocess(*words, no_reraise_ctrlc=True)
        assert found.ret == pytest.ExitCode.INTERRUPTED
        return sorted(path.name for path in folder.iterdir())

    assert interrupted("once") == ["test_it.failed.mcap"]
    pytester.makepyfile(test_app=APP + source.format("pass"))
    record(pytester, mock_brokers).assert_outcomes(passed=1)
    kept = folder / "test_it.mcap"
    before = kept.read_bytes()
    assert interrupted("rewrite") == ["test_it.failed.mcap", "test_it.mcap"]
    assert kept.read_bytes() == before
