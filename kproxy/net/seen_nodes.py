"""The brokers that responses have named, kept for the next start.

::

    Cluster.named ─ keep ─▶ FOLDER/nodes-HASH.json ─ SeenNodes.load ─▶ Cluster.restored

A cluster that wants a login does not answer kproxy's own question for its brokers. A client that
knew their ports before a restart of kproxy comes back to those ports alone, so they have to be
open before any client has logged in. Clusters that answer need no file, and get none.

A file is of one list of bootstrap addresses. It is a hint: what it says is bounded, checked, and
outdated by the first response that names a broker. What cannot be read, or written, costs one line
of the log, and nothing else. It is replaced as a whole, so that of two proxies the last one wins.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import trio

from kproxy.levels import Logger
from kproxy.proxy.actions import Address
from kproxy.recording.files import make_folder, reason, replacing

FILE_BYTES_MAX = 1 << 20
NODES_MAX = 1000
"""The brokers that are kept at most: those that were named last."""
EXPIRE_SECONDS = 7 * 86_400
"""A broker that no response has named for so long is no longer kept."""
CHECK_SECONDS = 1.0
"""The interval at which new brokers are looked for …"""
REFRESH_SECONDS = 3600.0
"""… and at which the times of those that are known are written anew."""
_LATER = "their ports open when a response first names them (--node-port opens one at the start)"
_NODE_ID_MAX = (1 << 31) - 1

Named = tuple[Address, float]
"""The address of a broker, and when a response last named it, in seconds of the system's clock."""


class _NotUsable(Exception):
    """A file that is not to be read; the text says why."""


@attrs.define(eq=False)
class SeenNodes:
    """The file for one list of bootstrap addresses."""

    folder: Path
    bootstrap: Sequence[Address]
    log: Logger
    clock: Callable[[], float] = time.time
    _seen: dict[int, Named] = attrs.field(factory=dict, init=False)
    """The brokers that are kept, by node id."""
    _failed: bool = attrs.field(default=False, init=False)

    @property
    def path(self) -> Path:
        """The file, which need not exist."""
        text = ",".join(sorted({f"{host.lower()}:{port}" for host, port in self.bootstrap}))
        return self.folder / f"nodes-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"

    def load(self) -> dict[int, Address]:
        """Return the brokers that were kept, by node id; log why a file cannot be used."""
        try:
            self._seen = _parsed(_read(self.path), self.clock() - EXPIRE_SECONDS)
        except FileNotFoundError:
            pass
        except (OSError, _NotUsable) as error:
            why = reason(error) if isinstance(error, OSError) else str(error)
            self.log(f"{self.path} {why}: the brokers in it are not known, {_LATER}", "warning")
        return {node_id: address for node_id, (address, _) in self._seen.items()}

    def save(self, named: Mapping[int, Named]) -> None:
        """Keep these brokers with the earlier ones, and drop all that are expired; log it, once, if
        that cannot be done."""
        oldest = self.clock() - EXPIRE_SECONDS
        kept = (self._seen | {**named}).items()
        self._seen = {node_id: each for node_id, each in kept if each[1] >= oldest}
        newest = sorted(self._seen.items(), key=lambda each: -each[1][1])[:NODES_MAX]
        nodes = [
            {"node_id": node_id, "host": host, "port": port, "named": int(named_at)}
            for node_id, ((host, port), named_at) in sorted(newest)
        ]
        try:
            make_folder(self.folder)
            with replacing(self.path, self.path.name) as file:
                file.write(json.dumps({"nodes": nodes}, indent=1).encode())
        except OSError as error:
            if not self._failed:
                self._failed = True
                what = "the brokers of the cluster cannot be kept"
                why = f"{what} in {self.path}: {reason(error)}"
                self.log(f"{why}; after a restart {_LATER}", "warning")

    async def keep(self, named: Callable[[], dict[int, Named]]) -> None:
        """Save the brokers that are named whenever others are, until cancelled."""
        kept: dict[int, Address] = {}
        until = 0.0
        while True:
            await trio.sleep(CHECK_SECONDS)
            found = named()
            addresses = {node_id: address for node_id, (address, _) in found.items()}
            if found and (addresses != kept or trio.current_time() > until):
                kept, until = addresses, trio.current_time() + REFRESH_SECONDS
                # The disk may hang, and the proxy ends all the same.
                await trio.to_thread.run_sync(self.save, found, abandon_on_cancel=True)


UNKNOWN = f"the cluster does not name its brokers before a login: {_LATER}"
"""The line for a start at which no broker is known."""


def _read(path: Path) -> bytes:
    """Read a file that nobody but its owner, who runs kproxy, can have written.

    Raises: OSError, _NotUsable.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with open(os.open(path, flags), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise _NotUsable("is no file")
        if about.st_uid != os.geteuid():
            raise _NotUsable("is of another user")
        if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise _NotUsable("can be written by other users")
        if about.st_size > FILE_BYTES_MAX:
            raise _NotUsable("is too large")
        return file.read(FILE_BYTES_MAX)


def _parsed(data: bytes, oldest: float) -> dict[int, Named]:
    """Return the brokers in a file that were named since `oldest`, by node id.

    Raises: _NotUsable.
    """
    try:
        body: Any = json.loads(data)
        nodes = [*_nodes(body["nodes"])]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise _NotUsable("is damaged") from None
    return {
        node_id: (address, named_at) for node_id, address, named_at in nodes if named_at >= oldest
    }


def _nodes(listed: Any) -> Iterator[tuple[int, Address, float]]:
    """Yield the brokers of such a list.

    Raises: ValueError, TypeError, KeyError, where it is not one.
    """
    if not isinstance(listed, list) or len(listed) > NODES_MAX:
        raise ValueError
    for each in listed:
        node_id, host, port, named_at = (each[key] for key in ("node_id", "host", "port", "named"))
        if type(node_id) is not int or not 0 <= node_id <= _NODE_ID_MAX:
            raise ValueError
        if type(host) is not str or not 0 < len(host) <= 255 or not host.isprintable():
            raise ValueError
        if type(port) is not int or not 0 < port < 65_536 or type(named_at) is not int:
            raise ValueError
        yield node_id, (host, port), named_at
