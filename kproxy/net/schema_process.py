"""The schemas of what a proxy records, collected in a process of its own.

::

    recorder ─▶ file ─▶ kproxy.net.registry.process ─▶ registry
        ◀──────── notes ────────┘

Traffic never waits for a registry, nor for the look into records: the process has a lower priority,
and reads the file. At the end of the recording it has `FINISH_SECONDS` for what is left.

Resource handling: the process ends when its standard input does, however this process ends.
"""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import trio

from kproxy.levels import Logger
from kproxy.net.recorder import Recorder
from kproxy.net.registry.process import settings
from kproxy.net.registry.source import Access
from kproxy.printable import printable

FINISH_SECONDS = 5.0
"""The time for schemas that are not collected when the traffic ends."""
_MODULE = "kproxy.net.registry.process"


@attrs.frozen
class SchemaSettings:
    """The sources of schemas, and the access to them."""

    given: Sequence[str]
    """URLs of registries, and folders."""
    access: Access


@attrs.define(eq=False)
class SchemaProcess:
    """The process; `run` is its task, and `finish` comes before the end of the recording."""

    settings: SchemaSettings
    path: Path
    """The first file of the recording."""
    recorder: Recorder
    found: Callable[[dict[str, Any]], None]
    """Takes each schema that was found, for the recording."""
    log: Logger
    _input: trio.abc.SendStream | None = attrs.field(default=None, init=False)
    _ended: trio.Event = attrs.field(factory=trio.Event, init=False)
    _finishing: trio.CancelScope = attrs.field(
        factory=lambda: trio.CancelScope(shield=True), init=False
    )

    async def run(self) -> None:
        """Start the process, and put the schemas that it finds into the recording. What goes wrong
        with it is logged, and does not concern the traffic."""
        try:
            await self._run()
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self.log(f"schemas are not collected: {error}", "warning")
        finally:
            self._ended.set()

    async def _run(self) -> None:
        process = await trio.lowlevel.open_process(
            [sys.executable, "-P", "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
        )
        try:
            assert process.stdin
            assert process.stdout
            self._input = process.stdin
            first = settings(self.settings.given, self.settings.access, self.path)
            await process.stdin.send_all(first)
            rest = bytearray()
            async for chunk in process.stdout:
                rest += chunk
                if b"\n" in chunk:
                    *lines, last = rest.split(b"\n")
                    rest = bytearray(last)
                    for line in lines:
                        self._take(line)
            if await process.wait():
                what = "schemas are not collected any more: the process that does it has failed"
                self.log(what, "warning")
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
                for stream in (process.stdin, process.stdout):
                    if stream is not None:
                        await trio.aclose_forcefully(stream)

    async def finish(self) -> bool:
        """Have it read what is recorded, and wait for what it finds, for a limited time. Return
        whether there is time for more: not after `give_up`."""
        self._finishing.deadline = min(
            self._finishing.deadline, trio.current_time() + FINISH_SECONDS
        )
        with self._finishing:
            await self.recorder.flush()
            if self._input is not None:
                await self._input.aclose()
            await self._ended.wait()
        if self._finishing.cancelled_caught:
            what = "not all schemas could be had in time; kproxy recover --schemas adds them"
            self.log(what, "warning")
        return self._finishing.deadline > -math.inf

    def give_up(self) -> None:
        """Have `finish` end at once."""
        self._finishing.deadline = -math.inf

    def _take(self, line: bytes | bytearray) -> None:
        match _said(line):
            case {"log": str(text)}:
                self.log(printable(text))
            case {"schema": dict(schema)}:
                self.found(schema)
            case _:  # some library printed it
                self.log(f"schemas: {printable(line.decode(errors='replace'))}")


def _said(line: bytes | bytearray) -> Any:
    with contextlib.suppress(ValueError):
        return json.loads(line)
    return None
