"""The actions that the machine asks for: the whole vocabulary on one screen.

The machine (`cluster.Cluster`) is fed events and answers with a list of actions, to be performed
in order. Its events are its methods::

    accepted · dialled · receive · closed · listening · probed · wake
          │
          ▼
    Dial · LogIn · Send · Eof · Pause · Resume · Close · Listen · Refuse · Unlisten · Probe ·
    RecordEntries · Log

Every action that concerns a connection names it, so an event on one connection may act on others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, final

import attrs

from kproxy.exchange.entries import Buffer, ChunkTimes, Entry, Frame, Side
from kproxy.levels import Level

if TYPE_CHECKING:
    from kproxy.proxy.authenticate import LoginSession

Address = tuple[str, int]
"""Host and port."""


@final
@attrs.define(eq=False)
class Dial:
    """Connect to the broker at the first of these addresses that answers."""

    connection: int
    addresses: Sequence[Address]


@final
@attrs.define(eq=False)
class LogIn:
    """Log in anew at the broker of a connection, on which nothing is pending, and report
    `logged_in`; read from neither side meanwhile."""

    connection: int
    earlier: LoginSession


@final
@attrs.define(eq=False)
class Send:
    """Send these bytes to one side; then note the time in `timed`, whose last bytes they hold, and
    hand the entries to the recording.

    One action for both: two of them cost as much as all else that the machine does about a chunk.
    """

    connection: int
    side: Side
    pieces: Sequence[Buffer]
    timed: Sequence[Frame | ChunkTimes]
    entries: Sequence[Entry] = ()


@final
@attrs.define(eq=False)
class Eof:
    """Half-close: tell one side that nothing more will come, after all that was sent to it."""

    connection: int
    side: Side


@final
@attrs.define(eq=False)
class Pause:
    """Read no more from one side of a connection, until Resume."""

    connection: int
    side: Side


@final
@attrs.define(eq=False)
class Resume:
    """Read from one side of a connection again."""

    connection: int
    side: Side


@final
@attrs.define(eq=False)
class Close:
    """Forget the connection, and close both sides."""

    connection: int
    abrupt: bool
    """Reset them at once, instead of closing them after what was sent before."""


@final
@attrs.define(eq=False)
class Listen:
    """Open a listener for a broker, at `port` if that is free (0: any), and report `listening`.

    One that refuses takes connections again, at its own port and no other.
    """

    node_id: int
    port: int


@final
@attrs.define(eq=False)
class Refuse:
    """Have the listener of a broker refuse connections until another Listen; its port stays ours,
    and connections that it accepted stay."""

    node_id: int


@final
@attrs.define(eq=False)
class Probe:
    """Try whether a broker takes connections at one of these addresses, and report `probed`."""

    node_id: int | None
    """None: the bootstrap."""
    addresses: Sequence[Address]
    secured: bool
    """With TLS, and kproxy's own login if there is one."""


@final
@attrs.define(eq=False)
class Unlisten:
    """Close the listener of a broker; connections that it accepted stay."""

    node_id: int


@final
@attrs.define(eq=False)
class RecordEntries:
    """Hand these entries to the recording."""

    entries: list[Entry]


@final
@attrs.define(eq=False)
class Log:
    """Tell the operator, in one line."""

    text: str
    level: Level = "info"


Action = (
    Dial
    | LogIn
    | Send
    | Eof
    | Pause
    | Resume
    | Close
    | Listen
    | Refuse
    | Probe
    | Unlisten
    | RecordEntries
    | Log
)
