"""The limit of open files, and their shares: listeners, clients, and reserved ones.

::

    ulimit -n ─▶ raised ─▶ RESERVED_FILES │ listeners, at most half │ clients, two for each

A connection takes two descriptors, a listener one or two (one for each address of its host). The
share of listeners is limited, so that a cluster of many brokers cannot lock its clients out.
"""

from __future__ import annotations

import contextlib
import resource

import attrs

from kproxy.net.unusable import Unusable

RESERVED_FILES = 40
"""The files for other purposes: the recording, the control server, resolving names."""
_FILES_MIN = RESERVED_FILES + 8
_MAC_MAX = 10_240
"""The most that macOS allows when its hard limit claims to be infinite."""


@attrs.frozen
class Descriptors:
    """A limit of open files."""

    files_max: int = 1 << 20

    @property
    def listeners_max(self) -> int:
        """The most sockets that may listen."""
        return (self.files_max - RESERVED_FILES) // 2

    def connections_max(self, listeners: int) -> int:
        """Return the most clients that can be connected while this many sockets listen."""
        return (self.files_max - RESERVED_FILES - listeners) // 2


def raise_limit(connections_max: int) -> Descriptors:
    """Raise the limit of open files, as far as possible, to that of so many connections.

    Raises:
        Unusable: even then no client could be served.
    """
    wanted = 2 * connections_max + 2 * RESERVED_FILES
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
    if files < _FILES_MIN:
        raise Unusable(
            f"ulimit -n {files} leaves no room for connections; at least {_FILES_MIN} is needed"
        )
    return Descriptors(files)
