"""What `kproxy run` says while it runs: the address, what passes, the log.

::

    ready, watch ─▶ Output ─▶ stdout
    log, fail ────▶ Log ────▶ stderr

Nothing here waits for a terminal; at the end, it is waited for for a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from kproxy.view.log import Log
from kproxy.view.output import Output

if TYPE_CHECKING:
    from kproxy.exchange.entries import Frame, Note


class Console:
    """Standard output and standard error of a proxy.

    Resource handling: a context; its end shows what is left, and ends the threads that write.
    """

    def __init__(self, out: TextIO, err: TextIO, live: bool) -> None:
        """Show what passes on `out` if `live`."""
        self.log = Log(err)
        self.watch: Callable[[Iterable[Frame | Note]], None] | None = None
        """What is to be given the entries as they pass, if anything."""
        self._out = Output(out, failed=self._unwritten)
        self._address = ""
        self._live = None
        if live:
            from kproxy.view.live import Live

            self._live = Live(self._out)
            self.watch = self._live.watch

    def ready(self, address: str) -> None:
        """Say where clients connect."""
        self._address = address
        self._out.put(f"{address}\n")

    def fail(self, text: str, code: int = 1) -> int:
        """Say in one line why the proxy ends; return the exit code."""
        self.log.tell(text)
        return code

    def __enter__(self) -> Console:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.finish()
        self._out.finish()
        self.log.finish()

    def _unwritten(self, error: OSError) -> None:
        if self._address:
            self.log(f"clients connect to {self._address} (stdout: {error.strerror})")
