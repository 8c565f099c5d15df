"""A running machine as an operator sees it: the parts that the control API shows and changes.

::

    serve ─▶ Operated ─┬─▶ control_api: status, connections, rules
                       └─▶ metrics
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from kproxy.net.handshake import Failures
from kproxy.net.pump import Pump
from kproxy.net.recorder import Recorder
from kproxy.net.traffic import Traffic
from kproxy.proxy.faults import Rules
from kproxy.proxy.machine import OpenMachine
from kproxy.recording.retention import Retention
from kproxy.recording.rotation import Recording


@attrs.frozen(eq=False, kw_only=True)
class Operated:
    """The parts of a running machine."""

    pump: Pump
    machine: OpenMachine
    recorder: Recorder
    recording: Recording | None = None
    retention: Retention | None = None
    """What removes files of recordings; None: nothing does."""
    replayed: Sequence[Path] = ()
    """The files of the recording that it replays."""
    traffic: Traffic = attrs.Factory(Traffic)
    failures: Failures
    rules: Rules
    address: str
    """The address at which clients connect."""
    clock: Callable[[], int]
    wall_ns: Callable[[int], int] = lambda time_ns: time_ns
    """Where a time of `clock` lies on the system's clock."""
    started_ns: int = attrs.Factory(lambda self: self.clock(), takes_self=True)
    recordings: Path | None = None
    """The folder of the recordings that rules from the control API may name; None: no recording."""

    @property
    def shown(self) -> Sequence[Path]:
        """The files whose exchanges the page shows."""
        return self.recording.paths if self.recording else self.replayed
