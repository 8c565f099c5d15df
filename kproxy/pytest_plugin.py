"""The pytest plugin: the fixture `kproxy`, a Kafka broker made of a recording.

::

    def test_orders(kproxy):                    # recordings/test_orders/test_orders.mcap
        app.run_once(bootstrap=kproxy.bootstrap)
        assert kproxy.produced("orders.enriched")[0].value == b"..."

    pytest --kproxy-mode=once                   # records what is not recorded yet
    pytest                                      # replays

    collect ─▶ setup: fixture kproxy ─▶ Run.begin
               call ─▶ Run.finish: what the client did otherwise fails the test
               teardown ─▶ Run.close: the recording is kept if the test passed

`runs` has the modes. A broker is only needed to record: override the fixture `kproxy_broker` to
start one, or give --kproxy-broker. trio is imported by the first test that uses the fixture.
"""

from __future__ import annotations

import inspect
import os
import shlex
from collections.abc import Generator, Iterator
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kproxy.testing.broker import Broker
    from kproxy.testing.runs import Run

_MODES = {
    "replay": "the recording is the broker",
    "once": "record what has no recording, replay the rest",
    "rewrite": "record again",
    "verify": "run with a real broker, and compare with the recording",
    "live": "run with a real broker",
}
_CI = ("CI", "BUILD_NUMBER", "TF_BUILD")
"""Any of these variables is set by continuous integration."""
_KEYS = ("recording", "mode", "timing", "visible", "ignore", "unplayed", "users")
"""Of the marker; all but the first are arguments of `kproxy.testing.replay`."""
_MARKER = (
    "kproxy(recording=..., mode=..., timing=..., visible=..., ignore=[...], unplayed=...,"
    " users={...}): how a test uses the fixture kproxy; see kproxy.testing.replay"
)

