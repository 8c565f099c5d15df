"""`kproxy replay … -- COMMAND`: a command as the test, a recording as its broker.

::

    --cassette    none           once, without     rewrite   verify
                                 a recording
    broker        the            ─────────── --broker, behind kproxy ──────────
                  recording
    at the end    what differs   –                 –         what differs from the recording
                  fails                                      fails

`testing.runs` has the modes, as for pytest: here are the options, the streams and the exit codes.
Without a command it lasts until a signal, for what only this way of replaying compares.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kproxy.commands.child import (
    UNMET,
    UNREACHED,
    Child,
    NotStarted,
    held_signals,
    wait_for_signal,
)
from kproxy.commands.faults import announce_faults, missed_faults, report_faults
from kproxy.commands.options import UsageError, declare
from kproxy.levels import Logger

if TYPE_CHECKING:
    from kproxy.look.lines.console import Console
    from kproxy.replay.ignored import Ignored, IgnoredPart
    from kproxy.replay.report import ClientDifference
    from kproxy.replay.settings import Expect, ReplaySettings
    from kproxy.testing.runs import CassetteRun
    from kproxy.testing.sessions import Front

_USER = re.compile(r"^(--user=)([^:]*):.*", re.DOTALL)
_SHOWN = 10
_WITH_COMMAND = (
    "annotate",
    "junit",
    "stale_after",
    "cassette",
    "learn",
    "broker",
    "config",
    "record_in_ci",
    "fail_fast",
    "bootstrap_env",
)
"""Options that need a command."""
_OF_A_RUN = dict.fromkeys(
    ("--cassette", "--learn", "--broker", "--config", "--junit", "--stale-after", "--user"), True
) | dict.fromkeys(("--record-in-ci", "--annotate", "--print-config"), False)
"""Options that a recording does not note, → whether they have a value."""


def add_check_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of what fails."""
    group = parser.add_argument_group("what fails")
    declare(
        group.add_argument,
        """
        --compare LIST  what may not differ from the recording: records, order (of the records of a
            key), commits (how far groups committed in the end), transactions (how they ended),
            consumed (which records were given out), groups (members and topics), isolation (of
            consumers), acknowledged (that groups commit behind it), or all (default: records)
        --expect {all,produced,none}  what must be repeated: produced, the recorded records and what
            --compare names; all; none (default: produced with a command; without one, what is
            missing is listed and does not fail)
        --fail-fast  end the command at the first difference, and refuse topics that the recording
            does not hold, so that clients give up at once
        --stale-after TIME  warn if the recording is older, as 90d (kproxy renew)
        --annotate  mark a failure on GitHub: what is different is an annotation
        --junit FILE  write the result as JUnit's XML
        """,
        compare=_aspects,
    )


def add_ignore_options(add: Callable[..., object]) -> None:
    """Add the options of what may differ in records."""
    declare(
        add,
        """
        --partitions {keyed,always,never} = keyed  of which produced records the partition must be
            the recorded one: of those with a key, always, never (default %(default)s)
        --ignore WORD …  a part of records that may differ, and not be missing, and of which kind
            it is: key:uuid, json:created_at:time, header:trace; may be repeated
        --ignore-header NAME …  the same as --ignore header:NAME
        --ignore-json PATH …  the same as --ignore json:PATH
        """,
        ignore=_part,
        ignore_header=partial(_part_of, "header"),
        ignore_json=partial(_part_of, "json"),
    )


def as_options(words: Sequence[str]) -> str:
    """Return words of what is ignored as options."""
    return shlex.join(f"--ignore={word}" for word in words)


def ignored(options: argparse.Namespace) -> Ignored:
    """Return what may differ in records."""
    from kproxy.replay.ignored import Ignored

    parts = (*options.ignore, *options.ignore_header, *options.ignore_json)
    never = (_part("partition"),) if options.partitions == "never" else ()
    return Ignored(options.partitions == "always", (*parts, *never))


