"""The state that all connections to a replaying broker share.

A handler is a plain function of this state and a `Call`; one small module has the handlers of an
area, in a table by API name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import attrs

from kproxy.proxy import rewrite
from kproxy.proxy.actions import Address
from kproxy.replay.call import Call
from kproxy.replay.connection import ReplayConnection
from kproxy.replay.fetch import WaitingFetches
from kproxy.replay.groups import ServedGroups
from kproxy.replay.ignore_words import with_words
from kproxy.replay.loaded import Loaded
from kproxy.replay.log import PartitionLog
from kproxy.replay.produced import ProduceCheck
from kproxy.replay.producers import Producers
from kproxy.replay.report import Report
from kproxy.replay.semantic import Semantic
from kproxy.replay.settings import ReplaySettings
from kproxy.replay.timers import Timers
from kproxy.replay.topics import ClusterState
from kproxy.wire.protocol import ProtocolError


@attrs.define(eq=False)
class State:
    """The cluster, and all state of the handlers."""

    loaded: Loaded
    settings: ReplaySettings
    report: Report
    timers: Timers = attrs.Factory(Timers)
    listening: dict[int, Address] = attrs.Factory(dict)
    """Address of each node's listener."""
    responses: list[tuple[Call, Any]] = attrs.Factory(list)
    """Responses to waiting requests, to be sent."""
    check: ProduceCheck = attrs.field(init=False)
    ranges: dict[int, tuple[int, int]] = attrs.field(factory=dict, init=False)
    """Least and greatest served version by API key."""
    created: set[str] = attrs.field(factory=set, init=False)
    """Topics that clients have created again."""
    reported_topics: set[str] = attrs.field(factory=set, init=False)
    """Unknown topics that clients have named: each is reported once."""
    fetches: WaitingFetches = attrs.field(init=False)
    groups: ServedGroups = attrs.field(init=False)
    producers: Producers = attrs.field(init=False)
    semantic: Semantic = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        settings, loaded = self.settings, self.loaded
        report = self.report if settings.compares_records else Report()
        loaded.schemas.own = settings.decoders
        ignored = attrs.evolve(with_words(settings.ignored, loaded.learned), schemas=loaded.schemas)
        self.check = ProduceCheck(loaded, report, ignored)
        self.fetches = WaitingFetches()
        self.groups = ServedGroups(loaded, self.timers, self.respond)
        self.producers = Producers(loaded.producer_id_max + 1)
        self.semantic = Semantic(loaded.others, self.report)

    @property
    def cluster(self) -> ClusterState:
        """Brokers and topics."""
        return self.loaded.cluster

    @property
    def gives_up(self) -> bool:
        """Whether clients are to give up: they have differed, and nothing that is to come can make
        that good, for a finding is never taken back."""
        return self.settings.fails_fast and self.report.count > 0

    def hold_back(self) -> None:
        """Hide the records that are still to be produced, with the markers after them, and the
        topics and partitions that are still to be created."""
        self.cluster.hold_back()
        for topic in self.check.topics:
            held: dict[PartitionLog, tuple[set[int], set[int]]] = {}
            for each in self.check.expected(topic):
                if each.offset >= 0:
                    committed, optional = held.setdefault(each.log, (set(), set()))
                    (committed if each.demanded else optional).add(each.offset)
                    if each.transaction is not None and each.transaction.last_offset is not None:
                        optional.add(each.transaction.last_offset)
            for log, (committed, optional) in held.items():
                log.hide(committed, optional)

    def respond(self, call: Call, body: Any) -> None:
        """Answer a request whose handler returned LATER; `body` may still be work."""
        self.responses.append((call, body))

    def with_our_addresses(
        self,
        connection: ReplayConnection,
        api_key: int | None,
        version: int | None,
        frame: bytes,
    ) -> bytes:
        """Return a recorded response with the addresses of our listeners; one of which the API is
        not known as it is."""
        if api_key is None or version is None:
            return frame
        fields = rewrite.address_fields(api_key, version)
        if fields is None:
            return frame
        try:
            found = rewrite.find_all(frame, api_key, version)
        except ProtocolError:
            return frame
        ours = functools.partial(self.address, connection)
        return rewrite.apply(frame, rewrite.splices(found, ours, fields))

    def address(self, connection: ReplayConnection, node_id: int) -> Address:
        """Return the address of a node for a client: never that of the recorded broker. For a node
        without a listener it is the address at which the client has reached us."""
        host, port = connection.client.local_address
        _, port = self.listening.get(node_id, (host, port))
        return self.settings.advertised_host or host, port


Handler = Callable[[State, Call], Any]
"""Returns the body of a response or a `Reply`, or is a generator that does so in steps."""