_run: pytest.StashKey[Run] = pytest.StashKey()
_outcomes: pytest.StashKey[dict[str, str]] = pytest.StashKey()
_recorded: pytest.StashKey[dict[Path, str]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Say what may be typed."""
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
        "--kproxy-record-in-ci",
        action="store_true",
        help="let once and rewrite record where the variable CI is set",
    )
    parser.addini(
        "kproxy_recordings", "folder of recordings, from the root directory", default="recordings"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Know the marker, and refuse to record where nobody would keep it."""
    config.addinivalue_line("markers", _MARKER)
    config.stash[_recorded] = {}
    if config.getoption("kproxy_mode") == "rewrite" and _refused(config):
        raise pytest.UsageError(f"--kproxy-mode=rewrite: {_REFUSED}")


_REFUSED = "recording in CI is refused, for nobody looks at it; --kproxy-record-in-ci allows it"


def _refused(config: pytest.Config) -> bool:
    in_ci = any(os.environ.get(name, "") not in ("", "0", "false") for name in _CI)
    return in_ci and not config.getoption("kproxy_record_in_ci")


def pytest_report_header(config: pytest.Config) -> str:
    """Say the mode, and where recordings are."""
    return f"kproxy: {config.getoption('kproxy_mode')}, recordings in {_folder(config)}"


def _folder(config: pytest.Config) -> str:
    return str(config.getini("kproxy_recordings"))


# ---- fixtures


@pytest.fixture(scope="session")
def kproxy_broker(request: pytest.FixtureRequest) -> str:
    """The bootstrap address of a real broker, to record and verify with: override it to start one.

    It is asked for only where a broker is needed.
    """
    address = request.config.getoption("kproxy_broker") or os.environ.get("KPROXY_BROKER")
    if not address:
        pytest.fail(
            "a real broker is needed: give --kproxy-broker HOST:PORT, or define a fixture"
            " kproxy_broker that starts one and returns its address",
            pytrace=False,
        )
    return address


@pytest.fixture
def kproxy(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker for this test: a recording of it, or a real one that is recorded."""
    from kproxy.testing.runs import Unable, Unrecorded

    node = request.node
    run = _prepared(node)
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
    # What is still found now was done, or not done, by fixtures that stopped before this one.
    failure, kept_as = "", "failed"
    try:
        failure = run.finish(settle=outcome == "passed")
        kept_as = "failed" if failure else outcome
    finally:
        run.close(kept_as)
    if run.mode == "rewrite" and not failure and outcome == "passed":
        node.config.stash[_recorded][run.path] = node.nodeid
    if failure and outcome == "passed" and not node.stash.get(_told, False):
        pytest.fail(failure, pytrace=False)


def _no_broker(why: str) -> Any:
    """What stands for the broker where there is none: whoever uses it fails."""

    class NoBroker:
        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            pytest.fail(why, pytrace=False)

    return NoBroker()


_unrecorded: pytest.StashKey[str] = pytest.StashKey()
"""That a test has no recording: told when it uses one, or passes without; one that is skipped
needs none."""
_asking: pytest.StashKey[tuple[str, ...]] = pytest.StashKey()
"""The fixtures that are being set up, by name; of several, each was asked for by the one before."""
_asked: pytest.StashKey[tuple[str, ...]] = pytest.StashKey()
"""The fixtures that have asked for `kproxy` by its name while they were set up."""
_told: pytest.StashKey[bool] = pytest.StashKey()
"""Whether the test has failed for what its run has found."""


def _address(broker: Any) -> str:
    """An address, or what a container of testcontainers says."""
    ask = getattr(broker, "get_bootstrap_server", None)
    return str(ask() if ask is not None else broker)


def _prepared(node: Any) -> Run:
    """Read a test's marker."""
    from kproxy.testing import replaying
    from kproxy.testing.runs import Run

    config = node.config
    marker = node.get_closest_marker("kproxy")
    words: dict[str, Any] = dict(marker.kwargs) if marker is not None else {}
    wrong = [f"{name}=" for name in words if name not in _KEYS]
    wrong += [repr(each) for each in (marker.args if marker is not None else ())]
    if wrong:
        known = ", ".join(f"{name}=" for name in _KEYS)
        pytest.fail(f"the marker kproxy takes {known}, not {' '.join(wrong)}", pytrace=False)
    path = _path(node, words.get("recording"))
    mode = config.getoption("kproxy_mode")
    records = mode == "rewrite" or (mode == "once" and not path.exists())
    if records and _recorded_by_another(node, path):
        mode, records = "replay", False
    if records and _refused(config):
        pytest.fail(f"there is no recording {_typed(node, path)}, and {_REFUSED}", pytrace=False)
    how, why = None, ""
    try:
        how = replaying(
            path,
            words.get("mode", "state"),
            words.get("visible", "causal"),
            words.get("timing", "fast"),
            words.get("ignore", ()),
            words.get("unplayed", "fail"),
            words.get("users"),
        )
    except ValueError as error:
        why = str(error)
    if how is None:
        pytest.fail(f"the marker kproxy: {why}", pytrace=False)
    ignore = words.get("ignore", ())
    ignore = [ignore] if isinstance(ignore, str) else ignore
    return Run(mode, path, _typed(node, path), _command(node, path), how, ignore)


def _command(node: Any, path: Path) -> str:
    """What to type, where pytest was started, to record a test."""
    config = node.config
    words = ["pytest", f"--kproxy-mode={'rewrite' if path.exists() else 'once'}"]
    if not (config.getoption("kproxy_broker") or os.environ.get("KPROXY_BROKER")):
        # Nothing that is public says whether a fixture was overridden.
        manager = node.session._fixturemanager
        named = manager.getfixturedefs("kproxy_broker", node) or ()
        words += [] if len(named) > 1 else ["--kproxy-broker", "HOST:PORT"]
    _, colons, name = node.nodeid.partition("::")
    return shlex.join([*words, f"{_typed(node, node.path)}{colons}{name}"])


def _recorded_by_another(node: Any, path: Path) -> bool:
    """Whether a test that shares the recording has just made it: then it is replayed."""
    return node.config.stash[_recorded].get(path, node.nodeid) != node.nodeid


def _path(node: Any, named: object) -> Path:
    """Where the recording of a test is: below the folder of recordings."""
    from kproxy.testing import files

    config = node.config
    folder = config.rootpath / _folder(config)
    if named is not None:
        return _below(folder, named)
    module = PurePath(os.path.relpath(node.path, config.rootpath))
    classes = [each for each in node.listchain() if isinstance(each, pytest.Class)]
    names = [(each.name, each.parent) for each in classes]
    names.append((getattr(node, "originalname", None) or node.name, node.parent))
    callspec = getattr(node, "callspec", None)
    parameters = None if callspec is None else callspec.id
    unlike = [_unlike_its_siblings(*each) for each in names]
    return files.test_file(folder, module, unlike, parameters)


def _unlike_its_siblings(name: str, parent: Any) -> str:
    """The name of a class or a test, with a digest where another differs only in its case."""
    from kproxy.testing import files

    siblings = dir(getattr(parent, "obj", None))
    alike = [each for each in siblings if each != name and each.lower() == name.lower()]
    return files.slug(name, cases_differ=False) if alike else name


def _below(folder: Path, named: object) -> Path:
    """The recording that a marker names."""
    from kproxy.testing import files

    if not isinstance(named, str) or not named.strip("./"):
        pytest.fail(f"the marker kproxy: recording is a name, not {named!r}", pytrace=False)
    path = folder / (named if named.endswith(files.SUFFIX) else f"{named}{files.SUFFIX}")
    if not Path(os.path.normpath(path)).is_relative_to(os.path.normpath(folder)):
        text = f"recording={named!r} is outside of the folder of recordings, {folder.name}"
        pytest.fail(f"the marker kproxy: {text}", pytrace=False)
    return path


def _typed(node: Any, path: Path) -> str:
    """A path as it is typed where pytest was started."""
    try:
        return os.path.relpath(path, node.config.invocation_params.dir)
    except ValueError:  # another drive, on Windows
        return str(path)


# ---- what a test's end means


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    """Forget what was when a test ran before: there are plugins that run one again."""
    before: list[Any] = [_run, _unrecorded, _told, _outcomes, _asking, _asked]
    for key in before:
        if key in item.stash:
            del item.stash[key]
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    """Notice who asks for `kproxy` by `getfixturevalue`: a fixture that is being set up then."""
    node = request.node
    if fixturedef.scope != "function":
        return (yield)
    if fixturedef.argname == "kproxy":
        node.stash[_asked] = node.stash.get(_asked, ()) + node.stash.get(_asking, ())
        return (yield)
    before = node.stash.get(_asking, ())
    node.stash[_asking] = (*before, fixturedef.argname)
    try:
        return (yield)
    finally:
        node.stash[_asking] = before


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fail a test for what its client did otherwise, also where the client swallowed the error."""
    try:
        result = yield
    except pytest.skip.Exception:
        raise
    except BaseException:
        if (run := item.stash.get(_run, None)) is not None:
            found = run.findings
            text = [run.text(found)] if found else []
            item.add_report_section("call", "kproxy", "\n".join([*text, run.story()]))
        raise
    if (why := item.stash.get(_unrecorded, None)) is not None:
        pytest.fail(why, pytrace=False)
    if (run := item.stash.get(_run, None)) is not None:
        _fail_for(item, run)
    return result


def _fail_for(item: pytest.Item, run: Run) -> None:
    """Raise what a run has found: all of it, unless fixtures are still at work with it."""
    found = run.findings
    ended = not _is_used_on(item)
    failure = run.finish() if ended else run.text(found) if found else ""
    if failure:
        item.stash[_told] = True
        item.add_report_section("call", "kproxy", run.story())
        pytest.fail(failure, pytrace=False)


def _is_used_on(item: pytest.Item) -> bool:
    """Whether a fixture uses `kproxy`, itself or through others, and ends something before
    `kproxy` ends."""
    definitions = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    last = {name: found[-1] for name, found in definitions.items()}
    asked = [name for name in item.stash.get(_asked, ()) if name in last]
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
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep what became of each phase."""
    report = yield
    item.stash.setdefault(_outcomes, {})[report.when or ""] = report.outcome
    return report


def _outcome(node: Any) -> str:
    """What became of a test: the worst of its phases so far."""
    outcomes = node.stash.get(_outcomes, {})
    for worst in ("failed", "skipped"):
        if worst in outcomes.values():
            return worst
    return "passed" if "call" in outcomes else "failed"
