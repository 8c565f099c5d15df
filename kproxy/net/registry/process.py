"""The process that collects schemas beside a running proxy: `net.schema_process` starts it.

::

    standard input:  settings, a line of JSON; its end: the recording is about to be completed
    the recording ─▶ FileFollower ─▶ SchemaCollector ─▶ sources
    standard output: a line of JSON for each schema, or for the log

It reads what the proxy writes, and takes no time of it but for its lines. The proxy ends it:
signals that are sent to both, as by a service manager, leave it the time for what is left, and
without the proxy it ends at once, whatever it waits for.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from kproxy.background import stand_behind
from kproxy.exchange.entries import Note
from kproxy.exchange.exchange import Exchange
from kproxy.net.registry.collecting import SchemaCollector, carrying
from kproxy.net.registry.source import Access
from kproxy.net.tls.settings import Trust
from kproxy.recording.files import RecordingError
from kproxy.recording.following import FileFollower
from kproxy.wire.payloads.schemas import Schemas, note_of

_POLL_SECONDS = 0.1
_IDLE_MAX = 3
"""A follower that goes on with the next file says once or twice that it has nothing now."""


def settings(given: Sequence[str], access: Access, path: Path) -> bytes:
    """Return the line that starts the process."""
    trust = access.trust
    ca = trust and [str(trust.authorities), trust.password]
    values = {"sources": list(given), "user": access.user, "token": access.token, "ca": ca}
    return json.dumps(values | {"path": str(path)}).encode() + b"\n"


def main() -> None:
    """Collect until standard input ends, and what is left then."""
    from kproxy.net.registry.client import sources  # a proxy takes only `settings` from this module

    stand_behind()
    threading.Thread(target=_end_alone, daemon=True).start()
    given = json.loads(sys.stdin.buffer.readline())
    trust = Trust(Path(given["ca"][0]), given["ca"][1]) if given["ca"] else None
    found = sources(given["sources"], Access(given["user"], given["token"], trust))
    try:
        _Collecting(SchemaCollector(found), Path(given["path"])).run()
    except RecordingError as error:
        _say(log=f"schemas are not collected any more: {error}")


def _end_alone() -> None:
    """End the process when nobody reads its output any more."""
    gone = select.poll()
    gone.register(sys.stdout.fileno(), 0)
    gone.poll()
    os._exit(0)


@attrs.define(eq=False)
class _Collecting:
    """One pass over the recording, as it grows."""

    collector: SchemaCollector
    path: Path
    _failures: dict[str, str] = attrs.field(factory=dict, init=False)
    """Source → the last line in the log about why it does not answer."""

    def run(self) -> None:
        """Collect until standard input ends, then what is left.

        Raises: RecordingError.
        """
        ending, idle = False, 0
        for each in FileFollower([self.path], self._note, carrying()).found():
            if isinstance(each, Exchange):
                idle = 0
                if self.collector.look(each):
                    self._ask()
                continue
            idle += 1
            if ending and idle == _IDLE_MAX:  # all that was written by then is read
                break
            if ending:
                continue
            self._ask()
            readable, _, _ = select.select([0], [], [], _POLL_SECONDS)
            ending, idle = bool(readable), 0
        self._ask(last=True)
        missing = self.collector.missing()
        if missing:
            _say(log=f"schemas {missing}; kproxy recover --schemas can add them later")

    def _note(self, note: Note) -> None:
        known = Schemas()
        known.note(note.body)
        self.collector.know(known.ids)

    def _ask(self, last: bool = False) -> None:
        for ids, schema in self.collector.ask(time.monotonic(), last):
            _say(schema=note_of(ids, schema))
        for name, failure in self.collector.failures.items():
            if name not in self._failures:
                _say(log=f"schemas cannot be asked for, and are tried again: {failure}")
        for name in self._failures.keys() - self.collector.failures.keys():
            _say(log=f"schemas can be asked for again: {name}")
        self._failures = dict(self.collector.failures)


def _say(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):  # the proxy has gone
        main()
