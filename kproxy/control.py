"""The client of `kproxy run --control`: change the fault rules of a running proxy from Python.

::

    from kproxy.control import Control

    control = Control("127.0.0.1:9190")
    with control.fault(api="Produce", topic="orders", error="NOT_LEADER_OR_FOLLOWER") as fault:
        app.run_once()
    assert fault.fired

Rules have the keys of a [[fault]] table. Every call is one HTTP request and blocks until the
response; every failure raises a `ControlError`. A rule is given by its name or its fault_id.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import attrs

TIMEOUT_SECONDS = 10.0


class ControlError(Exception):
    """A call failed; the text says why."""

    def __init__(self, what: str, status: int | None = None, key: str | None = None) -> None:
        super().__init__(what)
        self.status = status
        """The HTTP status; None if there was no response."""
        self.key = key
        """The key of the rule that is wrong, if one is."""


@attrs.define
class Fault:
    """A rule of a running proxy, with its counts at the time of the call; in the block of `fault`,
    with its counts now."""

    fault_id: int
    name: str
    enabled: bool
    _matched: int
    _fired: int
    rule: Mapping[str, Any]
    warnings: Sequence[str] = ()
    _now: Callable[[], Fault] | None = attrs.field(default=None, init=False, eq=False, repr=False)

    @property
    def matched(self) -> int:
        """The number of exchanges that the rule matched."""
        return self._latest()._matched

    @property
    def fired(self) -> int:
        """The number of exchanges that the rule touched."""
        return self._latest()._fired

    def _latest(self) -> Fault:
        return self if self._now is None else self._now()

    @contextlib.contextmanager
    def in_force(self, now: Callable[[], Fault], remove: Callable[[], Fault]) -> Iterator[Fault]:
        """Count by `now` in a block, and by what `remove` returns, at its end, afterwards."""
        self._now = now
        try:
            yield self
        finally:
            last = remove()
            self._now, self._matched, self._fired = None, last._matched, last._fired


class Control:
    """The control address of a running proxy."""

    def __init__(self, address: str | None = None, token: str | None = None) -> None:
        """Use HOST:PORT and a token, by default those in KPROXY_CONTROL, KPROXY_CONTROL_TOKEN.

        Raises:
            ControlError: there is no address.
        """
        address = address or os.environ.get("KPROXY_CONTROL")
        if not address:
            raise ControlError("say where: HOST:PORT of --control, or KPROXY_CONTROL")
        host, _, port = address.rpartition(":")
        if not (host and port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16):
            raise ControlError(f"{address!r} is not HOST:PORT")
        self.address = address
        self._host, self._port = host.strip("[]"), int(port)
        self._token = token or os.environ.get("KPROXY_CONTROL_TOKEN")

    # ── rules

    def faults(self) -> list[Fault]:
        """Return all rules, in the order in which they are tried."""
        return [_fault(each) for each in self._ask("GET", "/faults")["faults"]]

    def add(self, rule: Mapping[str, Any] | None = None, **words: Any) -> Fault:
        """Add a rule after all others; return it."""
        return _fault(self._ask("POST", "/faults", {**(rule or {}), **words}))

    def get(self, name: str | int) -> Fault:
        """Return a rule as it is now."""
        return _fault(self._ask("GET", _path(name)))

    def change(self, name: str | int, rule: Mapping[str, Any] | None = None, **words: Any) -> Fault:
        """Change keys of a rule; None removes a key. The counts continue."""
        return _fault(self._ask("PATCH", _path(name), {**(rule or {}), **words}))

    def remove(self, name: str | int) -> Fault:
        """Remove a rule; return it with its last counts."""
        return _fault(self._ask("DELETE", _path(name)))

    def enable(self, name: str | int) -> Fault:
        """Enable a rule."""
        return _fault(self._ask("POST", f"{_path(name)}/enable"))

    def disable(self, name: str | int) -> Fault:
        """Disable a rule."""
        return _fault(self._ask("POST", f"{_path(name)}/disable"))

    def reset(self) -> None:
        """Set all counts to 0 and restart the random decisions of the seed."""
        self._ask("POST", "/faults/reset")

    def clear(self) -> None:
        """Remove all rules."""
        self._ask("DELETE", "/faults")

    @contextlib.contextmanager
    def fault(self, rule: Mapping[str, Any] | None = None, **words: Any) -> Iterator[Fault]:
        """Add a rule for a `with` block. In the block, the yielded object asks for the counts each
        time; afterwards it has the final ones."""
        fault = self.add(rule, **words)
        which = fault.fault_id
        with fault.in_force(lambda: self.get(which), lambda: self.remove(which)):
            yield fault

    # ── the proxy

    def status(self) -> dict[str, Any]:
        """Return the status of the proxy."""
        return self._ask("GET", "/status")

    def connections(self) -> list[dict[str, Any]]:
        """Return the open connections, the oldest first."""
        return self._ask("GET", "/connections")["connections"]

    def end(self, connection: int) -> None:
        """End a connection."""
        self._ask("DELETE", f"/connections/{connection}")

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        data = None
        try:
            if body is not None:
                data = json.dumps(body)
                headers["Content-Type"] = "application/json"
            connection = http.client.HTTPConnection(self._host, self._port, TIMEOUT_SECONDS)
            with contextlib.closing(connection):
                connection.request(method, path, data, headers)
                answer = connection.getresponse()
                found = json.loads(answer.read())
        except OSError as error:
            why = error.strerror or str(error) or type(error).__name__
            raise ControlError(f"no proxy answers at {self.address}: {why}") from error
        except (http.client.HTTPException, ValueError) as error:
            raise ControlError(f"{self.address} is no control address of kproxy") from error
        except TypeError as error:
            raise ControlError(f"the rule is not made of plain values: {error}") from error
        if answer.status < 300:
            return found
        key, what = found.get("key"), str(found.get("error"))
        raise ControlError(f"{key}: {what}" if key else what, answer.status, key)


def _path(name: str | int) -> str:
    return f"/faults/{quote(str(name), safe='', errors='surrogateescape')}"


def _fault(found: Mapping[str, Any]) -> Fault:
    return Fault(**{field.alias: found[field.alias] for field in attrs.fields(Fault) if field.init})
