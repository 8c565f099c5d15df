"""Dialling in the background: a task for each broker that is connected to, or looked for.

::

    Pump ─ dial ──▶ a task: dial_again ─▶ done(Dialled │ Unreachable)
         └ probe ─▶ a task: answers ────▶ done(yes or no)

Resource handling: who is given a connection owns it; one that comes too late is closed here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from kproxy.net.dial import Dialled, Unreachable, answers, dial_again
from kproxy.net.handshake import Secure
from kproxy.net.listeners import Listening
from kproxy.proxy.actions import Address

_LOOP_HINT = "give the address of a broker in --bootstrap"
_LOOP_HINT_NODE = "give the broker an address of its own in advertised.listeners"

Failed = Callable[[Exception], None]
"""Is told what nobody foresaw."""


class Dialler:
    """Connects to brokers, and never to ourselves."""

    def __init__(self, ours: Listening, secure: Secure) -> None:
        self._ours = ours
        self._secure = secure
        self._nursery: trio.Nursery

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Dial whatever is asked for, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    def dial(
        self,
        addresses: Sequence[Address],
        node_id: int | None,
        done: Callable[[Dialled | Unreachable], None],
        failed: Failed,
    ) -> trio.CancelScope:
        """Connect to the broker of a node, for a client of its listener (None: bootstrap).

        Returns what ends it; then neither function is called.
        """
        scope = trio.CancelScope()
        self._nursery.start_soon(self._dial, addresses, node_id, done, failed, scope)
        return scope

    def probe(self, address: Address, done: Callable[[bool], None], failed: Failed) -> None:
        """Look whether a broker takes connections."""
        self._nursery.start_soon(self._probe, address, done, failed)

    async def _dial(
        self,
        addresses: Sequence[Address],
        node_id: int | None,
        done: Callable[[Dialled | Unreachable], None],
        failed: Failed,
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
                failed(error)
            return
        if found is None or scope.cancel_called:  # nobody waits for it any more
            if isinstance(found, Dialled):
                found.close()
            return
        done(found)

    async def _probe(self, address: Address, done: Callable[[bool], None], failed: Failed) -> None:
        try:
            found = await answers(address, self._ours)
        except Exception as error:
            failed(error)
            found = True  # or its node would be refused for ever: now a client finds out
        done(found)
