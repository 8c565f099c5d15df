"""What all tests share: hypothesis profiles, and the brokers of the test bed.

Profiles: `ci` (the default) is quick and always tries the same examples: what it says of a change
is about that change, and is the same when it is run again. `all`, which KPROXY_TEST_ALL=1 takes,
takes its time, and tries others each time: that is where new defects turn up. It prints what
repeats an example that fails; such an example becomes one by name (`@example`). See
`tests.versions`.

Brokers live for the whole session and start when the first test asks for them. Names are never
shared between tests (`prefix`), so one broker serves them all.

The whole suite is shared out to four processes (pytest-xdist), by file, so that fixtures of a
module start once; what uses Spark's session goes to one of them, and what `kproxy analyze` makes
to one. What takes longest comes first: one process would work it off alone at the end. Where files
or tests are named, all happens in one process, as without pytest-xdist; `-n0` has it so for all.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests import versions
from tests.bed import brokers, certificates, kafka, mock_cluster, needs
from tests.bed.certificates import Certificates

hypothesis.settings.register_profile("ci", max_examples=50, derandomize=True, deadline=None)
hypothesis.settings.register_profile("all", max_examples=500, deadline=None, print_blob=True)
hypothesis.settings.load_profile("all" if versions.ALL else "ci")


WORKERS = 4
"""Two cores are busy while others wait for their clients and brokers."""
LONGEST = (
    "tests/spark/",
    "tests/recording/test_reader.py",
    "tests/test_typing_and_lint.py",
    "tests/testing/test_recipes.py",
    "tests/integration/",
    "tests/tables/",
    "tests/testing/",
)
"""What takes minutes, the longest first."""


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
            if not file.startswith("tests/spark/"):
                return file
            commanded = file.endswith(("/test_analyze.py", "/test_described.py"))
            return "tests/spark/command" if commanded else "tests/spark"

    return ByFile(config, log)


@pytest.fixture
def prefix() -> str:
    """A prefix for topics and groups that no other test of any session uses."""
    return f"t{os.urandom(4).hex()}"


@pytest.fixture(scope="session")
def bed_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the session's brokers keep their data; removed at the end, it gets big."""
    folder = tmp_path_factory.mktemp("brokers")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def issued(bed_folder: Path) -> Certificates:
    """All certificates, right and wrong."""
    return certificates.make(bed_folder / "certificates")


@pytest.fixture(scope="session")
def kafka_431(bed_folder: Path, issued: Certificates) -> Iterator[kafka.Kafka]:
    """A Kafka 4.3.1 broker with all listeners; do not stop it."""
    with kafka.running("4.3.1", bed_folder / "4.3.1", issued) as broker:
        yield broker


@pytest.fixture(scope="session")
def kafka_392(bed_folder: Path) -> Iterator[kafka.Kafka]:
    """A Kafka 3.9.2 broker; do not stop it."""
    with kafka.running("3.9.2", bed_folder / "3.9.2") as broker:
        yield broker


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
def broken(mock_brokers: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a rotated recording of several clients and faults."""
    from tests.bed import traffic

    return traffic.broken(mock_brokers, tmp_path_factory.mktemp("broken"), "spark-")


@pytest.fixture(scope="session")
def redacted(kafka_431: kafka.Kafka, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of a client that logs in."""
    from tests.bed import traffic

    folder = tmp_path_factory.mktemp("redacted")
    return traffic.redacted(kafka_431.sasl_address, folder, "spark-")
