"""The phases of a connection, and how one leads to another.

This file has all phases and transitions, and nothing else: no time, no bytes, no rule. `connection`
decides that an event has happened.

::

                    ┌─ CLIENT_EOF ─▶ CLIENT_ENDED ─ PASSED_ON ─▶ CLIENT_PASSED
    DIALLING ─▶ OPEN                      └──────── BROKER_EOF ────────┴─▶ BOTH_ENDED
                    └─ BROKER_EOF ─▶ BROKER_ENDED ─ PASSED_ON ─▶ BROKER_PASSED  ▲
                                          └──────── CLIENT_EOF ────────┴────────┘

    all but DIALLING and OVER ── SILENCED ─▶ SILENT, SILENT_HALF          all ── ENDED ─▶ OVER

Theory:

* The two directions end one by one, each with an EOF (a FIN on the wire), and the first EOF is
  passed on, behind all bytes that came before it. A client's EOF is passed on when what it
  requested is answered to the last byte: a broker that sees the EOF first may drop its answers. A
  broker's EOF is passed on as soon as the bytes before it have left; nothing that is pending will
  be answered then.
* When both sides have sent their EOF nothing more will come; the connection is over when what waits
  for its time has left.
* A fault rule may silence a connection: it stays open and no byte passes any more, in either
  direction. Then an EOF ends it, for there is nothing to pass it on behind. A client that had sent
  its EOF before will send no other one, so that this has a phase of its own: it ends by time, as
  every connection does whose client has ended and whose broker says nothing.
* OVER is the last phase. No event is legal in it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from kproxy.exchange.entries import Side


class Phase(enum.Enum):
    """The state of a connection's two directions."""

    DIALLING = "dialling"
    """The client has connected, the broker has not answered; nothing is read."""
    OPEN = "open"
    CLIENT_ENDED = "client ended"
    """The client has sent EOF; the broker does not know, for responses are due."""
    CLIENT_PASSED = "client's end passed on"
    BROKER_ENDED = "broker ended"
    """The broker has sent EOF; the client does not know, for bytes before it wait."""
    BROKER_PASSED = "broker's end passed on"
    BOTH_ENDED = "both ended"
    """Nothing more will come; bytes may wait for their time."""
    SILENT = "silent"
    """A fault rule lets nothing pass any more."""
    SILENT_HALF = "silent, client ended"
    """As SILENT, of a client that had ended before."""
    OVER = "over"


class Event(enum.Enum):
    """What changes the phase."""

    DIALLED = "dialled"
    CLIENT_EOF = "client eof"
    BROKER_EOF = "broker eof"
    PASSED_ON = "passed on"
    """The EOF of the side that ended was passed on."""
    SILENCED = "silenced"
    ENDED = "ended"
    """A side, a rule, the time or the operator ended the connection."""


EOF = {Side.CLIENT: Event.CLIENT_EOF, Side.BROKER: Event.BROKER_EOF}

_TRANSITIONS: Mapping[Phase, Mapping[Event, Phase]] = {
    Phase.DIALLING: {Event.DIALLED: Phase.OPEN},
    Phase.OPEN: {
        Event.CLIENT_EOF: Phase.CLIENT_ENDED,
        Event.BROKER_EOF: Phase.BROKER_ENDED,
        Event.SILENCED: Phase.SILENT,
    },
    Phase.CLIENT_ENDED: {
        Event.PASSED_ON: Phase.CLIENT_PASSED,
        Event.BROKER_EOF: Phase.BOTH_ENDED,
        Event.SILENCED: Phase.SILENT_HALF,
    },
    Phase.CLIENT_PASSED: {
        Event.BROKER_EOF: Phase.BOTH_ENDED,
        Event.SILENCED: Phase.SILENT_HALF,
    },
    Phase.BROKER_ENDED: {
        Event.PASSED_ON: Phase.BROKER_PASSED,
        Event.CLIENT_EOF: Phase.BOTH_ENDED,
        Event.SILENCED: Phase.SILENT,
    },
    Phase.BROKER_PASSED: {
        Event.CLIENT_EOF: Phase.BOTH_ENDED,
        Event.SILENCED: Phase.SILENT,
    },
    Phase.BOTH_ENDED: {Event.SILENCED: Phase.SILENT_HALF},
    Phase.SILENT: {},
    Phase.SILENT_HALF: {},
}

ENDED_SIDES: Mapping[Phase, frozenset[Side]] = {
    Phase.CLIENT_ENDED: frozenset({Side.CLIENT}),
    Phase.CLIENT_PASSED: frozenset({Side.CLIENT}),
    Phase.BROKER_ENDED: frozenset({Side.BROKER}),
    Phase.BROKER_PASSED: frozenset({Side.BROKER}),
    Phase.BOTH_ENDED: frozenset(Side),
}
"""Phase → the sides whose EOF has come and may have to be passed on."""

SILENT = frozenset({Phase.SILENT, Phase.SILENT_HALF})
"""The phases in which nothing passes."""

WAITS_FOR_BROKER = frozenset({Phase.CLIENT_ENDED, Phase.CLIENT_PASSED, Phase.SILENT_HALF})
"""The phases in which only the broker keeps the connection alive, and not for long."""


def after(phase: Phase, event: Event) -> Phase:
    """Return the phase that an event leads to.

    Raises:
        ValueError: the event cannot happen in this phase: a defect of the caller.
    """
    if event is Event.ENDED and phase is not Phase.OVER:
        return Phase.OVER
    found = _TRANSITIONS.get(phase, {}).get(event)
    if found is None:
        raise ValueError(f"a connection that is {phase.value} cannot be {event.value}")
    return found
