"""Spring Boot and Kafka Streams: an app is green without a change, and red in a sentence with each.

What no change of such an app can do is left out: only the transactional listener and Kafka Streams
can abort, and these two commit offsets themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.bed import jvm, needs
from tests.integration import recipes
from tests.integration.recipes import CHANGES
from tests.versions import ALL, some

pytestmark = [pytest.mark.broker, pytest.mark.java]

CLIENTS = needs.REPOSITORY / "tests" / "bed" / "clients"
AGAIN = r"\S+-repartition: the record is not in the recording: key 'c2'"
SENTENCES = {
    "spring": {name: CHANGES[name] for name in CHANGES if name != "abort"},
    "spring-transactional": {name: CHANGES[name] for name in CHANGES if name != "no-commit"},
    "streams": {name: CHANGES[name] for name in CHANGES if name != "no-commit"}
    | {"topic": AGAIN, "commit-first": r"\S+: \d+ records were produced outside a transaction"}
    | {"abort": r"invoices: the record of key '\w+' was produced in a transaction that was ab"},
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


@pytest.mark.parametrize("name", some(list(SENTENCES), ["spring", "streams"]))
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
