"""Tests with recordings: a Kafka test without Kafka.

::

    from kproxy.testing import record, replay

    with record("kafka:9092", "orders.mcap") as broker:   # once
        app.run_once(bootstrap=broker.bootstrap)

    with replay("orders.mcap") as broker:                 # from then on
        app.run_once(bootstrap=broker.bootstrap)
        assert broker.produced("orders.enriched")[0].value == b"..."

Both run in a thread of their own, so the code in the block may block, or be asyncio or trio; `async
with` does the same without holding up an event loop at the beginning and the end. With pytest the
fixture `kproxy` does all of this (`kproxy.pytest_plugin`). trio is imported when one of them is
called, not before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kproxy.testing.sessions import Replay, Session

FACTORS = {"fast": 0.0, "recorded": 1.0}


def replay(
    path: Path | str | Iterable[Path | str],
    *,
    mode: str = "state",
    visible: str = "causal",
    timing: str | float = "fast",
    ignore: str | Sequence[str] = (),
    unplayed: str = "fail",
    users: Mapping[str, str] | None = None,
) -> Session:
    """Be the broker of a recording, for the time of a block.

    `mode` ("state", "semantic"), `visible` ("causal", "all") and `timing` ("fast", "recorded", or a
    factor) are those of `kproxy replay`. `ignore` names what may differ in records: "partition",
    "header:NAME", "json:PATH". With `unplayed="allow"` a record that was recorded may be missing.
    `users` are passwords by user name, for SCRAM.

    Compared are the topics that the client names, and topic, partition, key, value and headers of
    each record that it produces, of those without a key not the partition. The order of records,
    groups, commits, and how much is consumed are not.

    Leaving the block raises `sessions.Mismatch`, an AssertionError, where the client did something
    else than was recorded, also if it has swallowed the error that it got.

    Raises:
        ValueError: an argument is none of these.
        RecordingError: on entering the block; the path is not there, or is no whole recording.
    """
    from kproxy.testing import sessions

    how = replaying(path, mode, visible, timing, ignore, unplayed, users)
    session = sessions.Replaying(how)
    return sessions.Session(session.begin, session.end)


def record(
    bootstrap: str, path: Path | str | None = None, *, ignore: str | Sequence[str] = ()
) -> Session:
    """Stand before real brokers for the time of a block, and record to a file that is new.

    Without a path nothing is recorded; what passed can be looked at all the same. `ignore` is what
    may differ the next time; the recording says so to who compares it.

    Raises:
        ValueError: `bootstrap` is no HOST:PORT[,…], or something cannot be ignored.
        OSError: on entering the block; the file cannot be created, or exists.
    """
    from kproxy.replay import ignored
    from kproxy.testing import sessions

    ignore = [ignore] if isinstance(ignore, str) else list(ignore)
    ignored.parse(ignore)
    session = sessions.Recording(bootstrap, None if path is None else Path(path), ignore=ignore)
    return sessions.Session(session.begin, session.end)


def replaying(
    path: Path | str | Iterable[Path | str],
    mode: str,
    visible: str,
    timing: str | float,
    ignore: str | Sequence[str],
    unplayed: str,
    users: Mapping[str, str] | None = None,
) -> Replay:
    """Check the arguments of `replay`.

    Raises:
        ValueError: one of them cannot be.
    """
    from kproxy.replay import ignored
    from kproxy.replay.settings import Mode, Visible
    from kproxy.testing.sessions import Replay

    _one_of("mode", mode, ("state", "semantic"))
    _one_of("visible", visible, ("causal", "all"))
    _one_of("unplayed", unplayed, ("fail", "allow"))
    paths = [path] if isinstance(path, Path | str) else list(path)
    if not paths:
        raise ValueError("no recording is given")
    factor = FACTORS.get(timing) if isinstance(timing, str) else timing
    if not isinstance(factor, float | int) or not 0 <= factor <= 1000:
        raise ValueError(f"timing is 'fast', 'recorded' or a factor up to 1000, not {timing!r}")
    if not (isinstance(ignore, Iterable) and all(isinstance(each, str) for each in ignore)):
        raise ValueError(f"ignore is a list of words such as 'partition', not {ignore!r}")
    if not isinstance(users or {}, Mapping):
        raise ValueError(f"users are passwords by user name, not {users!r}")
    return Replay(
        [Path(each) for each in paths],
        Mode(mode),
        Visible(visible),
        float(factor),
        ignored.parse([ignore] if isinstance(ignore, str) else ignore),
        unplayed == "fail",
        users or {},
    )


def _one_of(name: str, value: str, values: tuple[str, ...]) -> None:
    if value not in values:
        raise ValueError(f"{name} is {' or '.join(map(repr, values))}, not {value!r}")
