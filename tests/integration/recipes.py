"""What the recipes of frameworks share: an app of orders is recorded twice, replayed, changed.

The app is a command that makes invoices of orders; `tests/bed/clients/orders.py` has its test, and
says what it does. Its last argument is the change: one of `CHANGES`, or nothing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.bed import needs, programs, proxies

TEST = needs.REPOSITORY / "tests" / "bed" / "clients" / "orders.py"
UNMET = 3
COMPARED = ("--compare", "records,commits,transactions,acknowledged")

CHANGES = {
    "drop": r"invoices: the record of key 'c0' was never produced",
    "double": r"invoices: the record was produced once more than recorded: key 'c0'",
    "wrong-key": r"invoices: a record has key 'c0x', recorded 'c0' ",
    "topic": r"invoices: the record is not in the recording: key 'c2'",
    "header-missing": r"invoices: the record of key 'c0' has no header trace, recorded",
    "commit-first": r"acknowledged: group \S+billing, \S+: committed before|"
    r"group \S+billing: its offsets were committed outside a transaction",
    "no-commit": r"commits: group \S+billing, \S+orders\S*: |"
    r"group \S+billing: its offsets were not committed in a transaction",
    "abort": r"invoices: the record of key 'c0' was produced in a transaction that was aborted|"
    r"transactions: transactional id \S*billing\S*: ",
}
"""What the app does otherwise → how the first sentence begins. The first order is dropped, …; that
of c2 is invoiced instead of rejected; commit-first: offsets before records; abort: the transaction
of the first order."""


def command(prefix: str, app: Sequence[str], change: str = "") -> list[str]:
    """The command line of a test of an app, for `kproxy replay … --`."""
    test = [sys.executable, str(TEST), "{bootstrap}", prefix]
    return ["--", *test, *app, *filter(None, [change])]


def record(path: Path, broker: str, prefix: str, app: Sequence[str]) -> str:
    """Record an app twice with a real broker, and learn what varies; what kproxy says."""
    how = ("--cassette", "once", "--learn", "2", "--broker", broker)
    done = programs.run([proxies.KPROXY, "replay", str(path), *how, *command(prefix, app)])
    assert done.returncode == 0, done.stderr
    return done.stderr


def replay(
    path: Path, prefix: str, app: Sequence[str], change: str = "", how: Sequence[str] = COMPARED
) -> tuple[int, str]:
    """Replay it to the app; the exit code, and what is said."""
    words = command(prefix, app, change)
    done = programs.run([proxies.KPROXY, "replay", str(path), *how, *words])
    return done.returncode, done.stderr


def is_red(said: tuple[int, str], change: str, sentences: Mapping[str, str] = CHANGES) -> None:
    """Assert that a replay to a changed app has failed, with its sentence first."""
    code, text = said
    assert code in (1, UNMET), text
    assert re.search(rf"^kproxy: (\S*)?({sentences[change]})", text, re.MULTILINE), text
