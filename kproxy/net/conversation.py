"""A recording as clients of a cluster: each recorded connection is one, all of them in one order.

::

    recording ─ ahead ─▶ dispatch ─ when nothing holds it ─▶ a client ─ its own order ─▶ links
                            ▲                                                             │
                            └── answered ◀─ compare, learn ◀─ again, if it passes ◀── responses

A client is a recorded connection; its requests go, on links of its own, to whichever broker leads
or coordinates what they name. What a client would ask again is sent again: after an error that
passes, and a Fetch until the records that the recording has are there, or can no longer come.

Resource handling: a client's links end where the recorded connection ended. Memory is bounded by
what `send.order` looks ahead, and by what is unanswered.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import Any

import attrs
import trio

from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.entries import Side
from kproxy.exchange.exchange import Exchange
from kproxy.net.dial import why
from kproxy.net.sender import AGAIN_SECONDS, ANSWER_SECONDS, PASSES_SECONDS, BrokerLink, Sender
from kproxy.proxy import redact
from kproxy.send import compared, target, transactions
from kproxy.send.apis import why_left_out
from kproxy.send.compared import Deviation, Fetched
from kproxy.send.fetching import RecordedFetchSession
from kproxy.send.order import Outstanding, SendItem
from kproxy.send.substitution import Renaming, Substitution, Where, name_topics
from kproxy.send.target import CannotBeSent
from kproxy.send.transactions import ImplicitTransactions
from kproxy.wire.protocol import ProtocolError, api_key, codec, is_retriable

_PRODUCE, _LIST_OFFSETS, _SHARE_FETCH = 0, 2, 78
_METADATA_CREATES_NOTHING = 4
"""The first version of Metadata that can ask for a topic without creating it."""
_QUEUE_MAX = 1000
"""Requests of one client that wait for its own order."""
_WAITS = ("max_wait_ms", "rebalance_timeout_ms", "timeout_ms")
"""Fields of a request with the time that the broker may take besides."""
_JOIN_SECONDS = 0.02
"""Between two members that join: so that the broker takes them in their order."""
_AGAIN_WAIT_MS = 100
_LAST_FETCHES = 10
"""A Fetch of committed records is sent so often when all has been produced: the end of a
transaction reaches the partition behind its answer."""


@attrs.define(eq=False)
class _SentCall:
    """A request under way."""

    exchange: Exchange
    client: _Client
    ticket: int
    blocks_others: bool
    """Requests of other connections wait for its response, too."""
    request: Any = None
    """Its body as it is sent."""
    version: int = 0
    parts: int = 0
    """The parts of it that are not answered."""
    responses: list[Any] = attrs.field(factory=list)
    fetched: dict[Any, Fetched] | None = None
    began: float = 0.0
    sent_at: float = 0.0
    timed: bool = False
    last_fetches: int = 0
    done: bool = False
    joins_behind: trio.Event | None = None
    """Set when the JoinGroup before it was sent."""
    joined: trio.Event | None = None
    """Of a JoinGroup, set when it was sent."""

    @property
    def api(self) -> str:
        """The name of its API."""
        return self.exchange.api or ""


class _Client:
    """A recorded connection."""

    def __init__(self, conversation: SentConversation, client_id: str | None) -> None:
        self.client_id = client_id
        self.outstanding = Outstanding()
        self.progress = trio.lowlevel.ParkingLot()
        self.session = RecordedFetchSession()
        self.links: dict[int | None, BrokerLink] = {}
        self.put, self.queue = trio.open_memory_channel[_SentCall](_QUEUE_MAX)
        self._conversation = conversation

    async def run(self) -> None:
        """Send what is put into the queue, in its order, until the recorded connection ends."""
        async for call in self.queue:
            while self.outstanding.hold(call.exchange.time_ns):
                await self.progress.park()
            self.outstanding.sent(call.ticket, _answered_ns(call.exchange))
            await self._conversation.issue(call)
        while len(self.outstanding):
            await self.progress.park()
        for link in self.links.values():
            self._conversation.sender.close(link)


class SentConversation:
    """One copy of the recording's conversation."""

    def __init__(
        self,
        sender: Sender,
        renaming: Renaming,
        factor: float,
        allow_admin: bool,
        compares: bool = True,
        create_topics: bool = False,
    ) -> None:
        """`factor` 0 sends at once what nothing holds; others are of the recorded times."""
        self.sender = sender
        self.substitution = Substitution(renaming, sender.cluster.topic_ids)
        self._transactions = ImplicitTransactions()
        self._joined: trio.Event | None = None
        """That of the last JoinGroup: members join in their order, for the first one leads."""
        self._factor = factor
        self._allow_admin = allow_admin
        self._compares = compares
        self._create_topics = create_topics
        self._clients: dict[tuple[str | None, int], _Client] = {}
        self._outstanding = Outstanding()
        self._progress = trio.lowlevel.ParkingLot()
        self._tickets = 0
        self._position_ns: float = 0
        """The time of the next request that is not under way."""
        self._producing = 0
        """Requests under way that may lead to records."""
        self._calls: dict[int, _SentCall] = {}
        self._without_records: set[Where] = set()
        """Partitions in which records of the recording did not come: others are not waited for."""
        self._given_up: set[tuple[str, frozenset[int]]] = set()
        self._nursery: trio.Nursery

    async def run(self, items: Iterable[SendItem | None]) -> None:
        """Send it, and return when all is answered.

        Raises: ClusterGone, RecordingError.
        """
        async with trio.open_nursery() as self._nursery:
            watch = trio.CancelScope()
            self._nursery.start_soon(self._watch, watch)
            await self._dispatch(items)
            self._position_ns = math.inf
            while len(self._outstanding) or self._calls:
                await self._progress.park()
            for client in self._clients.values():
                client.put.close()
            watch.cancel()

    async def _dispatch(self, items: Iterable[SendItem | None]) -> None:
        began, first_ns = trio.current_time(), 0
        for item in items:
            if item is None:
                await trio.lowlevel.checkpoint()
                continue
            first_ns = first_ns or item.time_ns
            self._position_ns = item.time_ns
            if self._factor:
                at = (item.time_ns - first_ns) / 1e9 * self._factor
                await trio.sleep_until(began + at)
            while self._outstanding.hold(item.after_ns):
                await self._progress.park()
            if isinstance(item.entry, ConnectionEnd):
                if (client := self._clients.pop(item.connection, None)) is not None:
                    client.put.close()
                continue
            if reason := why_left_out(item.entry, self._allow_admin):
                self.sender.sent.leave_out(reason)
                await trio.lowlevel.checkpoint()
                continue
            await self._put(item.connection, item.entry)

    async def _put(self, connection: tuple[str | None, int], exchange: Exchange) -> None:
        client = self._clients.get(connection)
        if client is None:
            client_id = exchange.client_id
            suffix = self.substitution.renaming.suffix
            renamed = client_id and f"{client_id}{suffix}"
            client = self._clients[connection] = _Client(self, renamed)
            self._nursery.start_soon(client.run)
        self._tickets += 1
        is_poll = exchange.api_key in (codec.FETCH, _SHARE_FETCH)
        is_empty_poll = is_poll and not _has_records(exchange)
        call = _SentCall(exchange, client, self._tickets, not is_empty_poll)
        self._calls[call.ticket] = call
        if call.api == "JoinGroup":
            call.joins_behind = self._joined
            call.joined = self._joined = trio.Event()
        if call.blocks_others:
            self._outstanding.sent(call.ticket, _answered_ns(exchange))
        self._producing += exchange.api_key == _PRODUCE
        await client.put.send(call)

    async def issue(self, call: _SentCall) -> None:
        """Put in what the cluster decides, and send."""
        exchange, cluster, sender = call.exchange, self.sender.cluster, self.sender
        names, api = exchange.topic_names, call.api
        call.began = trio.current_time()
        try:
            body = codec.decode_request_body(exchange.request_frame or b"")
            if exchange.api_key == codec.FETCH:
                call.client.session.complete(body)
                if not self._factor and not call.blocks_others:
                    body.max_wait_ms = 0  # nothing came of it
            if cluster.needs_topics(api):
                lacking = self.substitution.topics(body, names) - cluster.topic_ids.keys()
                if lacking:
                    await sender.learn_topics(lacking)
            self.substitution.translate(body, names)
            call.request = body
            least = 0
            if api == "Metadata" and not self._create_topics:
                body.allow_auto_topic_creation, least = False, _METADATA_CREATES_NOTHING
                if not exchange.api_version and not body.topics:
                    body.topics = None  # all of them, as newer versions say it
            wanted = max(exchange.api_version or 0, least)
            call.version = cluster.version(exchange.api_key or 0, wanted, body)
        except (CannotBeSent, ProtocolError) as error:
            self._differs(call, Deviation(api, str(error), f"v{exchange.api_version}", "not sent"))
            self._finish(call)
            return
        if call.version != wanted:
            what = "version: the cluster knows {} to {}".format(*cluster.versions[exchange.api_key])
            known = f"v{exchange.api_version}", f"sent as v{call.version}"
            self._differs(call, Deviation(api, what, *known))
        recorded = exchange.api_version or 0
        for before in self._transactions.requests(api, recorded, call.version, body):
            await self._say_before(before)
        sender.sent.ask(exchange)
        if call.joins_behind is not None:
            await call.joins_behind.wait()
        await self._send(call)
        if call.joined is not None:
            await trio.sleep(_JOIN_SECONDS)
            call.joined.set()

    async def _say_before(self, body: Any) -> Any:
        """Tell the coordinator of a transaction what newer clients need not say; return what it
        answers at last."""
        api, version = transactions.MADE[type(body)]
        key = self.sender.cluster.coordinator_key(api, body)
        if key is not None and key not in self.sender.cluster.coordinators:
            await self.sender.learn_coordinator(key)
        node = self.sender.cluster.coordinators.get(key or (0, ""))
        with trio.move_on_after(PASSES_SECONDS):
            while True:
                answer = await self.sender.ask(api_key(api) or 0, version, body, node)
                if not any(is_retriable(each) for each in compared.errors(answer)):
                    return answer
                await trio.sleep(AGAIN_SECONDS)
        return None

    async def _send(self, call: _SentCall) -> None:
        """Send a request, or send it again, to whoever answers it."""
        cluster = self.sender.cluster
        key = cluster.coordinator_key(call.api, call.request)
        if key is not None and key not in cluster.coordinators:
            await self.sender.learn_coordinator(key)
        parts = cluster.divided(call.api, call.request)
        call.parts, call.responses = len(parts), []
        one_way = call.exchange.one_way
        for node, body in parts:
            link = await self._link(call, node)
            try:
                call.sent_at = trio.current_time()
                take = None if one_way else partial(self._take, call)
                kind = call.exchange.api_key or 0, call.version
                await self.sender.request(link, *kind, call.client.client_id, body, take)
            except OSError as error:
                self.sender.close(link, why(error))
                self._take(call, None)
            except ProtocolError as error:
                what = f"cannot be said in v{call.version}: {error}"
                self._differs(call, Deviation(call.api, what, "", "not sent"))
                self._finish(call)
        if one_way:
            self._finish(call)

    async def _link(self, call: _SentCall, node: int | None) -> BrokerLink:
        if node is None and call.exchange.node_id in self.sender.cluster.nodes:
            node = call.exchange.node_id
        link = call.client.links.get(node)
        if link is None or link.ended:
            link = await self.sender.connect(node, call.client.client_id)
            call.client.links[node] = link
        return link

    def _take(self, call: _SentCall, frame: bytes | None) -> None:
        """Take the response to a part of a request; None: the connection ended first."""
        if call.done:
            return
        call.parts -= 1
        if frame is None:
            self._ended(call)
            return
        key = call.exchange.api_key or 0
        try:
            call.responses.append(_body(frame, key, call.version))
        except ProtocolError as error:
            self._differs(
                call, Deviation(call.api, "the response cannot be decoded", "", str(error))
            )
            self._finish(call)
            return
        if call.parts:
            return
        if not call.timed:
            call.timed = True
            self.sender.sent.answer(call.api, trio.current_time() - call.sent_at)
        new = target.merged(call.responses)
        if self._should_retry(call, new):
            self._nursery.start_soon(self._retry, call, new)
            return
        told = getattr(call.exchange.response, "producer_id", -1)
        if call.api == "EndTxn" and new.producer_id < 0 <= told:
            self._nursery.start_soon(self._begin_epoch, call, new)
            return
        self._compare(call, new)
        self._finish(call)

    async def _begin_epoch(self, call: _SentCall, new: Any) -> None:
        """Begin the epoch that comes with the end of a transaction, where the broker knows only
        the older protocol: the sequences of a newer client begin anew with it."""
        answer = await self._say_before(transactions.next_epoch(call.request))
        if answer is not None and not answer.error_code:
            new.producer_id, new.producer_epoch = answer.producer_id, answer.producer_epoch
        self._compare(call, new)
        self._finish(call)

    def _ended(self, call: _SentCall) -> None:
        """The connection ended before the response."""
        if call.exchange.response is not None:
            self._differs(call, Deviation(call.api, "response", "came", "the connection ended"))
        self._finish(call)

    # ---- again

    def _should_retry(self, call: _SentCall, new: Any) -> bool:
        recorded = call.exchange.response
        if recorded is None:
            return False
        if compared.is_to_be_sent_again(recorded, new):
            why_again = call.api, frozenset(compared.errors(new))
            if trio.current_time() - call.began < PASSES_SECONDS:
                return why_again not in self._given_up
            self._given_up.add(why_again)
            return False
        if call.exchange.api_key != codec.FETCH or not self._compares or compared.errors(new):
            return False
        return self._lacks_records(call, new)

    def _lacks_records(self, call: _SentCall, new: Any) -> bool:
        """Take the records of a Fetch; return whether others may come that the recording has."""
        renaming, offsets = self.substitution.renaming, self.substitution.offsets
        if call.fetched is None:
            found = compared.fetched(call.exchange.response, call.exchange.topic_names)
            call.fetched = {where: Fetched(batches) for where, batches in found.items()}
        here = compared.fetched(new, self.sender.cluster.names)
        lacks = False
        for where, each in call.fetched.items():
            each.take(here.get((renaming.topic(where[0]), where[1]), []))
            is_complete = each.is_complete(offsets.get(where) or compared.AS_RECORDED)
            lacks = lacks or not (is_complete or where in self._without_records)
        if not lacks:
            return False
        may_come = self._producing or self._position_ns <= call.exchange.completed_ns
        if not may_come:
            call.last_fetches += 1
        isolated = getattr(call.request, "isolation_level", 0)
        return call.last_fetches <= (_LAST_FETCHES if isolated else 1)

    async def _retry(self, call: _SentCall, new: Any) -> None:
        if call.fetched is None or compared.errors(new):
            await trio.sleep(AGAIN_SECONDS)
            cluster = self.sender.cluster
            topics: set[str] = set()
            if cluster.needs_topics(call.api):
                names = call.exchange.topic_names
                topics = self.substitution.topics(call.exchange.request, names)
            cluster.forget(topics, cluster.coordinator_key(call.api, call.request))
            if topics:
                await self.sender.learn_topics(topics)
        else:
            if call.last_fetches:
                await trio.sleep(AGAIN_SECONDS)
            self._advance_fetch(call)
        if not call.done:
            await self._send(call)

    def _advance_fetch(self, call: _SentCall) -> None:
        """Have a Fetch go on behind what has come."""
        call.request.max_wait_ms = min(call.request.max_wait_ms, _AGAIN_WAIT_MS)
        renamed = self.substitution.renaming.topic
        ends = {
            (renamed(topic), partition): each.end
            for (topic, partition), each in (call.fetched or {}).items()
            if each.end
        }
        for topic in call.request.topics:
            for each in topic.partitions:
                end = ends.get((topic.topic, each.partition), 0)
                each.fetch_offset = max(each.fetch_offset, end)

    # ---- the end

    def _compare(self, call: _SentCall, new: Any) -> None:
        """Learn from a pair of responses, and compare them."""
        exchange, api = call.exchange, call.api
        recorded, names = exchange.response, exchange.topic_names
        if recorded is None:
            return
        self.substitution.learn(exchange.request, recorded, call.request, new, names)
        if exchange.api_key in (_PRODUCE, _LIST_OFFSETS):
            self._learn_offsets(exchange, new)
        if not self._compares and not compared.errors(new):
            return
        if api in ("Produce", "Fetch") and not (compared.errors(recorded) | compared.errors(new)):
            if call.fetched:
                self._compare_records(call)
            return
        try:
            kind = exchange.api_key or 0, exchange.api_version or 0
            expected = _body(exchange.response_frame or b"", *kind)
        except ProtocolError:
            return
        self.substitution.translate(expected, names)
        name_topics(new, self.sender.cluster.names)
        version = min(call.version, exchange.api_version or 0)
        for difference in compared.differences(exchange, expected, new, version):
            self._differs(call, difference)

    def _compare_records(self, call: _SentCall) -> None:
        for where, each in (call.fetched or {}).items():
            offsets = self.substitution.offsets.get(where) or compared.AS_RECORDED
            if not each.is_complete(offsets):
                self._without_records.add(where)
            for difference in each.differences(where, offsets):
                self._differs(call, difference)

    def _learn_offsets(self, exchange: Exchange, new: Any) -> None:
        here = compared.offsets(new, self.sender.cluster.names)
        produced = compared.produced(exchange.request, exchange.topic_names)
        rename = self.substitution.renaming.topic
        for where, offset in compared.offsets(exchange.response, exchange.topic_names).items():
            found = here.get((rename(where[0]), where[1]), -1)
            self.substitution.learn_offset(where, offset, found, produced.get(where, 0))

    def _differs(self, call: _SentCall, difference: Deviation) -> None:
        self.sender.sent.differs(difference, call.exchange.number)

    def _finish(self, call: _SentCall) -> None:
        """End a call: others may go on."""
        if call.done:
            return
        call.done = True
        if call.joined is not None:
            call.joined.set()
        del self._calls[call.ticket]
        self._producing -= call.exchange.api_key == _PRODUCE
        call.client.outstanding.answered(call.ticket)
        call.client.progress.unpark_all()
        self._outstanding.answered(call.ticket)
        self._progress.unpark_all()

    async def _watch(self, scope: trio.CancelScope) -> None:
        """End calls that are not answered in time, as their clients would."""
        with scope:
            while True:
                await trio.sleep(1)
                now = trio.current_time()
                for call in [each for each in self._calls.values() if each.sent_at]:
                    waits = sum(getattr(call.request, name, 0) or 0 for name in _WAITS) / 1000
                    if not call.done and now - call.sent_at > ANSWER_SECONDS + waits:
                        self._give_up(call, f"no answer in {ANSWER_SECONDS + waits:g} s")

    def _give_up(self, call: _SentCall, what: str) -> None:
        told = call.exchange.response is not None
        if told:
            self._differs(call, Deviation(call.api, "response", "came", what))
        self._finish(call)
        for link in [*call.client.links.values()]:
            if told and link.waiting:
                self.sender.fail(link, what)


def _body(response: bytes, key: int, version: int) -> Any:
    """Decode a response without its secrets: differences are shown.

    Raises: ProtocolError.
    """
    if redact.is_sensitive(key):
        response = redact.redact(response, Side.BROKER, key, version) or response
    return codec.decode_response_body(response, key, version)[0]


def _answered_ns(exchange: Exchange) -> int:
    """Return when the recording has the response; later than all else if it has none."""
    return 1 << 63 if exchange.response_frame is None else exchange.completed_ns


def _has_records(exchange: Exchange) -> bool:
    return bool(
        exchange.response is not None and compared.fetched(exchange.response, exchange.topic_names)
    )
