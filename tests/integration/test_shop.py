"""Two services, recorded and replayed: each change of what they do is red, and nothing else is.

The app is `tests/bed/clients/shop.py`; it begins with empty topics, works in transactions, and its
ids, times and keys are new in each run.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.bed import needs, programs, proxies
from tests.versions import ALL, some

pytestmark = [pytest.mark.broker]

SHOP = needs.REPOSITORY / "tests" / "bed" / "clients" / "shop.py"
UNMET = 3
COMPARED = "records,order,commits,transactions,isolation,acknowledged"
IGNORED = ("json:id:uuid", "json:order:uuid", "json:invoice:uuid", "json:at:time")
IGNORED += ("header:trace:uuid", "postings/key:uuid")

CHANGES = {
    "drop": r"invoices: the record of key 'c0' was never produced",
    "double": r"invoices: the record was produced once more than recorded: key 'c0'",
    "total": r"invoices: the record of key 'c0' has total 12.0, recorded 11.5 ",
    "topic": r"invoices: the record is not in the recording: key 'c2'",
    "null-key": r"invoices: a record has key null, recorded 'c0' ",
    "wrong-key": r"invoices: a record has key 'c0x', recorded 'c0' ",
    "extra": r"invoices: the record of key 'c0' has note \"x\", recorded without",
    "header-missing": r"invoices: the record of key '\w+' has no header trace, recorded",
    "header-wrong": r"invoices: the record of key '\w+' has header trace 'none', recorded",
    "tombstone": r"invoices: the record of key 'c3' was never produced: value null",
    "key-order": r"order: \S+invoices, key 'c0': number 1: ",
    "no-transaction": r"invoices: \d+ records were produced outside a transaction",
    "plain-commit": r"group \S+billing: its offsets were committed outside a transaction",
    "other-transactional-id": r"transactions: transactional id \S+billing: not repeated",
    "commit-outside": r"group \S+billing: its offsets were committed outside a transaction",
    "abort": r"nothing came",
    "no-commit": r"group \S+billing: its offsets were not committed in a transaction",
    "commit-first": r"acknowledged: group \S+ledger, \S+postings: committed before the last",
    "uncommitted": r"isolation: topic \S+invoices, client ledger: reads uncommitted",
    "id-null": r"invoices: the record of key '\w+' has id null, recorded a UUID",
    "id-number": r"invoices: the record of key '\w+' has id 17, recorded a UUID",
    "id-same": r"invoices: json:id ",
    "id-other": r"\S+: json:(id|order) ",
    "time-wrong": r"invoices: the record of key 'c0' has at \"soon\", recorded a time",
    "key-plain": r"postings: a record has key 'posting', recorded a UUID",
    "group": r"group \S+billing: its offsets were not committed in a transaction; recorded in",
}
"""Change → how the first sentence begins."""
FEW = ["total", "commit-first", "id-same"]


def replay(path: Path, prefix: str, *words: str, change: str = "") -> tuple[int, str]:
    """The exit code, and what is said."""
    app = ["--", sys.executable, str(SHOP), "{bootstrap}", prefix, *filter(None, [change])]
    done = programs.run([proxies.KPROXY, "replay", str(path), *words, *app])
    return done.returncode, done.stderr


@pytest.fixture(scope="module")
def recorded(real_broker: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recording of a run."""
    path = tmp_path_factory.mktemp("shop") / "shop.mcap"
    code, said = replay(path, "shop-", "--cassette", "once", "--broker", real_broker)
    assert code == 0, said
    return path


def words() -> list[str]:
    ignored = [f"--ignore={each.replace('postings', 'shop-postings')}" for each in IGNORED]
    return ["--compare", COMPARED, *ignored]


def test_without_a_change_it_is_green(recorded: Path) -> None:
    for _ in range(10 if ALL else 1):
        code, said = replay(recorded, "shop-", *words())
        assert code == 0, said


@pytest.mark.parametrize("change", some(list(CHANGES), FEW))
def test_each_change_is_red_in_a_sentence(recorded: Path, change: str) -> None:
    code, said = replay(recorded, "shop-", *words(), change=change)
    assert code == (1 if change == "abort" else UNMET), said
    assert re.search(rf"^(kproxy: )?(\S*)?{CHANGES[change]}", said, re.MULTILINE), said
