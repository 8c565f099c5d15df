"""The control API beside metrics: faults, connections, status, as JSON.

::

    GET     /status                      GET     /connections
    GET     /live                        for the page
    GET     /faults                      DELETE  /connections/N
    POST    /faults                      a rule in the words of a [[fault]] table
    DELETE  /faults                      all of them
    GET     /faults/NAME                 by name, or by fault_id
    PATCH   /faults/NAME                 other words; null takes one away
    PUT     /faults/NAME                 these words, and no others
    DELETE  /faults/NAME
    POST    /faults/NAME/enable          POST    /faults/NAME/disable
    POST    /faults/reset                all counters to 0

Invariants: a change of the rules holds for the next request of each connection and drops none; each
change is a note in the recording. A wrong rule leaves the rules as they were. HTTP requests can
read only recordings below the folder that the operator has named.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs
import trio

from kproxy import __version__
from kproxy.net.control import Answer, ControlCall, RequestRefused, Route, Routes, json_answer
from kproxy.net.operated import Operated
from kproxy.printable import printable
from kproxy.proxy.faults import RuleError, Rules, plain, rules_note
from kproxy.proxy.faults.active import Active
from kproxy.proxy.machine import OpenConnection
from kproxy.units import moment

RULES_MAX = 1000
"""The most rules; the control address adds no more."""
CONNECTIONS_SHOWN_MAX = 1000


@attrs.frozen(eq=False)
class ControlApi:
    """The routes over a running machine."""

    operated: Operated

    @property
    def rules(self) -> Rules:
        """The rules of the machine."""
        return self.operated.rules

    @property
    def _now(self) -> int:
        return self.operated.clock()

    def routes(self) -> Routes:
        """Return the routes of the API."""
        return {
            "/status": {"GET": Route(self.status)},
            "/live": {"GET": Route(self.live, access="private")},
            "/faults": {
                "GET": Route(self.faults),
                "POST": Route(self.add, takes_body=True),
                "DELETE": Route(self.clear),
            },
            "/faults/reset": {"POST": Route(self.reset)},
            "/faults/{name}": {
                "GET": Route(self.fault),
                "PATCH": Route(self.change, takes_body=True),
                "PUT": Route(self.replace, takes_body=True),
                "DELETE": Route(self.remove),
            },
            "/faults/{name}/enable": {"POST": Route(partial(self.enable, enabled=True))},
            "/faults/{name}/disable": {"POST": Route(partial(self.enable, enabled=False))},
            "/connections": {"GET": Route(self.connections)},
            "/connections/{number}": {"DELETE": Route(self.end)},
        }

    # ── reading

    async def status(self, call: ControlCall) -> Answer:
        """Return the status of the proxy."""
        recorder, recording = self.operated.recorder, self.operated.recording
        retention = self.operated.retention
        reachable = self.operated.machine.reachable.items()
        return json_answer(
            {
                "version": __version__,
                "bootstrap": self.operated.address,
                "uptime_seconds": round((self._now - self.operated.started_ns) / 1e9, 3),
                "brokers_up": {"bootstrap" if n is None else str(n): up for n, up in reachable},
                "connections_open": self.operated.pump.connections_open,
                "connections_accepted": self.operated.pump.connections_accepted,
                "recording": None if recording is None else str(recording.paths[-1]),
                "frames_recorded": recorder.frames_recorded,
                "frames_lost": recorder.frames_lost,
                "files_removed": retention.files_removed if retention else 0,
                "backlog_bytes": recorder.backlog_bytes,
                "seed": self.rules.seed,
                "faults": len(self.rules.rules),
            }
        )

    async def live(self, call: ControlCall) -> Answer:
        """Tell the page that a machine runs here, and whether there are exchanges to show."""
        found: dict[str, Any] = {"live": True, "recorded": bool(self.operated.shown)}
        if names := ", ".join(path.name for path in self.operated.replayed):
            found |= {"replayed": True, "title": printable(names)}
        return json_answer(found)

    async def faults(self, call: ControlCall) -> Answer:
        """Return all rules, in the order in which they decide."""
        return json_answer({"seed": self.rules.seed, "faults": [*map(plain, self.rules.rules)]})

    async def fault(self, call: ControlCall) -> Answer:
        """Return one rule."""
        return json_answer(plain(self._find(call)))

    async def connections(self, call: ControlCall) -> Answer:
        """Return the open connections, the oldest first."""
        now = self._now
        shown: list[dict[str, Any]] = []
        for connection in self.operated.machine.connections:
            if len(shown) == CONNECTIONS_SHOWN_MAX:
                break
            shown.append(_connection_json(connection, now, self.operated.wall_ns))
        return json_answer({"open": self.operated.pump.connections_open, "connections": shown})

    # ── changing

    async def end(self, call: ControlCall) -> Answer:
        """End a connection."""
        (text,) = call.words
        number = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else -1
        actions = self.operated.machine.end(number, self._now)
        if not actions:
            raise RequestRefused(404, f"there is no connection {text}; GET /connections lists them")
        self.operated.pump.perform(actions)
        return json_answer({"ended": number})

    async def add(self, call: ControlCall) -> Answer:
        """Add a rule behind the others."""
        if len(self.rules.rules) >= RULES_MAX:
            raise RequestRefused(409, f"there are {RULES_MAX} rules already; remove some")
        name = call.body.get("name")
        if isinstance(name, str) and name in (active.name for active in self.rules.rules):
            raise RequestRefused(409, f"there is already a rule {name!r}", key="name")
        words = await self._load_recording(call.body)
        with _refuse_rule_errors():
            active = self.rules.add(words, self._now)
        self._note()
        where = f"/faults/{quote(active.name, safe='', errors='surrogateescape')}"
        return json_answer(plain(active), 201, [("Location", where)])

    async def change(self, call: ControlCall) -> Answer:
        """Give a rule other words."""
        return await self._change(call, call.body)

    async def replace(self, call: ControlCall) -> Answer:
        """Give a rule these words and no others; it keeps its name if they lack one."""
        words = self._find(call).rule.words
        gone = dict.fromkeys(words)
        return await self._change(call, {**gone, "name": words.get("name"), **call.body})

    async def _change(self, call: ControlCall, words: Mapping[str, Any]) -> Answer:
        active = self._find(call)
        words = await self._load_recording(words)
        others = (other.name for other in self.rules.rules if other is not active)
        if isinstance(name := words.get("name"), str) and name in others:
            raise RequestRefused(409, f"there is already a rule {name!r}", key="name")
        with _refuse_rule_errors():
            self.rules.change(active.fault_id, words)
        self._note()
        return json_answer(plain(active))

    async def remove(self, call: ControlCall) -> Answer:
        """Take a rule away."""
        active = self._find(call)
        self.rules.remove(active.fault_id)
        self._note()
        return json_answer(plain(active))

    async def clear(self, call: ControlCall) -> Answer:
        """Take all rules away."""
        self.rules.clear()
        self._note()
        return await self.faults(call)

    async def enable(self, call: ControlCall, enabled: bool) -> Answer:
        """Enable a rule, or disable it."""
        active = self._find(call)
        self.rules.enable(active.fault_id, enabled, self._now)
        self._note()
        return json_answer(plain(active))

    async def reset(self, call: ControlCall) -> Answer:
        """Set all counters to 0."""
        self.rules.reset(self._now)
        self._note()
        return await self.faults(call)

    # ── rules

    def _find(self, call: ControlCall) -> Active:
        (name,) = call.words
        try:
            return self.rules.find(name)
        except RuleError as error:
            for active in self.rules.rules:
                if name == str(active.fault_id):
                    return active
            raise RequestRefused(404, str(error)) from None

    async def _load_recording(self, words: Mapping[str, Any]) -> Mapping[str, Any]:
        """Read the recording that a rule names, so that no client waits for the disk; return the
        rule with the path of the recording."""
        latency: Any = words.get("latency")
        name = latency.get("recording") if isinstance(latency, dict) else None
        if not isinstance(name, str):
            return words
        try:
            path = await trio.to_thread.run_sync(_find_recording, self.operated.recordings, name)
            await trio.to_thread.run_sync(self.rules.read_delays, path)
        except ValueError as error:
            raise RequestRefused(422, str(error), key="latency") from None
        return {**words, "latency": {**latency, "recording": path}}

    def _note(self) -> None:
        self.operated.recorder.note(rules_note(self.rules, self._now))


@contextlib.contextmanager
def _refuse_rule_errors() -> Iterator[None]:
    """Turn the error of a rule into a refusal."""
    try:
        yield
    except RuleError as error:
        raise RequestRefused(422, error.what, key=error.key) from None


def _find_recording(folder: Path | None, name: str) -> str:
    """Return the path, without links, of a recording below a folder; a relative name counts from
    the folder.

    Raises:
        ValueError: it is not below the folder, or no file.
    """
    if folder is None:
        raise ValueError(
            "no recording is read over the control address; --control-recordings DIR allows those"
            " below a folder"
        )
    # Links in a ring, and names that no file can have.
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        path = (folder / name).resolve()
        if path.is_relative_to(folder.resolve()) and path.is_file():
            return str(path)
    raise ValueError(f"no file below the folder of --control-recordings: {name!r}")


def _connection_json(
    connection: OpenConnection, now: int, wall_ns: Callable[[int], int]
) -> dict[str, Any]:
    return {
        "connection": connection.number,
        "client_address": connection.client_address,
        "client_id": connection.client_id,
        "node_id": connection.node_id,
        "broker_address": connection.broker_address,
        "opened": moment(wall_ns(connection.opened_ns)).isoformat(timespec="milliseconds"),
        "idle_seconds": round((now - connection.last_ns) / 1e9, 3),
        "pending_requests": connection.pending_requests,
        "user": connection.user,
    }
