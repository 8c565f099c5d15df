"""The pytest plugin: the fixture `kproxy`, a Kafka broker made of a recording.

::

    def test_orders(kproxy):                    # recordings/test_orders/test_orders.mcap
        app.run_once(bootstrap=kproxy.bootstrap)
        assert kproxy.produced("orders.enriched")[0].value == b"..."

    pytest --kproxy-mode=once                   # records tests without a recording
    pytest                                      # replays

    collect ─▶ setup: fixture kproxy ─▶ CassetteRun.begin
               call ─▶ CassetteRun.finish: differences from the recording fail the test
               teardown of all fixtures ─▶ CassetteRun.close: the recording is kept if the
                           test passed, and they did

`testing.runs` has the modes. A real broker is only needed to record and to verify: override the
fixture `kproxy_broker` to start one, or give --kproxy-broker. trio is imported by the first test
that uses the fixture.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import pytest
from _pytest import runner

if TYPE_CHECKING:
    from kproxy.testing.broker import Broker
    from kproxy.testing.runs import CassetteRun

_MODES = {
    "replay": "the recording is the broker",
    "once": "record what has no recording, replay the rest",
    "rewrite": "record again",
    "renew": "record again, show what differs, and ask whether to replace each",
    "verify": "run with a real broker, and compare with the recording",
    "live": "run with a real broker",
}
_KEYS = (
    *("recording", "mode", "timing", "visible", "ignore", "expect", "compare", "fail_fast"),
    *("unplayed", "users"),
)
"""Arguments of the marker; all but the first are those of `kproxy.testing.replay`."""
_MARKER = (
    "kproxy(recording=..., mode=..., timing=..., visible=..., ignore=[...], expect=...,"
    " compare=[...], fail_fast=..., unplayed=..., users={...}): how a test uses the fixture kproxy;"
    " see kproxy.testing.replay"
)

_run: pytest.StashKey[CassetteRun] = pytest.StashKey()
_outcomes: pytest.StashKey[dict[str, str]] = pytest.StashKey()
_recorded: pytest.StashKey[dict[Path, str]] = pytest.StashKey()
_said: pytest.StashKey[dict[str, Any]] = pytest.StashKey()
"""What a test has for the end of the session, in its last report: "lines" on what was learned;
"old", the name of its recording and its age in days; "renewed", its path and its name."""
_rehearsals: pytest.StashKey[list[Path]] = pytest.StashKey()
_is_rehearsal: pytest.StashKey[bool] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the plugin's options."""
    group = parser.getgroup("kproxy", "Kafka tests with recordings")
    modes = "; ".join(f"{name}: {text}" for name, text in _MODES.items())
    group.addoption(
        "--kproxy-mode", choices=list(_MODES), default="replay", help=f"{modes} (default: replay)"
    )
    group.addoption(
        "--kproxy-broker",
        metavar="HOST:PORT",
        help="the real broker, where no fixture kproxy_broker names one (default: KPROXY_BROKER)",
    )
    group.addoption(
        "--kproxy-config",
        metavar="FILE",
        help="properties of a client: TLS to the real broker, and where it is if nothing else says"
        " so (default: kproxy_config of pytest's settings)",
    )
    group.addoption(
        "--kproxy-learn",
        metavar="N",
        type=int,
        nargs="?",
        const=2,
        default=1,
        help="with once, rewrite and renew: run each test that is recorded N times (2), and keep in"
        " the recording what varies between these runs: ids, times, …, each with its kind",
    )
    group.addoption(
        "--kproxy-stale-after",
        metavar="TIME",
        type=_seconds,
        help="warn of recordings that are older, as 90d; with renew: record only these again",
    )
    group.addoption(
        "--kproxy-yes", action="store_true", help="with renew: replace all, without a question"
    )
    group.addoption(
        "--kproxy-annotate",
        action="store_true",
        help="mark on GitHub what is different, at the file of its test",
    )
    group.addoption(
        "--kproxy-record-in-ci",
        action="store_true",
        help="let once, rewrite and renew record where the variable CI is set",
    )
    parser.addini(
        "kproxy_recordings", "folder of recordings, from the root directory", default="recordings"
    )
    parser.addini("kproxy_config", "--kproxy-config, from the root directory", default="")
    parser.addini(
        "kproxy_decoder",
        "module:function that says what keys and values mean, for `decoded` of records",
        default="",
    )


