"""Health, for those who start kproxy, watch it and end it.

::

    GET /healthz ─▶ 200: it lives
    GET /readyz  ─▶ 200: clients can come; else 503: which is not so
                         listening · recording · broker (`machine.reachable`)

Invariants: an answer names no host and nothing that was recorded, so that anybody may have it.
A request causes no connection to a broker: the machine probes the bootstrap by itself.
"""

from __future__ import annotations

import attrs

from kproxy.net.control import Access, Answer, ControlCall, Route, Routes, json_answer
from kproxy.net.operated import Operated


@attrs.define(eq=False)
class Health:
    """The routes over a running machine."""

    operated: Operated

    def routes(self, access: Access = "public") -> Routes:
        """Return the routes."""
        found = {"/healthz": _alive, "/readyz": self.ready}
        return {path: {"GET": Route(run, access=access)} for path, run in found.items()}

    async def ready(self, call: ControlCall) -> Answer:
        """Tell whether clients can come; a recording or a broker counts if there is to be one."""
        operated = self.operated
        checks = {"listening": not operated.pump.draining}
        if operated.recording is not None:
            checks["recording"] = operated.recorder.writes
        reachable = operated.machine.reachable
        if None in reachable:
            checks["broker"] = reachable[None]
        ready = all(checks.values())
        return json_answer({"ready": ready, **checks}, 200 if ready else 503)


async def _alive(call: ControlCall) -> Answer:
    return json_answer({"alive": True})
