"""Health, for those who start kproxy, watch it and end it.

::

    GET /healthz ─▶ 200: it lives
    GET /readyz  ─▶ 200: clients can come; else 503: which is not so
                         listening · recording · broker ─ a connection that is closed at once

Invariants: an answer names no host and nothing that was recorded, so that anybody may have it.
However many ask, a bootstrap broker gets at most one connection in `_PROBE_SECONDS`.
"""

from __future__ import annotations

import math
from functools import partial

import attrs
import trio

from kproxy.net.control import Answer, ControlCall, Route, Routes, json_answer
from kproxy.net.dial import takes_connections
from kproxy.net.operated import Operated
from kproxy.proxy.actions import Address

_PROBE_SECONDS = 2.0


@attrs.define(eq=False)
class Health:
    """The routes over a running machine."""

    operated: Operated
    _probed_at: float = attrs.field(default=-math.inf, init=False)
    _answers: bool = attrs.field(default=False, init=False)
    _probing: trio.Semaphore = attrs.field(factory=partial(trio.Semaphore, 1), init=False)

    def routes(self) -> Routes:
        """Return the routes, which anybody may read."""
        return {"/healthz": {"GET": Route(_alive)}, "/readyz": {"GET": Route(self.ready)}}

    async def ready(self, call: ControlCall) -> Answer:
        """Tell whether clients can come; a recording or a broker counts if there is to be one."""
        operated = self.operated
        checks = {"listening": not operated.pump.draining}
        if operated.recording is not None:
            checks["recording"] = operated.recorder.writes
        if operated.bootstrap:
            checks["broker"] = await self._broker_answers()
        ready = all(checks.values())
        return json_answer({"ready": ready, **checks}, 200 if ready else 503)

    async def _broker_answers(self) -> bool:
        """Return whether a bootstrap broker takes connections, or did a moment ago."""
        async with self._probing:
            if trio.current_time() >= self._probed_at + _PROBE_SECONDS:
                self._answers = False
                async with trio.open_nursery() as nursery:
                    for address in self.operated.bootstrap:
                        nursery.start_soon(self._probe, address, nursery.cancel_scope)
                self._probed_at = trio.current_time()
        return self._answers

    async def _probe(self, address: Address, all_probes: trio.CancelScope) -> None:
        if await takes_connections(address, self.operated.pump.acceptor.listening):
            self._answers = True
            all_probes.cancel()


async def _alive(call: ControlCall) -> Answer:
    return json_answer({"alive": True})
