"""What all tests share: hypothesis profiles, and the brokers of the test bed.

Profiles: `ci` (the default) is quick and always tries the same examples: what it says of a change
is about that change, and is the same when it is run again. `all`, which KPROXY_TEST_ALL=1 takes,
takes its time, and tries others each time: that is where new defects turn up. It prints what
repeats an example that fails; such an example becomes one by name (`@example`). See
`tests.versions`.

Brokers live for the whole run and start when the first test of any process asks for them
(`tests.bed.shared`). Names are never shared between tests (`prefix`), so one broker serves them
all.

The whole suite is shared out to four processes (pytest-xdist), by file, so that fixtures of a
module start once; what uses Spark's session goes to one of them. What takes longest comes first:
one process would work it off alone at the end. Where files or tests are named, all happens in one
process, as without pytest-xdist; `-n0` has it so for all.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests import versions
from tests.bed import brokers, certificates, kafka, mock_cluster, needs, shared, traffic
from tests.bed.certificates import Certificates

hypothesis.settings.register_profile("ci", max_examples=50, derandomize=True, deadline=None)
hypothesis.settings.register_profile("all", max_examples=500, deadline=None, print_blob=True)
hypothesis.settings.load_profile("all" if versions.ALL else "ci")


# Hundreds of tests start kproxy: compiled once, each starts in half the time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Tests are those of somebody at a desk, wherever they run; those of CI say so themselves.
for _name in ("CI", "BUILD_NUMBER", "TF_BUILD", "KPROXY_BROKER"):
    os.environ.pop(_name, None)

WORKERS = 4
"""Two cores are busy while others wait for their clients and brokers."""
LONGEST = (
    "tests/spark/",
    "tests/integration/",
    "tests/testing/",
    "tests/look/page/",
    "tests/look/pictures/",
    "tests/tables/",
    "tests/simulation/",
    "tests/test_",
    "tests/wire/protocol/",
    "tests/look/lines/",
    "tests/capture/",
)
"""What takes longest, first: many short files are left, which end at the same time."""
TOGETHER = (
    ("tests/spark/", "Spark's session"),
    ("tests/look/page/test_browser.py", "the browser"),
    ("tests/look/pictures/test_in_a_browser.py", "the browser"),
    ("tests/integration/test_clients.py", "what each client records"),
    ("tests/integration/test_replay.py", "what each client records"),
)
"""Files that share what is made once in a process, and of what."""


def pytest_configure(config: pytest.Config) -> None:
    """Share brokers and recordings among all processes."""
    config.add_cleanup(shared.begin())
    gc.disable()  # until all is collected: it takes a quarter of that time


def pytest_collection_finish() -> None:
    """Have no collector of garbage look at the tests again and again."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """How many processes `-n auto` is."""
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return WORKERS if whole else 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what takes longest first."""

    def place(item: pytest.Item) -> int:
        found = (n for n, name in enumerate(LONGEST) if item.nodeid.startswith(name))
        return next(found, len(LONGEST))

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Share out the files, in the order of the tests."""
    config.option.loadscopereorder = False
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return next((name for start, name in TOGETHER if file.startswith(start)), file)

    return ByFile(config, log)


@pytest.fixture
def prefix() -> str:
    """A prefix for topics and groups that no other test of any session uses."""
    return f"t{os.urandom(4).hex()}"


@pytest.fixture(scope="session")
def bed_folder() -> Path:
    """Where brokers keep their data; removed at the end, it gets big."""
    return shared.folder()


@pytest.fixture(scope="session")
def issued() -> Certificates:
    """All certificates, right and wrong."""
    return shared.once("certificates", certificates.make)


@pytest.fixture(scope="session")
def kafka_431(issued: Certificates) -> kafka.Kafka:
    """A Kafka 4.3.1 broker with all listeners, of all processes; do not stop it."""
    return shared.once("4.3.1", lambda folder: kafka.started("4.3.1", folder, issued))


@pytest.fixture(scope="session")
def kafka_392() -> kafka.Kafka:
    """A Kafka 3.9.2 broker, of all processes; do not stop it."""
    return shared.once("3.9.2", lambda folder: kafka.started("3.9.2", folder))


@pytest.fixture(scope="session")
def mock_brokers() -> Iterator[str]:
    """The bootstrap addresses of a mock cluster of three brokers."""
    with mock_cluster.running() as addresses:
        yield addresses


@pytest.fixture(scope="session")
def any_broker(request: pytest.FixtureRequest) -> Iterator[brokers.Found]:
    """Whatever broker this machine has, the most real first: see `brokers`."""
    fixture = request.getfixturevalue
    with brokers.found(lambda: fixture("kafka_431"), lambda: fixture("mock_brokers")) as broker:
        yield broker


@pytest.fixture(scope="session")
def real_broker(any_broker: brokers.Found) -> str:
    """The bootstrap address of a broker of Apache Kafka, whatever kind of it is there."""
    if any_broker.kind == "mock":
        needs.missing("this machine has no broker of Apache Kafka")
    return any_broker.address


@pytest.fixture(scope="session")
def kproxy_broker(real_broker: str) -> str:
    """Where `pytest --kproxy-mode=rewrite` records, and `verify` compares."""
    return real_broker


@pytest.fixture(scope="session")
def broken(mock_brokers: str) -> Path:
    """A folder with a rotated recording of several clients and faults; do not change it."""
    return shared.once("broken", lambda folder: traffic.broken(mock_brokers, folder, "spark-"))
