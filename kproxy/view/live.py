"""Exchanges as they pass, on a terminal, with the noise folded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from typing import TextIO

from kproxy.exchange.entries import Frame, Note
from kproxy.exchange.exchange import Pairing
from kproxy.view.show import Folding


class Live:
    """Watches the entries of a running proxy and prints what they come to."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._pairing = Pairing()
        self._folding = Folding(
            colour=out.isatty() and not os.environ.get("NO_COLOR"),
            width=shutil.get_terminal_size().columns if out.isatty() else None,
        )
        self._gone = False

    def watch(self, entries: Iterable[Frame | Note]) -> None:
        """Take the next entries. A terminal that is gone is no reason to stop the proxy."""
        if self._gone:
            return
        try:
            for entry in entries:
                for exchange in self._pairing.feed(entry):
                    for line in self._folding.feed(exchange):
                        print(line, file=self._out)
            self._out.flush()
        except OSError:
            self._gone = True

    def finish(self) -> None:
        """Print what is still folded."""
        if not self._gone:
            for line in self._folding.flush():
                print(line, file=self._out)
