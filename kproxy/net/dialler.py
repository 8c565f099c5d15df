"""Dialling in the background: a task for each connection to a broker, and for each probe.

::

    Pump ─ dial ──▶ a task: dial_again ─▶ done(Dialled │ Unreachable)
         └ probe ─▶ a task: takes_connections ─▶ done(yes or no)

Resource handling: `done` owns the connection that it gets; one that comes too late is closed here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from kproxy.net.dial import Dialled, Unreachable, dial_again, takes_connections
from kproxy.net.handshake import Secure
from kproxy.net.listeners import Listening
from kproxy.proxy.actions import Address

_LOOP_HINT = "give the address of a broker in --bootstrap"
_LOOP_HINT_NODE = "give the broker an address of its own in advertised.listeners"

OnDefect = Callable[[Exception], None]
"""A callback for unforeseen exceptions."""


class Dialler:
    """Connects to brokers, and never to ourselves."""

    def __init__(self, ours: Listening, secure: Secure) -> None:
        self._ours = ours
        self._secure = secure
        self._nursery: trio.Nursery

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the tasks that dial and probe, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    def dial(
        self,
        addresses: Sequence[Address],
        node_id: int | None,
        done: Callable[[Dialled | Unreachable], None],
        on_defect: OnDefect,
    ) -> trio.CancelScope:
        """Connect to the broker of a node, for a client of its listener (None: bootstrap).

        Returns the scope of the attempt; when it is cancelled neither function is called.
        """
        scope = trio.CancelScope()
        self._nursery.start_soon(self._dial, addresses, node_id, done, on_defect, scope)
        return scope

    def probe(self, address: Address, done: Callable[[bool], None], on_defect: OnDefect) -> None:
        """Probe whether a broker takes connections."""
        self._nursery.start_soon(self._probe, address, done, on_defect)

    async def _dial(
        self,
        addresses: Sequence[Address],
        node_id: int | None,
        done: Callable[[Dialled | Unreachable], None],
        on_defect: OnDefect,
        scope: trio.CancelScope,
    ) -> None:
        can_refuse = node_id is not None
        hint = _LOOP_HINT_NODE if can_refuse else _LOOP_HINT
        found = None
        try:
            with scope:
                found = await dial_again(addresses, self._ours, self._secure, hint, can_refuse)
        except Exception as error:
            if not scope.cancel_called:
                on_defect(error)
            return
        if found is None or scope.cancel_called:  # the link was closed meanwhile
            if isinstance(found, Dialled):
                found.close()
            return
        done(found)

    async def _probe(
        self, address: Address, done: Callable[[bool], None], on_defect: OnDefect
    ) -> None:
        try:
            found = await takes_connections(address, self._ours)
        except Exception as error:
            on_defect(error)
            found = True  # otherwise the node would be refused for ever; a client finds out
        done(found)
