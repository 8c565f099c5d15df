"""Spring Boot, Kafka Streams, Kafka Connect: green without a change, red in a sentence with each.

What no change of such an app can do is left out: only the transactional listener and Kafka Streams
can abort, and these two commit offsets themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.bed import jvm, needs, programs, proxies
from tests.integration import recipes
from tests.integration.recipes import CHANGES
from tests.versions import ALL, some

pytestmark = [pytest.mark.broker, pytest.mark.java]

CLIENTS = needs.REPOSITORY / "tests" / "bed" / "clients"
AGAIN = r"\S+-repartition: the record is not in the recording: key 'c2'"
SENTENCES = {
    "spring": {name: CHANGES[name] for name in CHANGES if name != "abort"}
    | {"no-commit": rf"{CHANGES['no-commit']}|{CHANGES['commit-first']}"},
    "spring-transactional": {name: CHANGES[name] for name in CHANGES if name != "no-commit"}
    | {"abort": rf"{CHANGES['abort']}|{CHANGES['double']}"},
    "streams": {name: CHANGES[name] for name in CHANGES if name != "no-commit"}
    | {"topic": AGAIN, "commit-first": r"\S+: \d+ records were produced outside a transaction"}
    | {
        "abort": r"\S+: the record of key '\w+' was (never )?produced|\S+: none of its \d+ recorded"
    },
    "streams-at-least-once": {"drop": CHANGES["drop"]},
}
GUARANTEES = {"streams": "exactly_once_v2", "streams-at-least-once": "at_least_once"}
FEW = [("spring", "commit-first")]


class App(NamedTuple):
    """A recorded app."""

    path: Path
    prefix: str
    command: Sequence[str]


def command(name: str, prefix: str) -> list[str]:
    """The command line of an app."""
    if name in GUARANTEES:
        jars = jvm.streams_jars()
        classes = jvm.compiled(CLIENTS / "StreamsInvoices.java", jars)
        arguments = "{bootstrap}", prefix, GUARANTEES[name]
        return jvm.java([classes, jars], "StreamsInvoices", *arguments, level="off")
    jars = jvm.spring_jars()
    classes = jvm.compiled(CLIENTS / "SpringInvoices.java", jars)
    return jvm.java([classes, jars], "shop.SpringInvoices", prefix, name)


@pytest.fixture(scope="module")
def recorded(real_broker: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], App]:
    """Returns an app that is recorded once."""

    @cache
    def app(name: str) -> App:
        path, prefix = tmp_path_factory.mktemp("jvm") / f"{name}.mcap", f"{name}-"
        found = App(path, prefix, command(name, prefix))
        recipes.record(path, real_broker, prefix, found.command)
        return found

    return app


@pytest.mark.parametrize("name", some(list(SENTENCES), ["streams"]))
def test_without_a_change_it_is_green(name: str, recorded: Callable[[str], App]) -> None:
    for _ in range(10 if ALL else 1):
        code, said = recipes.replay(*recorded(name))
        assert code == 0, said


@pytest.mark.parametrize(
    ("name", "change"),
    some([(name, change) for name, of in SENTENCES.items() for change in of], FEW),
)
def test_each_change_is_red_in_a_sentence(
    name: str, change: str, recorded: Callable[[str], App]
) -> None:
    recipes.is_red(recipes.replay(*recorded(name), change), change, SENTENCES[name])


SETTINGS = r"configs: the record of key 'connector-worker-source' has "
CONNECT = {
    "drop": r"offsets: the record of key .+ has position 143, recorded 150 ",
    "double": r"lines: the record was produced once more than recorded: key 'line 0'",
    "wrong-key": rf"{SETTINGS}no properties\.transforms\.wrong-key\.\w+, recorded ",
    "topic": rf'{SETTINGS}properties\.topic "worker-other", recorded "worker-lines"',
    "header-missing": rf"{SETTINGS}no properties\.transforms\.header-missing\.\w+, recorded ",
}
"""A change is one of settings, which are records, too. A worker commits by itself, and its file
connectors know no transactions."""


@pytest.fixture(scope="module")
def worker(kafka_431, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[int, str]]:
    """Returns a function that replays a worker of Kafka Connect, which is recorded."""
    folder = tmp_path_factory.mktemp("connect")
    path, varies = folder / "connect.mcap", folder / "varies.txt"
    prefix = "worker"
    command = [sys.executable, "-m", "tests.bed.connect", "{bootstrap}", prefix]
    command.append(str(folder / "worker"))

    def kproxy(*words: str, change: str = "") -> tuple[int, str]:
        line = ["replay", str(path), *words, "--", *command, *filter(None, [change])]
        done = programs.run([proxies.KPROXY, *line])
        return done.returncode, done.stderr

    code, said = kproxy("--cassette", "once", "--learn", "2", "--broker", kafka_431.address)
    assert code == 0, said
    # What a person does: the number of rebalances, and of what is told of them, is no data.
    listed = programs.run([proxies.KPROXY, "learned", str(path)]).stdout
    varies.write_text(f"{listed.replace('? ', '')}\n{prefix}-status/records\n")
    assert (
        programs.run([proxies.KPROXY, "learned", str(path), "--set", str(varies)]).returncode == 0
    )
    return partial(kproxy, "--compare", "records,commits")


@pytest.mark.skipif(not ALL, reason="half a minute; KPROXY_TEST_ALL=1")
def test_a_worker_of_kafka_connect_is_green(worker: Callable[..., tuple[int, str]]) -> None:
    for _ in range(10):
        code, said = worker()
        assert code == 0, said


@pytest.mark.skipif(not ALL, reason="half a minute; KPROXY_TEST_ALL=1")
@pytest.mark.parametrize("change", CONNECT)
def test_a_worker_of_kafka_connect_is_red(
    change: str, worker: Callable[..., tuple[int, str]]
) -> None:
    recipes.is_red(worker(change=change), change, CONNECT)
