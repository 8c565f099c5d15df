"""How many files this process may have open, and what they are for.

::

    ulimit -n ─▶ as far up as it goes ─▶ BESIDE │ listeners, at most half │ clients, two for each

A connection takes two descriptors, a listener one or two (one for each address of its host). When
listeners have their share, what is left is for clients: so a cluster of many brokers cannot lock
its clients out.
"""

from __future__ import annotations

import contextlib
import resource

import attrs

BESIDE = 40
"""Kept for what is neither: the recording, the control server, resolving names."""
_LEAST = BESIDE + 8
_MAC_MAX = 10_240
"""What macOS allows where its hard limit is said to be infinite."""


class TooFew(Exception):
    """Nobody could be served; the text says what to change."""


@attrs.frozen
class Descriptors:
    """A limit of open files."""

    files_max: int = 1 << 20

    @property
    def listeners_max(self) -> int:
        """The most sockets that may listen."""
        return (self.files_max - BESIDE) // 2

    def connections_max(self, listeners: int) -> int:
        """The most clients that can be connected while so many sockets listen."""
        return (self.files_max - BESIDE - listeners) // 2


def raise_limit(connections_max: int) -> Descriptors:
    """Raise the limit of open files, as far as it may be, to what so many connections need.

    Raises:
        TooFew: even then nobody could be served.
    """
    wanted = 2 * connections_max + 2 * BESIDE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    infinite = resource.RLIM_INFINITY
    files = wanted if soft == infinite else soft
    for higher in (wanted, hard, _MAC_MAX):
        if files >= wanted or higher == infinite or higher <= files:
            continue
        # Only root may raise the hard limit.
        top = hard if hard == infinite or hard >= higher else higher
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (higher, top))
            files = higher
            break
    if files < _LEAST:
        raise TooFew(f"ulimit -n {files} leaves no room for clients; at least {_LEAST} is needed")
    return Descriptors(files)
