"""What tests of the pytest plugin share: a project, and runs of pytest in it."""

from __future__ import annotations

import shutil

import pytest

from kproxy import demo
from kproxy.testing import runs
from tests.bed import needs

DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"
APP = """
    import confluent_kafka
    import pytest

    QUIET = {"log_level": 0}

    def produce(bootstrap, value, topic="orders", key="k"):
        producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, **QUIET})
        producer.produce(topic, key=key, value=value)
        assert producer.flush(10) == 0
"""


LOADED = demo, runs
"""Imported here once: what a run in this process imports is forgotten with it."""


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """Run pytest, in this process: that is ten times as fast as in one of its own."""
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", *arguments)


def record(pytester: pytest.Pytester, brokers: str, mode: str = "once") -> pytest.RunResult:
    """Run it in a mode that needs brokers."""
    return run(pytester, f"--kproxy-mode={mode}", "--kproxy-broker", brokers)


def demo_project(pytester: pytest.Pytester, source: str) -> pytest.Pytester:
    """A project with the recording of the demo."""
    (pytester.path / "recordings").mkdir()
    shutil.copy(DEMO, pytester.path / "recordings")
    pytester.makepyfile(f"    import pytest\n    from kproxy import demo\n{source}")
    return pytester
