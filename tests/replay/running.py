"""An app, and a cluster that it works against: live behind a proxy that records, or replayed.

::

    App ═ proxy, with rules ═ broker           live: the broker is an empty recording, which serves
       └─ what it saw    └─ exchanges, notes         what is produced to it

    App ═ broker of that recording             replayed
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from kproxy.exchange.entries import Note, Side, each_frame
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.pairing import Pairing
from kproxy.proxy.actions import Close, Send
from kproxy.proxy.cluster import Cluster
from kproxy.proxy.faults import Rules, rules_note
from kproxy.proxy.settings import Settings
from kproxy.replay.broker import ReplayBroker
from kproxy.replay.load import Loader
from kproxy.replay.loaded import Loaded
from kproxy.replay.produced_report import report_unproduced
from kproxy.replay.recorded_faults import RecordedFaults
from kproxy.replay.report import Report
from kproxy.replay.ruled import RuledBroker
from kproxy.replay.serving import modelled
from kproxy.replay.settings import Mode, ReplaySettings, Visible
from kproxy.wire import protocol
from kproxy.wire.protocol import messages
from tests.bed.memory import Clock, Performer
from tests.bed.network import Network
from tests.proxy.machines import Caller
from tests.replay.making import api

START_NS = 1_790_000_000_000_000_000
PROXY, BROKER = ("proxy", 19092), ("broker", 9092)
CAUSAL = ReplaySettings(visible=Visible.CAUSAL)
_PATIENCE_NS = 40_000_000_000


@attrs.define(eq=False)
class App:
    """A client that asks one thing after the other, and gives up a connection that is silent."""

    network: Network
    address: tuple[str, int]
    client: Performer = attrs.field(init=False)
    connection: int = 0
    _asked: int = 0
    _open: bool = False

    def __attrs_post_init__(self) -> None:
        self.client = self.network.add(Caller())

    def ask(self, version: int, request: Any) -> Any:
        """The body of the response; or what came instead of one: a text."""
        self._asked += 1
        key = protocol.api_key(api(request)) or 0
        header = messages.RequestHeader(
            api_key=key, api_version=version, correlation_id=self._asked, client_id="app"
        )
        frame = protocol.encode_request(protocol.Request(header, request))
        caller = self.client.machine
        assert isinstance(caller, Caller)
        if self._open and self.connection not in caller.ended:
            caller.received[self.connection] = b""
            self.client.perform([Send(self.connection, Side.BROKER, [frame], [])])
        else:
            self.connection += 1
            self._open = True
            self.client.perform(caller.call(self.connection, self.address, frame))
        self.network.run()
        until = self.network.clock.now + _PATIENCE_NS
        while (found := self._found(caller)) is None and self.network.clock.now < until:
            self.network.advance(self.network.clock.now + 100_000_000)
        if isinstance(found, bytes):
            return protocol.decode_response(found, key, version).body
        self.leave()
        return found or f"silence after {len(caller.received[self.connection])} bytes"

    def _found(self, caller: Caller) -> bytes | str | None:
        data = caller.received[self.connection]
        if len(data) >= 4 and len(data) >= 4 + int.from_bytes(data[:4], "big"):
            return data
        return f"the end after {len(data)} bytes" if self.connection in caller.ended else None

    def leave(self) -> None:
        """Close the connection."""
        caller = self.client.machine
        if self._open and isinstance(caller, Caller) and self.connection not in caller.ended:
            self.client.perform([Close(self.connection, False)])
            self.network.run()
        self._open = False


@attrs.define(eq=False)
class Live:
    """A cluster behind a proxy that records."""

    loaded: Loaded
    rules: Rules = attrs.Factory(Rules)
    settings: ReplaySettings = attrs.Factory(ReplaySettings)
    report: Report = attrs.Factory(Report)
    broker: ReplayBroker = attrs.field(init=False)
    app: App = attrs.field(init=False)
    proxy: Performer = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        network = Network(Clock(START_NS, lambda: 1000))
        settings = Settings([BROKER], listen_port=PROXY[1], advertised_host="proxy")
        self.proxy = network.add(Cluster(settings, self.rules), PROXY)
        self.broker = ReplayBroker(self.loaded, self.settings, self.report)
        network.add(self.broker, BROKER)
        self.app = App(network, PROXY)

    def recorded(self) -> list[Exchange | Note]:
        """What a recording of it gives."""
        self.app.leave()
        pairing, found = Pairing(), [rules_note(self.rules, START_NS)]
        for entry in each_frame(self.proxy.recorded):
            found += [entry] if isinstance(entry, Note) else []
            found += pairing.feed(entry)
        return [*found, *pairing.finish()]


@attrs.define(eq=False)
class Replayed:
    """The broker of a recording."""

    loaded: Loaded
    settings: ReplaySettings = CAUSAL
    rules: Rules = attrs.Factory(Rules)
    report: Report = attrs.Factory(Report)
    app: App = attrs.field(init=False)
    broker: ReplayBroker = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        network = Network(Clock(START_NS))
        self.broker = ReplayBroker(self.loaded, self.settings, self.report)
        network.add(RuledBroker(self.broker, self.rules), BROKER)
        self.app = App(network, BROKER)

    def findings(self) -> list[str]:
        """What was found up to the end."""
        return findings(self)


def findings(replayed: Live | Replayed) -> list[str]:
    """What was found up to the end."""
    replayed.broker.stop(replayed.app.network.clock.now)
    report_unproduced(replayed.broker.state.check, replayed.report)
    return [f"{each.kind}: {each.text}" for each in replayed.report.findings]


def loaded_of(recorded: Iterable[Exchange | Note], mode: Mode = Mode.STATE) -> Loaded:
    """What a replaying broker makes of a recording."""
    loader = Loader(modelled(mode))
    for one in recorded:
        if isinstance(one, Exchange):
            loader.add(one)
    return loader.finish()


def faults_of(
    recorded: Iterable[Exchange | Note], loaded: Loaded, mode: Mode = Mode.STATE
) -> tuple[list[Mapping[str, Any]], list[str]]:
    """The rules that repeat the faults of a recording, and what none repeats."""
    faults = RecordedFaults(modelled(mode))
    for one in recorded:
        if isinstance(one, Exchange):
            faults.add(one)
        else:
            faults.note(one)
    rules = list(faults.rules(loaded.cluster.names, loaded.cluster.topics))
    return rules, list(faults.left_out)