def _seconds(text: str) -> float:
    from kproxy.units import parse_seconds

    try:
        return parse_seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and refuse to record in CI, where recordings would be lost."""
    config.addinivalue_line("markers", _MARKER)
    config.stash[_recorded] = {}
    mode = config.getoption("kproxy_mode")
    if mode in ("rewrite", "renew") and _refused(config):
        raise pytest.UsageError(f"--kproxy-mode={mode}: {_REFUSED}")


_REFUSED = "recording in CI is refused, for nobody looks at it; --kproxy-record-in-ci allows it"


def _refused(config: pytest.Config) -> bool:
    from kproxy.testing.files import in_ci

    return in_ci() and not config.getoption("kproxy_record_in_ci")


def pytest_report_header(config: pytest.Config) -> str:
    """Return the mode and the folder of recordings."""
    return f"kproxy: {config.getoption('kproxy_mode')}, recordings in {_folder(config)}"


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Write what was learned and what is to be asked, annotations, and which recordings are old;
    replace those that were renewed."""
    if config.getoption("kproxy_annotate"):
        from kproxy.testing.files import annotation

        for report in terminalreporter.stats.get("failed", ()):
            if any(name == "Captured kproxy call" for name, _ in report.sections):
                first = report.longrepr.reprcrash.message.partition("\n")[0]
                file = report.nodeid.partition("::")[0]
                terminalreporter.write_line(annotation(first, report.nodeid, file))
    reports = [each for several in terminalreporter.stats.values() for each in several]
    said: list[dict[str, Any]] = [each.kproxy for each in reports if hasattr(each, "kproxy")]

    def write(line: str) -> None:
        terminalreporter.write_line(f"kproxy: {line}")

    for line in config.stash.get(_interrupted, "").splitlines():
        write(line)
    for line in (line for each in said for line in each["lines"]):
        write(line)
    if ages := dict(each["old"] for each in said if "old" in each):
        from kproxy.testing.renewing import stale_line

        write(stale_line(ages, "pytest --kproxy-mode=renew"))
    if renewed := dict(each["renewed"] for each in said if "renewed" in each):
        _replace(config, renewed, write)


def _replace(config: pytest.Config, renewed: dict[str, str], write: Callable[[str], None]) -> None:
    """Replace recordings by what was recorded again, with the terminal's stdin for questions."""
    from kproxy.testing.renewing import Renewed, replace

    capturing: Any = config.pluginmanager.getplugin("capturemanager")
    if capturing is not None:
        capturing.suspend(in_=True)
    is_sure = config.getoption("kproxy_yes")
    stay = replace([Renewed(Path(p), name) for p, name in renewed.items()], write, is_sure=is_sure)
    if stay and not sys.stdin.isatty():
        write("there is no terminal to ask: --kproxy-yes replaces all")


def _folder(config: pytest.Config) -> str:
    return str(config.getini("kproxy_recordings"))


def _properties(config: pytest.Config) -> Path | None:
    """Return the path of the properties of a client."""
    if typed := config.getoption("kproxy_config"):
        return config.invocation_params.dir / typed
    named = str(config.getini("kproxy_config"))
    return config.rootpath / named if named else None


# ---- fixtures


@pytest.fixture(scope="session")
def kproxy_broker(request: pytest.FixtureRequest) -> str:
    """The bootstrap address of a real broker, to record and verify with: override it to start one.

    It is only requested in modes that need a broker.
    """
    address = request.config.getoption("kproxy_broker") or os.environ.get("KPROXY_BROKER")
    if not address and _properties(request.config) is None:
        pytest.fail(
            "a real broker is needed: give --kproxy-broker HOST:PORT, or --kproxy-config"
            " client.properties, or define a fixture kproxy_broker that starts one and returns its"
            " address",
            pytrace=False,
        )
    return address or ""


