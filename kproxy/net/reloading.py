"""Load again, at SIGHUP, what files say: certificates, authorities and fault rules.

::

    SIGHUP ─▶ TLS files ─▶ new connections      files of rules ─▶ Rules, a note in the recording
                 └ wrong: those from before stay, and the log says so ┘

Invariant: files are read in a thread, and nothing waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import attrs
import trio

from kproxy.defects import defect
from kproxy.exchange.entries import Note
from kproxy.levels import warning
from kproxy.net.security import Security
from kproxy.net.service_manager import notify, notify_reloading
from kproxy.proxy.faults import Rule, Rules, rules_note

ReadRules = Callable[[], Sequence[Rule]]
"""A function that reads all rules of the start again, and may raise what is an error of a file."""


@attrs.define(eq=False)
class Reloading:
    """Loads again what a running machine has read at its start."""

    secure: Security
    rules: Rules
    read_rules: ReadRules | None
    """None: no file has rules."""
    note: Callable[[Note], None]
    clock: Callable[[], int]
    log: Callable[[str], None]
    _read: Sequence[Rule] = attrs.field(init=False)
    """The rules that files had last."""
    _reloading: trio.Semaphore = attrs.field(factory=partial(trio.Semaphore, 1), init=False)

    def __attrs_post_init__(self) -> None:
        self._read = [active.rule for active in self.rules.rules]

    async def reload(self) -> None:
        """Load all again."""
        async with self._reloading:
            notify_reloading()
            if not self.secure.sources and self.read_rules is None:
                self.log("SIGHUP: there are no TLS files and no files of rules to load again")
            await self.secure.reload()
            if self.read_rules is not None:
                await self._reload_rules(self.read_rules)
            notify("READY=1")

    async def _reload_rules(self, read_rules: ReadRules) -> None:
        try:
            read = await trio.to_thread.run_sync(read_rules, abandon_on_cancel=True)
            what = "have not changed"
            if read != self._read:  # otherwise those that were added meanwhile would go
                what = "are loaded again"
                self.rules.replace(read, self.clock())
                self._read = read
                self.note(rules_note(self.rules, self.clock()))
        except Exception as error:
            foreseen = hasattr(error, "exit_code") or isinstance(error, ValueError)
            why = f": {error}" if foreseen else f" {defect(error)}"
            self.log(warning(f"the fault rules from before stay in use{why}"))
        else:
            self.log(f"fault rules {what}: {len(self.rules.rules)} in use")
