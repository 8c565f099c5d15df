"""Tests with recordings: a Kafka test without Kafka.

::

    from kproxy.testing import record, replay

    with record("kafka:9092", "orders.mcap") as broker:   # once
        app.run_once(bootstrap=broker.bootstrap)

    with replay("orders.mcap") as broker:                 # from then on
        app.run_once(bootstrap=broker.bootstrap)
        assert broker.produced("orders.enriched")[0].value == b"..."

Both run in another thread, so the code in the block may block, or use asyncio or trio;
`async with` does the same without blocking an event loop at the beginning and the end. With pytest
the fixture `kproxy` does all of this (`kproxy.pytest_plugin`). trio is imported at the first call
of either function.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kproxy.testing.container import KproxyContainer as KproxyContainer
    from kproxy.testing.sessions import Session

_UNPLAYED = {"fail": "produced", "allow": "none"}
"""An older name of `expect`, and its values."""


def __getattr__(name: str) -> Any:
    """Import `KproxyContainer` when it is asked for: it needs testcontainers."""
    if name == "KproxyContainer":
        from kproxy.testing.container import KproxyContainer

        return KproxyContainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def replay(
    path: Path | str | Iterable[Path | str],
    *,
    mode: str = "state",
    visible: str | None = None,
    timing: str | float = "fast",
    ignore: str | Sequence[str] = (),
    expect: str = "produced",
    compare: str | Sequence[str] = "records",
    fail_fast: bool = False,
    unplayed: str | None = None,
    users: Mapping[str, str] | None = None,
) -> Session:
    """Replay a recording as the broker, for the time of a block.

    `mode` ("state", "semantic"), `visible` ("causal", "all"; by default "all" with
    `expect="none"`, else "causal") and `timing` ("fast", "recorded", or a factor) are those of
    `kproxy replay`. `ignore` lists parts of records that may differ:
    "json:PATH", "header:NAME", "key", with a kind: "json:id:uuid". `users` are passwords by name.

    `compare` lists what may not differ: "records" (topic, partition, key, value and headers of each
    record that is produced; the partition only of records with a key), "order" (of the records of
    a key), "commits" (how far groups committed in the end), "transactions" (how they ended, with
    which groups' offsets), "consumed" (the records that were given out), "groups" (members and
    their topics), "isolation", "acknowledged" (that groups commit behind it), or "all". The
    topics that a client names are always compared.

    `expect` says what must be repeated: "produced" (the recorded records, and what `compare`
    names), "all", or "none"; `unplayed="allow"` is `expect="none"`. With `fail_fast` a topic that
    the recording does not hold is refused, so that clients give up at once.

    Leaving the block raises `sessions.Mismatch`, an AssertionError, if the client differs from the
    recording, even if the client hides the error that it got.

    Raises:
        ValueError: an argument is invalid.
        RecordingError: on entering the block; the path is missing, or is no whole recording.
    """
    from kproxy.replay import ignore_words
    from kproxy.replay.compared import Compared, parse_aspects
    from kproxy.replay.pace import parse_factor
    from kproxy.replay.settings import Expect, Mode, ReplaySettings, Visible
    from kproxy.testing.sessions import Replay, ReplaySession, Session

    _one_of("mode", mode, ("state", "semantic"))
    if visible is not None:
        _one_of("visible", visible, ("causal", "all"))
    _one_of("expect", expect, tuple(each.value for each in Expect))
    if unplayed is not None:
        _one_of("unplayed", unplayed, tuple(_UNPLAYED))
        expect = _UNPLAYED[unplayed]
    aspects = compare.split(",") if isinstance(compare, str) else list(compare)
    paths = [path] if isinstance(path, Path | str) else list(path)
    if not paths:
        raise ValueError("no recording is given")
    if not (isinstance(ignore, Iterable) and all(isinstance(each, str) for each in ignore)):
        raise ValueError(f"ignore is a list of words such as 'partition', not {ignore!r}")
    if not isinstance(users or {}, Mapping):
        raise ValueError(f"users are passwords by user name, not {users!r}")
    compared = Compared(parse_aspects(aspects), Expect(expect))
    settings = ReplaySettings(
        mode=Mode(mode),
        visible=compared.expect.visible if visible is None else Visible(visible),
        fails_fast=fail_fast,
        ignored=ignore_words.parse([ignore] if isinstance(ignore, str) else ignore),
        users=users or {},
    )
    how = Replay([Path(each) for each in paths], settings, parse_factor(timing), compared=compared)
    session = ReplaySession(how)
    return Session(session.begin, session.end, how)


def record(
    bootstrap: str | None,
    path: Path | str | None = None,
    *,
    ignore: str | Sequence[str] = (),
    config: Path | str | None = None,
) -> Session:
    """Record the traffic with real brokers to a new file, for the time of a block.

    Without a path nothing is recorded, but the traffic can be inspected all the same. `ignore`
    lists differences that `kproxy textconv` leaves out. `config` is a
    file with the properties of a client, for TLS to the brokers; where `bootstrap` is None, it also
    says where they are. The app speaks plaintext to kproxy, and sends its SASL credentials itself.

    Raises:
        ValueError: `bootstrap` is no HOST:PORT[,…], or a word of `ignore` is invalid.
        TlsError: on entering the block; `config`, or a file that it names, cannot be used.
        OSError: on entering the block; the file exists, or cannot be created.
    """
    from kproxy.replay import ignore_words
    from kproxy.testing import sessions

    ignore = [ignore] if isinstance(ignore, str) else list(ignore)
    ignore_words.parse(ignore)
    if bootstrap is None and config is None:
        raise ValueError("give bootstrap, HOST:PORT, or config, the properties of a client")
    session = sessions.RecordingSession(
        bootstrap or "",
        None if path is None else Path(path),
        ignore=ignore,
        config=None if config is None else Path(config),
    )
    return sessions.Session(session.begin, session.end)


def learn(path: Path | str, others: Iterable[Path | str]) -> list[str]:
    """Note in a recording what varies between it and others of runs that did the same: a replay
    compares it by its kind. Return lines that say what was learned, and what may be data.

    Raises:
        RecordingError: a path is missing, or is no whole recording.
    """
    from kproxy.testing.learning import learn_from, learned_lines

    learned = learn_from(Path(path), [Path(each) for each in others])
    return list(learned_lines(learned, str(path)))


def _one_of(name: str, value: str, values: tuple[str, ...]) -> None:
    if value not in values:
        raise ValueError(f"{name} is {' or '.join(map(repr, values))}, not {value!r}")
