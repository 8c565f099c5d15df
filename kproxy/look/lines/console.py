"""The output of a running `kproxy run`: the address, exchanges as they pass, the log.

::

    ready, watch ─▶ TextOutput ─▶ stdout
    log, fail ────▶ LineLog ────▶ stderr

No call waits for a terminal; the end of the program waits for it for at most a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TextIO

from kproxy.look.lines.log import LineLog
from kproxy.look.lines.output import TextOutput
from kproxy.printable import without_credentials

if TYPE_CHECKING:
    from kproxy.exchange.entries import Frame, Note


class Console:
    """Standard output and standard error of a proxy.

    Resource handling: a context; its end writes what is left and ends the threads that write.
    """

    def __init__(
        self,
        out: TextIO,
        err: TextIO,
        live: bool,
        local: bool = False,
        log_format: str = "text",
    ) -> None:
        """Show exchanges on `out` as they pass, if `live`; with times of day that are `local`."""
        self.log = LineLog(err, log_format=log_format)
        self.watch: Callable[[Iterable[Frame | Note]], None] | None = None
        """Callback that takes the entries as they are recorded; None unless `live`."""
        self._out = TextOutput(out, on_failure=self._log_address)
        self._address = ""
        self._live = None
        if live:
            from kproxy.look.lines.live import Live

            self._live = Live(self._out, local=local)
            self.watch = self._live.watch

    def ready(self, address: str) -> None:
        """Print the address that clients connect to."""
        self._address = address
        self._out.put(f"{address}\n")

    def fail(self, text: str, code: int = 1) -> int:
        """Print in one line why the proxy ends; return the exit code."""
        self.log.write(without_credentials(text), level="error")
        return code

    def __enter__(self) -> Console:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.finish()
        self._out.finish()
        self.log.finish()

    def _log_address(self, error: OSError) -> None:
        if self._address:
            self.log(f"clients connect to {self._address} (stdout: {error.strerror})")