def add_cassette_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of recording with a command."""
    group = parser.add_argument_group("recording the command")
    declare(
        group.add_argument,
        """
        --cassette {once,rewrite,verify}  once: record where the recording is not there, replay
            else; rewrite: record again; verify: run with the broker, and compare with the
            recording; a recording is kept only if the command succeeds
        --learn N  record the command N times, and keep in the recording what varies between these
            runs: ids, times, …, each with its kind; 2 is a good number (kproxy learned FILE)
        --broker HOST:PORT[,…]  the real broker, to record and to verify with
        --config FILE  FILE.toml: options (kproxy help service); else properties of a client, Java's
            or librdkafka's: where the real broker is, and TLS to it
        --record-in-ci  let once and rewrite record in continuous integration (CI, BUILD_NUMBER,
            TF_BUILD)
        """,
    )


def _part(text: str) -> IgnoredPart:
    from kproxy.replay.ignore_words import parse

    return parse([text]).parts[0]


def _part_of(what: str, text: str) -> IgnoredPart:
    return _part(f"{what}:{text}:any")


def _aspects(text: str) -> frozenset[str]:
    from kproxy.replay.compared import parse_aspects

    return parse_aspects(text.split(","))


def expected(options: argparse.Namespace) -> Expect:
    """Return what must be repeated."""
    from kproxy.replay.settings import Expect

    default = Expect.NONE if options.command is None else Expect.PRODUCED
    return default if options.expect is None else Expect(options.expect)


def is_checked(options: argparse.Namespace) -> bool:
    """Return whether the replay needs kproxy in front of it: to record or to compare.

    Raises:
        UsageError: options need a command, or one another.
    """
    if options.command is None:
        for name in _WITH_COMMAND:
            if getattr(options, name):
                raise UsageError(f"--{name.replace('_', '-')} needs a command: … -- COMMAND")
        return options.compare is not None or options.expect is not None
    for name in ("broker", "config", "record_in_ci"):
        if getattr(options, name) and not options.cassette:
            typed = f"--{name.replace('_', '-')}"
            raise UsageError(f"{typed} is for --cassette once, rewrite or verify")
    if options.learn and options.cassette not in ("once", "rewrite"):
        raise UsageError("--learn is for --cassette once or rewrite")
    if options.cassette and len(options.files) > 1:
        raise UsageError("--cassette takes one FILE")
    compares = options.compare or options.expect
    if options.mode == "strict" and (compares or options.fail_fast):
        raise UsageError("strict mode compares frames: no --compare, --expect, --fail-fast")
    if options.cassette == "verify" and (compares or options.fail_fast):
        text = "verify compares what the recordings mean: no --compare, --expect, --fail-fast"
        raise UsageError(text)
    return True


def run_checked(options: argparse.Namespace, settings: ReplaySettings, front: Front) -> int:
    """Run the command, or wait for a signal; return the exit code."""
    from kproxy.look.lines.console import Console
    from kproxy.testing.files import annotation

    rules = front.template.rules
    with Console(sys.stdout, sys.stderr, False, log_format=options.log_format) as console:
        run = _run(options, settings, front, console.log)
        announce_faults(rules, console.log)
        with held_signals() as signals:
            ended = _ended_all(run, options, signals, console)
        if isinstance(ended, int):
            return ended
        report_faults(rules, console.log)
        lines = [*_told(ended, options.stale_after), *ended.failure.splitlines()]
        console.log.write(*(f"kproxy: {line}" for line in lines))
        if options.annotate and ended.failure:
            console.log.write(annotation(ended.failure, f"kproxy replay {run.shown}"))
        if options.junit is not None:
            try:
                options.junit.write_text(_junit(run.shown, ended), "utf-8")
            except OSError as error:
                return console.fail(f"kproxy replay: {options.junit}: {error.strerror}")
    unmet = UNMET if options.command else 1
    return ended.code or (unmet if ended.failure or missed_faults(rules, options) else 0)


class _RunEnd(NamedTuple):
    """The end of a run."""

    code: int | None
    """The exit code of the command; None if kproxy ended it."""
    failure: str
    """Why it fails though the command succeeded, or ""."""
    kept: str | None
    """The recording that was kept."""
    run: CassetteRun
    """Which one: with `--learn`, the last."""


def _junit(name: str, ended: _RunEnd) -> str:
    """Return the end of a run as JUnit's XML."""
    from xml.sax.saxutils import escape, quoteattr

    failure = ended.failure or (f"the command ended with {ended.code}" if ended.code else "")
    first, failures = quoteattr(failure.partition("\n")[0]), int(bool(failure))
    what = f"<failure message={first}>{escape(failure)}</failure>" if failure else ""
    case = f'<testcase classname="kproxy.replay" name={quoteattr(name)}>{what}</testcase>'
    suite = f'<testsuite name="kproxy replay" tests="1" failures="{failures}">{case}</testsuite>'
    return f'<?xml version="1.0" encoding="utf-8"?>\n<testsuites>{suite}</testsuites>\n'


def _ended_all(
    run: CassetteRun, options: argparse.Namespace, signals: deque[int], console: Console
) -> _RunEnd | int:
    """Run it to its end, with `--learn` several times; return the exit code where it cannot be
    run."""
    import attrs

    from kproxy.testing.learning import rehearsed

    with rehearsed() as run.rehearsals:
        for _ in range(1, options.learn or 1 if run.will_record else 1):
            ended = _ended(attrs.evolve(run, is_rehearsal=True), options, signals, console)
            if isinstance(ended, int) or ended.code or ended.failure:
                return ended
        return _ended(run, options, signals, console)


