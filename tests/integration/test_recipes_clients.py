"""Apps in Node, Go and Python that bill orders: recorded twice, green ten times, red for a change.

Each client has its app in `tests/bed/clients/billing*`, with two guarantees: `once`, invoices and
offsets in a transaction, and `atleast`, offsets behind invoices. What varies is learned.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.bed import needs, programs, shared
from tests.integration import recipes
from tests.integration.recipes import CHANGES
from tests.versions import ALL, some

pytestmark = [pytest.mark.broker]

CLIENTS = Path(programs.__file__).parent / "clients"
CONFLUENT = "@confluentinc/kafka-javascript@1.10.1"
"""npm has no binary of it: it fetches one from the place of its sources."""


def node(library: str, modules: Path) -> list[str]:
    program = [needs.program("node"), str(CLIENTS / "billing.js"), library]
    return ["env", f"NODE_PATH={modules}", *program]


def confluent() -> list[str]:
    modules = programs.npm_packages("confluent-1.10.1", [CONFLUENT], with_scripts=True)
    return node("confluent", modules)


APPS = {
    "kafkajs": lambda: node("kafkajs", programs.node_modules()),
    "confluent": confluent,
    "franz-go": lambda: [programs.go_program("billing_franz.go", programs.FRANZ_GO, programs.UUID)],
    "sarama": lambda: [programs.go_program("billing_sarama.go", programs.SARAMA, programs.UUID)],
    "aiokafka": lambda: [sys.executable, str(CLIENTS / "billing.py")],
}
"""Client → the command of its app, up to the guarantee."""
IN_CI = [
    ("kafkajs", "once", "topic"),
    ("franz-go", "once", "abort"),
    ("sarama", "atleast", "commit-first"),
    ("aiokafka", "atleast", "no-commit"),
]
EVERY = [
    (client, guarantee, change)
    for client in APPS
    for guarantee in ("once", "atleast")
    for change in CHANGES
    if (guarantee, change) != ("atleast", "abort")
]


def tried(size: int) -> list:
    """The cases, of so many parts each."""
    cases = dict.fromkeys(each[:size] for each in some(EVERY, IN_CI))
    marks = {"kafkajs": pytest.mark.node, "confluent": pytest.mark.node}
    return [pytest.param(*each, marks=marks.get(each[0], ())) for each in cases]


def app(client: str, guarantee: str) -> tuple[str, list[str]]:
    """The prefix of its names, and its command."""
    prefix = f"{client}-{guarantee}-"
    return prefix, [*APPS[client](), guarantee, prefix]


def recorded(client: str, guarantee: str, broker: str) -> Path:
    """The recording of an app, made once."""

    def make(folder: Path) -> Path:
        path = folder / "billing.mcap"
        said = recipes.record(path, broker, *app(client, guarantee))
        assert "learned what varies: 10 parts" in said
        return path

    return shared.once(f"billing-{client}-{guarantee}", make)


@pytest.mark.parametrize(("client", "guarantee"), tried(2))
def test_without_a_change_it_is_green(client: str, guarantee: str, real_broker: str) -> None:
    path = recorded(client, guarantee, real_broker)
    for _ in range(10 if ALL else 1):
        code, said = recipes.replay(path, *app(client, guarantee))
        assert code == 0, said


@pytest.mark.parametrize(("client", "guarantee", "change"), tried(3))
def test_each_change_is_red_in_a_sentence(
    client: str, guarantee: str, change: str, real_broker: str
) -> None:
    path = recorded(client, guarantee, real_broker)
    recipes.is_red(recipes.replay(path, *app(client, guarantee), change), change)