@pytest.fixture
def kproxy(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker for this test: a recording of it, or a real one that is recorded."""
    from kproxy.testing.runs import Unable, Unrecorded

    node = request.node
    run = _run_of(node)
    broker: Any = None
    unable = ""
    try:
        broker = run.begin(lambda: _address(request.getfixturevalue("kproxy_broker")))
    except Unrecorded as error:
        node.stash[_unrecorded] = str(error)
    except Unable as error:
        unable = str(error)
    if unable:
        pytest.fail(unable, pytrace=False)
    if broker is None:
        yield _no_broker(node.stash[_unrecorded])
        return
    node.stash[_run] = run
    yield broker
    outcome = _outcome(node)
    # New findings now come from fixtures that were torn down before this one.
    failure = ""
    try:
        failure = run.finish(succeeded=outcome == "passed")
    finally:
        if not node.stash.get(_torn_down, False):  # the run of pytest was interrupted
            run.close("failed")
    if failure and outcome == "passed" and not node.stash.get(_findings_reported, False):
        pytest.fail(failure, pytrace=False)


def _no_broker(why: str) -> Any:
    """Return an object in place of a broker, whose use fails the test."""

    class NoBroker:
        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            pytest.fail(why, pytrace=False)

    return NoBroker()


_unrecorded: pytest.StashKey[str] = pytest.StashKey()
"""The reason why a test has no recording. The test fails with it when it uses the broker, or
passes without; one that is skipped needs no recording."""
_being_set_up: pytest.StashKey[tuple[str, ...]] = pytest.StashKey()
"""Names of the fixtures that are being set up; each was requested by the one before."""
_requesters: pytest.StashKey[tuple[str, ...]] = pytest.StashKey()
"""Names of the fixtures that requested `kproxy` by `getfixturevalue` while they were set up."""
_torn_down: pytest.StashKey[bool] = pytest.StashKey()
"""True when the test's own teardown has begun, which closes its run."""
_finding: pytest.StashKey[str] = pytest.StashKey()
"""The first finding of a test that failed by itself."""
_handler: pytest.StashKey[Any] = pytest.StashKey()
"""The handler of Ctrl-C before a test was set up."""
_interrupted: pytest.StashKey[str] = pytest.StashKey()
"""The findings of the test that was interrupted, and so has no report, in a run's stash."""
_findings_reported: pytest.StashKey[bool] = pytest.StashKey()
"""True after the test has failed with the findings of its run."""


def _address(broker: Any) -> str:
    """Return an address, or that of a container of testcontainers."""
    ask = getattr(broker, "get_bootstrap_server", None)
    return str(ask() if ask is not None else broker)


def _run_of(node: Any) -> CassetteRun:
    """Read a test's marker, and return its run."""
    from kproxy.testing import replay
    from kproxy.testing.renewing import made_by
    from kproxy.testing.runs import CassetteRun
    from kproxy.testing.sessions import Front

    config = node.config
    marker = node.get_closest_marker("kproxy")
    words: dict[str, Any] = dict(marker.kwargs) if marker is not None else {}
    wrong = [f"{name}=" for name in words if name not in _KEYS]
    wrong += [repr(each) for each in (marker.args if marker is not None else ())]
    if wrong:
        known = ", ".join(f"{name}=" for name in _KEYS)
        pytest.fail(f"the marker kproxy takes {known}, not {' '.join(wrong)}", pytrace=False)
    path = _path(node, words.pop("recording", None))
    mode = config.getoption("kproxy_mode")
    old = _age(node, path)
    if mode == "renew" and path.exists() and old is None and _stale_after(config) is not None:
        mode = "replay"
    records = mode in ("rewrite", "renew") or (mode == "once" and not path.exists())
    if records and _recorded_by_another(node, path):
        from kproxy.testing.files import renewed_file

        path = renewed_file(path) if renewed_file(path).exists() else path
        mode, records = "replay", False
    if records and _refused(config):
        pytest.fail(
            f"there is no recording {_relative_path(node, path)}, and {_REFUSED}", pytrace=False
        )
    how, why = None, ""
    try:
        how = replay(path, **words).how
    except ValueError as error:
        why = str(error)
    if how is None:
        pytest.fail(f"the marker kproxy: {why}", pytrace=False)
    ignore = words.get("ignore", ())
    ignore = [ignore] if isinstance(ignore, str) else ignore
    shown, again = _relative_path(node, path), _command(node, path)
    front = Front(decoder=str(config.getini("kproxy_decoder")))
    found = CassetteRun(mode, path, shown, again, how, ignore, _properties(config), front)
    found.rehearsals = node.stash.get(_rehearsals, None)
    found.is_rehearsal = node.stash.get(_is_rehearsal, False)
    said: dict[str, Any] = {"lines": []}
    node.stash[_said] = said
    if old is not None and not records:
        said["old"] = (shown, old)
    found.log = front.log_to(said["lines"])
    found.made_by = made_by(path, config.rootpath, test=node.nodeid)
    return found


def _stale_after(config: pytest.Config) -> float | None:
    return config.getoption("kproxy_stale_after")


def _age(node: Any, path: Path) -> int | None:
    """Return the age of a recording in days, if it is stale."""
    from kproxy.recording import RecordingError
    from kproxy.testing.renewing import days_old

    with contextlib.suppress(RecordingError, OSError):  # which its replay says
        return days_old(path, _stale_after(node.config))
    return None


def _command(node: Any, path: Path) -> str:
    """Return the command that records a test, run where pytest was started."""
    config = node.config
    words = ["pytest", f"--kproxy-mode={'rewrite' if path.exists() else 'once'}"]
    address = config.getoption("kproxy_broker") or os.environ.get("KPROXY_BROKER")
    if not (address or _properties(config)):
        # pytest has no public way to see whether a fixture was overridden.
        manager = node.session._fixturemanager
        named = manager.getfixturedefs("kproxy_broker", node) or ()
        words += [] if len(named) > 1 else ["--kproxy-broker", "HOST:PORT"]
    _, colons, name = node.nodeid.partition("::")
    return shlex.join([*words, f"{_relative_path(node, node.path)}{colons}{name}"])


def _recorded_by_another(node: Any, path: Path) -> bool:
    """Return whether another test that shares the recording has just made it: then replay it."""
    return node.config.stash[_recorded].get(path, node.nodeid) != node.nodeid


def _path(node: Any, named: object) -> Path:
    """Return the path of a test's recording, below the folder of recordings."""
    from kproxy.testing import files

    config = node.config
    folder = config.rootpath / _folder(config)
    if named is not None:
        return _named_path(folder, named)
    module = PurePath(os.path.relpath(node.path, config.rootpath))
    classes = [each for each in node.listchain() if isinstance(each, pytest.Class)]
    names = [(each.name, each.parent) for each in classes]
    names.append((getattr(node, "originalname", None) or node.name, node.parent))
    callspec = getattr(node, "callspec", None)
    parameters = None if callspec is None else callspec.id
    unique = [_unique_name(*each) for each in names]
    return files.test_file(folder, module, unique, parameters)


def _unique_name(name: str, parent: Any) -> str:
    """Return the name of a class or a test, with a digest if another differs only in its case."""
    from kproxy.testing import files

    siblings = dir(getattr(parent, "obj", None))
    alike = [each for each in siblings if each != name and each.lower() == name.lower()]
    return files.slug(name, cases_differ=False) if alike else name


def _named_path(folder: Path, named: object) -> Path:
    """Return the path of the recording that a marker names."""
    from kproxy.testing import files

    if not isinstance(named, str) or not named.strip("./"):
        pytest.fail(f"the marker kproxy: recording is a name, not {named!r}", pytrace=False)
    path = folder / (named if named.endswith(files.SUFFIX) else f"{named}{files.SUFFIX}")
    if not Path(os.path.normpath(path)).is_relative_to(os.path.normpath(folder)):
        text = f"recording={named!r} is outside of the folder of recordings, {folder.name}"
        pytest.fail(f"the marker kproxy: {text}", pytrace=False)
    return path


def _relative_path(node: Any, path: Path) -> str:
    """Return a path relative to where pytest was started."""
    try:
        return os.path.relpath(path, node.config.invocation_params.dir)
    except ValueError:  # another drive, on Windows
        return str(path)


# ---- runs before the one to keep


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """With --kproxy-learn run a test that is recorded several times: the last run is kept, with
    what varies between all of them."""
    many = item.config.getoption("kproxy_learn")
    if many < 2 or "kproxy" not in getattr(item, "fixturenames", ()) or not _will_record(item):
        return None
    from kproxy.testing.learning import rehearsed

    # Its fixtures are torn down in between, those of its module and its session are not.
    with rehearsed() as item.stash[_rehearsals]:
        for number in range(many):
            is_last = number == many - 1
            item.stash[_is_rehearsal] = not is_last
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
            after: Any = nextitem if is_last else item.parent
            reports = runner.runtestprotocol(item, log=False, nextitem=after)
            if is_last or not all(each.passed for each in reports):
                for report in reports:
                    item.ihook.pytest_runtest_logreport(report=report)
                break
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _will_record(item: pytest.Item) -> bool:
    with contextlib.suppress(pytest.fail.Exception):  # which its setup says
        return _run_of(item).will_record
    return False


# ---- the end of a test


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    """Remove the state of an earlier run of the test: some plugins run a test again. Note whose
    Ctrl-C is."""
    item.stash[_handler] = signal.getsignal(signal.SIGINT)
    before: list[Any] = [_run, _unrecorded, _torn_down, _findings_reported, _finding, _outcomes]
    before += [_being_set_up, _requesters]
    for key in before:
        if key in item.stash:
            del item.stash[key]
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    """Note the fixtures that request `kproxy` by `getfixturevalue`: those being set up then."""
    node = request.node
    if fixturedef.scope != "function":
        return (yield)
    if fixturedef.argname == "kproxy":
        node.stash[_requesters] = node.stash.get(_requesters, ()) + node.stash.get(
            _being_set_up, ()
        )
        return (yield)
    before = node.stash.get(_being_set_up, ())
    node.stash[_being_set_up] = (*before, fixturedef.argname)
    try:
        return (yield)
    finally:
        node.stash[_being_set_up] = before


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fail a test whose client differs from the recording, even if the client hides the error."""
    try:
        result = yield from _ended_when_red(item)
    except pytest.skip.Exception:
        raise
    except BaseException as error:
        run = item.stash.get(_run, None)
        if run is not None and item.stash.get(_findings_reported, False):
            item.add_report_section("call", "kproxy", run.story())
        elif run is not None:
            # An app that did not come to its end lacks records, and that is no cause.
            is_interrupted = isinstance(error, KeyboardInterrupt)
            lacks = is_interrupted or isinstance(error, AssertionError)
            found = run.findings or (run.missing if lacks else [])
            text = [run.text(found)] if found else []
            item.stash[_finding] = "".join(text).partition("\n")[0]
            item.add_report_section("call", "kproxy", "\n".join([*text, run.story()]))
            if is_interrupted:
                item.config.stash[_interrupted] = "".join(text)
        raise
    if (why := item.stash.get(_unrecorded, None)) is not None:
        pytest.fail(why, pytrace=False)
    if (run := item.stash.get(_run, None)) is not None:
        _fail_with_findings(item, run)
    return result


_GIVE_UP_SECONDS, _AGAIN_SECONDS = 1.0, 3.0
"""Behind the first difference: in this time a client has its error, and the test mostly its own;
and until a test that goes on is interrupted again."""


def _ended_when_red(item: pytest.Item) -> Generator[None, Any, Any]:
    """Run a test. With `fail_fast`, one that still waits when it has failed is ended as by Ctrl-C:
    whatever runs in the main thread knows how to end then.

    Meanwhile the handler of Ctrl-C is Python's own, the only one in whose place trio sets its own.
    Any other, such as that of Spark's session, would raise in the middle of trio's loop, and then
    no other loop could begin. Afterwards the handler from before is set again, unless the test has
    set one. A handler that a fixture of the test has set is left alone: an app ends by it."""
    run, main = item.stash.get(_run, None), threading.main_thread()
    can_end = hasattr(signal, "pthread_kill") and threading.current_thread() is main
    if run is None or not run.fails_fast or not can_end:
        return (yield)
    before = signal.getsignal(signal.SIGINT)
    if before is not item.stash.get(_handler, None):
        before = None  # it is a fixture's
    if before is not None:  # else it was not set by Python, which could not set it again
        signal.signal(signal.SIGINT, signal.default_int_handler)
    is_over, interrupted = threading.Event(), threading.Event()

    def interrupt() -> None:
        seconds = _GIVE_UP_SECONDS
        while not is_over.wait(seconds):
            seconds = _AGAIN_SECONDS
            if callable(signal.getsignal(signal.SIGINT)):
                interrupted.set()
                signal.pthread_kill(main.ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt, daemon=True)

    def begin() -> None:
        if thread.ident is None:
            thread.start()

    run.when_red(begin)
    try:
        try:
            return (yield)
        finally:
            has_ended = False
            while not has_ended:
                try:  # what is on its way comes here, before any of this is done, or between
                    run.when_red(lambda: None)
                    is_over.set()
                    if thread.ident is not None:
                        thread.join()
                    has_ended = True
                except KeyboardInterrupt:
                    continue
            if interrupted.is_set() and signal.SIGINT in signal.sigpending():
                signal.sigwait({signal.SIGINT})  # the test has blocked it
            is_own = signal.getsignal(signal.SIGINT) is signal.default_int_handler
            if is_own and before is not None:
                signal.signal(signal.SIGINT, before)
    except BaseException:
        if interrupted.is_set():
            item.stash[_findings_reported] = True
            raise pytest.fail.Exception(run.text(run.findings), pytrace=False) from None
        raise


def _fail_with_findings(item: pytest.Item, run: CassetteRun) -> None:
    """Fail a test with the findings of its run; end the run unless a fixture still uses it."""
    found = run.findings
    ended = not _has_active_users(item)
    failure = run.finish() if ended else run.text(found) if found else ""
    if failure:
        item.stash[_findings_reported] = True
        item.add_report_section("call", "kproxy", run.story())
        pytest.fail(failure, pytrace=False)


def _has_active_users(item: pytest.Item) -> bool:
    """Return whether a fixture with a teardown uses `kproxy`, itself or through others."""
    definitions = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    last = {name: found[-1] for name, found in definitions.items()}
    asked = [name for name in item.stash.get(_requesters, ()) if name in last]
    names, users = ["kproxy", *asked], [last[name] for name in asked]
    for name in names:  # it grows
        found = [user for user in last if name in last[user].argnames]
        users += [last[user] for user in found]
        names += [user for user in found if user not in names]
    return any(
        "request" in user.argnames
        or inspect.isgeneratorfunction(user.func)
        or inspect.isasyncgenfunction(user.func)
        for user in users
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    """Keep the recording when all fixtures are torn down: one that fails makes the test fail."""
    item.stash[_torn_down] = True
    outcome = "failed"
    try:
        result = yield
        outcome = _outcome(item)
    finally:
        if (run := item.stash.get(_run, None)) is not None:
            run.close(outcome)
    if run is not None and run.mode in ("rewrite", "renew") and outcome in ("passed", "xfailed"):
        from kproxy.testing.files import renewed_file

        item.config.stash[_recorded][run.path] = item.nodeid
        if renewed_file(run.path).exists():
            item.stash[_said]["renewed"] = (str(run.path), run.shown)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep the outcome of each phase; name a finding where the app's own assertion came first."""
    report = yield
    found = item.stash.get(_finding, "") if call.when == "call" else ""
    if found and (crash := getattr(report.longrepr, "reprcrash", None)) is not None:
        crash.message = f"kproxy: {found} | {crash.message}"  # of the summary, and of JUnit's XML
    if call.when == "teardown" and _said in item.stash:
        report.kproxy = item.stash[_said]  # type: ignore[attr-defined]
    outcome = report.outcome
    if outcome == "skipped" and hasattr(report, "wasxfail"):
        outcome = "xfailed"
    item.stash.setdefault(_outcomes, {})[report.when or ""] = outcome
    return report


def _outcome(node: Any) -> str:
    """Return the outcome of a test: the worst of its phases so far."""
    outcomes = node.stash.get(_outcomes, {})
    for worst in ("failed", "skipped", "xfailed"):
        if worst in outcomes.values():
            return worst
    return "passed" if "call" in outcomes else "failed"
