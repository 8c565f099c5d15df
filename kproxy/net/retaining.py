"""Keeps the folder of the recording within limits, beside the traffic.

    again and again ─▶ Retention.due ─▶ excerpt, in a process of its own ─▶ remove ─▶ note

Invariants: traffic never waits for this: the disk is looked at in threads, and an excerpt is made
by a process that gives way. A file is removed when its excerpt is on the disk. Where there can be
none, or not in time (`KeepLimits.with_slack`), the log says what is lost, and the file is removed
all the same: the limits hold.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import attrs
import trio

from kproxy.defects import defect
from kproxy.exchange.filter import Filter
from kproxy.levels import Logger
from kproxy.net.recorder import Recorder
from kproxy.recording.keeping import KeptFile
from kproxy.recording.retention import Retention

LOOK_SECONDS = 0.25
_MODULE = "kproxy.recording.excerpt"
_EXCERPTS_AT_ONCE = 16
"""A process makes this many excerpts: it takes longer to start than to make a small one."""
_FAILED = {"error": "the process that looks for it has failed"}


@attrs.define(eq=False)
class Retaining:
    """The task; `matching` are the exchanges to keep of files that are removed."""

    retention: Retention
    matching: Filter | None
    recorder: Recorder
    clock: Callable[[], int]
    log: Logger
    _making: bool = attrs.field(default=False, init=False)
    """True while excerpts are being made."""
    _problem: str = attrs.field(default="", init=False)
    """The last error, which is logged once."""

    async def run(self) -> None:
        """Look at the folder again and again, and remove what is due."""
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    with self._problems_logged():
                        await self._look(nursery)
                    self._note()
                    await trio.sleep(LOOK_SECONDS)
        finally:
            self._note()

    @contextlib.contextmanager
    def _problems_logged(self) -> Iterator[None]:
        problem = ""
        try:
            yield
        except OSError as error:
            problem = f"cannot remove recordings: {error.strerror or error}"
        except Exception as error:
            problem = f"cannot remove recordings {defect(error)}"
        if problem and problem != self._problem:
            self.log(problem, "warning")
        self._problem = problem

    async def _look(self, nursery: trio.Nursery) -> None:
        due = await _in_thread(self.retention.due)
        if self.matching is None:
            await self._remove(due)
            return
        overdue = await _in_thread(partial(self.retention.due, slack=True))
        for file in overdue:
            if not file.is_excerpt:
                what = f"what matches {self.matching} in {file.path}"
                self.log(f"{what} is lost: no time is left", "warning")
        await self._remove(overdue)
        rest = [file for file in due if file not in overdue]
        await self._remove(file for file in rest if file.is_excerpt)
        parts = [file for file in rest if not file.is_excerpt]
        if parts and not self._making:
            self._making = True
            nursery.start_soon(self._excerpt, parts[:_EXCERPTS_AT_ONCE], self.matching)

    async def _remove(self, files: Iterable[KeptFile]) -> None:
        for file in files:
            await _in_thread(partial(self.retention.remove, file))
            self._note()

    async def _excerpt(self, files: Sequence[KeptFile], matching: Filter) -> None:
        """Have the exchanges of files that match written beside them, and remove the files."""
        with self._problems_logged():
            done = await trio.run_process(
                [sys.executable, "-P", "-m", _MODULE, str(matching), *(str(f.path) for f in files)],
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                deliver_cancel=_kill,
                process_group=0,
            )
            made: list[dict[str, str]] = [json.loads(line) for line in done.stdout.splitlines()]
            for file, result in zip(
                files, itertools.chain(made, itertools.repeat(_FAILED)), strict=False
            ):
                path, why = result.get("excerpt"), result.get("error")
                if path:
                    self.log(f"kept what matches {matching} in {path}")
                    await _in_thread(partial(self.retention.add, Path(path)))
                elif why and file.path.exists():
                    self.log(f"what matches {matching} in {file.path} is lost: {why}", "warning")
                await self._remove([file])
        self._making = False

    def _note(self) -> None:
        for note in self.retention.notes(self.clock()):
            self.recorder.note(note)


T = TypeVar("T")


async def _in_thread(work: Callable[[], T]) -> T:
    return await trio.to_thread.run_sync(work, abandon_on_cancel=True)  # the disk may hang


async def _kill(process: subprocess.Popen[bytes] | trio.Process) -> None:
    process.kill()