def _ended(
    run: CassetteRun, options: argparse.Namespace, signals: deque[int], console: Console
) -> _RunEnd | int:
    """Run it to its end; return the exit code where it cannot be run."""
    from kproxy.net.serve import RecordingFailed, RecordingUnfinished
    from kproxy.net.tls.settings import TlsError
    from kproxy.net.unusable import Unusable
    from kproxy.testing.runs import Unable

    code: int | None = 0
    outcome, failure = "failed", ""
    try:
        broker = run.begin(lambda: _broker(options))
        try:
            if options.command is None:
                console.ready(broker.bootstrap)
                wait_for_signal(lambda: run.alive, signals)
            else:
                child = Child(options.command, options.bootstrap_env)
                code = child.run(broker.bootstrap, lambda: run.alive, signals)
            failure = run.finish(succeeded=code == 0)
            unheard = code == 0 and options.command and not run.answered
            if unheard and (failure or not run.replays):  # a recording of nothing is green for ever
                failure = "\n".join([UNREACHED, *filter(None, [failure])])
            elif unheard:
                console.log(UNREACHED)
            outcome = "failed" if code or failure else "passed"
        except NotStarted:
            outcome = "unused"
            raise
        finally:
            kept = run.close(outcome)
    except NotStarted as error:
        return console.fail(f"kproxy replay: {error}", error.code)
    except (Unable, RecordingFailed, RecordingUnfinished) as error:
        is_usage = isinstance(error.__cause__, Unusable | TlsError)
        return console.fail(f"kproxy replay: {error}", code or (2 if is_usage else 1))
    return _RunEnd(code, failure, kept, run)


def _told(ended: _RunEnd, stale_after: float | None) -> Iterator[str]:
    """Yield what was checked and what was not, whether it is old, and what was recorded."""
    from kproxy.testing.renewing import days_old, stale_line

    run = ended.run
    if run.replays and (age := days_old(run.path, stale_after)) is not None:
        yield stale_line({run.shown: age}, f"kproxy renew {shlex.quote(run.shown)}")
    if not ended.failure:  # else it follows from what is said there
        yield from not_repeated(run.unplayed)
    if run.replays:
        yield run.how.summary()
    elif run.mode == "verify" and ended.code == 0 and not ended.failure:
        yield f"the broker and the command do what {run.shown} holds"
    if ended.kept == run.shown:
        yield f"recorded {ended.kept}"
    elif ended.kept is not None and not ended.failure:
        yield f"the command failed; what it did: kproxy show {shlex.quote(ended.kept)}"


def not_repeated(unplayed: list[ClientDifference]) -> list[str]:
    """Return lines about what was not repeated and does not fail."""
    lines = [f"{each.kind}: {each.text}" for each in unplayed[:_SHOWN]]
    left_out = len(unplayed) - _SHOWN
    return [*lines, *([f"… and {left_out} more were not repeated"] if left_out > 0 else [])]


def _broker(options: argparse.Namespace) -> str:
    from kproxy.testing.files import in_ci

    if options.cassette != "verify" and in_ci() and not options.record_in_ci:
        what = "recording in CI is refused, for nobody looks at it; --record-in-ci allows it"
        missing = "there is no recording to replay, and " if options.cassette == "once" else ""
        raise ValueError(f"{missing}{what}")
    if not (options.broker or options.config):
        raise ValueError("a real broker is needed: give --broker HOST:PORT, or --config")
    return options.broker or ""


def _run(
    options: argparse.Namespace,
    settings: ReplaySettings,
    front: Front,
    log: Logger,
) -> CassetteRun:
    import attrs

    from kproxy.replay.compared import Compared
    from kproxy.testing.renewing import made_by
    from kproxy.testing.runs import CassetteRun
    from kproxy.testing.sessions import Replay

    compared = Compared(expect=expected(options))
    if options.compare is not None:
        compared = attrs.evolve(compared, aspects=options.compare)
    settings = attrs.evolve(settings, fails_fast=options.fail_fast)
    how = Replay(options.files, settings, options.timing, options.recorded_faults, compared)
    path, made = options.files[0], None
    if options.cassette:
        words = [*_lasting(options)]
        made = made_by(path, Path.cwd(), options=words, command=options.command)
    return CassetteRun(
        options.cassette or "replay",
        path,
        str(path),
        _again(options),
        how,
        config=options.config,
        front=attrs.evolve(front, log=log),
        ignoring=as_options,
        log=log,
        made_by=made,
    )


def _lasting(options: argparse.Namespace) -> Iterator[str]:
    """Yield what was typed of how it is recorded, without FILE and what is of this run alone."""
    words = iter(options.typed)
    for word in words:
        name, equals, value = word.partition("=")
        if name in _OF_A_RUN:
            value = next(words, "") if _OF_A_RUN[name] and not equals else value
            if name == "--config" and value.endswith(".toml"):
                yield f"--config={value}"
        elif Path(word) != options.files[0]:
            yield word


def _joined(typed: Sequence[str]) -> Iterator[str]:
    """Yield words as they were typed, `--user` together with its value."""
    words = iter(typed)
    for word in words:
        yield f"{word}={next(words, '')}" if word == "--user" else word


def _again(options: argparse.Namespace) -> str:
    """Return the command line that records again: as it was typed, in another mode, and without
    passwords, for it is printed."""
    typed = [_USER.sub(r"\1\2:…", word) for word in _joined(options.typed)]
    if "--cassette" in typed:
        at = typed.index("--cassette")
        typed[at : at + 2] = []
    typed = [word for word in typed if not word.startswith("--cassette=")]
    broker = [] if options.broker or options.config else ["--broker", "HOST:PORT"]
    words = ["kproxy", "replay", *typed, "--cassette", "rewrite", *broker]
    return shlex.join([*words, "--", *(options.command or ["COMMAND"])])
