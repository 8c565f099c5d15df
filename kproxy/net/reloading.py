"""Load again, at SIGHUP, what files say: properties, certificates, authorities and fault rules.

::

    SIGHUP ─▶ properties, TLS files ─▶ new connections
         └──▶ files of rules ─▶ Rules, a note in the recording
                 └ wrong: those from before stay, and the log says so

Invariant: files are read in a thread, and nothing waits for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import attrs
import trio

from kproxy.defects import defect
from kproxy.exchange.entries import Note
from kproxy.levels import Logger
from kproxy.net.running import notify, notify_reloading
from kproxy.net.security import Security
from kproxy.net.tls.credentials import Credentials
from kproxy.net.tls.settings import BrokerTls, TlsError
from kproxy.proxy.faults import Rule, Rules, rules_note

ReadRules = Callable[[], Sequence[Rule]]
"""A function that reads all rules of the start again, and may raise what is an error of a file."""
ReadClient = Callable[[], tuple[BrokerTls | None, Credentials | None]]
"""The same of what the properties of a client say."""
Read = TypeVar("Read")


_READ_SECONDS = 10.0


@attrs.define(eq=False)
class Reloading:
    """Loads again what a running machine has read at its start."""

    secure: Security
    rules: Rules
    read_rules: ReadRules | None
    """None: no file has rules."""
    note: Callable[[Note], None]
    clock: Callable[[], int]
    log: Logger
    read_client: ReadClient | None = None
    """None: there is no file of a client."""
    is_ending: Callable[[], bool] = lambda: False
    """Returns whether the end has begun, which a service manager was told."""
    probe_anew: Callable[[], object] = lambda: None
    """Finds out at once who can be reached with what was loaded."""
    _read: Sequence[Rule] = attrs.field(init=False)
    """The rules that files had last."""
    _reloading: trio.Semaphore = attrs.field(factory=partial(trio.Semaphore, 1), init=False)

    def __attrs_post_init__(self) -> None:
        self._read = [active.rule for active in self.rules.rules]

    async def reload(self) -> None:
        """Load all again."""
        async with self._reloading:
            if self.is_ending():
                return
            notify_reloading()
            if not self.secure.sources and self.read_rules is None and self.read_client is None:
                self.log("SIGHUP: there are no TLS files and no files of rules to load again")
            if self.read_client is not None:
                await self._reload("properties", self.read_client, self._use_client)
            await self.secure.reload()
            self.probe_anew()
            if self.read_rules is not None:
                await self._reload("fault rules", self.read_rules, self._use_rules)
            if not self.is_ending():
                notify("READY=1")

    async def _reload(
        self, what: str, read: Callable[[], Read], use: Callable[[Read], Awaitable[str]]
    ) -> None:
        try:
            with trio.fail_after(_READ_SECONDS):  # a pipe may be among the files
                found = await trio.to_thread.run_sync(read, abandon_on_cancel=True)
            self.log(f"{what} {await use(found)}")
        except trio.TooSlowError:
            self.log(f"the {what} from before stay in use: to read them takes too long", "warning")
        except Exception as error:
            foreseen = hasattr(error, "exit_code") or isinstance(error, (ValueError, TlsError))
            why = f": {error}" if foreseen else f" {defect(error)}"
            self.log(f"the {what} from before stay in use{why}", "warning")

    async def _use_rules(self, read: Sequence[Rule]) -> str:
        what = "have not changed"
        if read != self._read:  # otherwise those that were added meanwhile would go
            what = "are loaded again"
            self.rules.replace(read, self.clock())
            self._read = read
            self.note(rules_note(self.rules, self.clock()))
        return f"{what}: {len(self.rules.rules)} in use"

    async def _use_client(self, read: tuple[BrokerTls | None, Credentials | None]) -> str:
        await self.secure.use(*read)
        return "are loaded again: new connections use them"
