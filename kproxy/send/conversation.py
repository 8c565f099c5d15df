"""A recording as clients of a cluster: each recorded connection is one, all of them in one order.

::

    take ─▶ dispatch ─ when nothing holds it ─▶ a client ─ its own order ─▶ steps ─▶ Sender
              ▲                                                               │
              └─ finish ◀─ compare, learn ◀─ again, if it passes ◀── responses

A client is a recorded connection; its requests go, on links of its own, to whichever broker leads
or coordinates what they name. What a client would ask again is sent again: after an error that
passes, and a Fetch until the records that the recording has are there, or can no longer come. A
member of a group that others have left behind joins again (`groups`).

A client's links end where the recorded connection ended. Memory is bounded by `is_full`, and by
what is unanswered.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any

from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.exchange import Exchange
from kproxy.send import compared, forms, target, transactions
from kproxy.send.apis import (
    Answers,
    answers,
    is_admin,
    is_read,
    is_refused_for_now,
    why_left_out,
)
from kproxy.send.calls import (
    SYNC_GROUP,
    SentCall,
    SentClient,
    answered_ns,
    decoded,
    forms_group,
    has_records,
)
from kproxy.send.compared import Deviation, Fetched
from kproxy.send.groups import JOINS_AGAIN, SYNC_WAIT_NS, SentGroups, SentMember
from kproxy.send.order import HELD_BYTES_MAX, HELD_MAX, JOIN_GROUP, Outstanding, SendItem
from kproxy.send.planned import SendSettings
from kproxy.send.sender import (
    AGAIN_NS,
    PASSES_NS,
    ClusterGone,
    Question,
    Sender,
    Signal,
    Steps,
)
from kproxy.send.substitution import Offsets, Renaming, Substitution, Where, name_topics
from kproxy.send.target import CannotBeSent
from kproxy.send.transactions import ImplicitTransactions
from kproxy.wire.protocol import ProtocolError, api_key, codec, codes, is_retriable

_PRODUCE, _LIST_OFFSETS, _SHARE_FETCH = 0, 2, 78
_METADATA_CREATES_NOTHING = 4
"""The first version of Metadata that can ask for a topic without creating it."""
_WAITS = ("max_wait_ms", "rebalance_timeout_ms", "timeout_ms")
"""Fields of a request with the time that the broker may take besides."""
_JOIN_NS = 20_000_000
"""Behind a JoinGroup, to what other members ask on connections of their own: the first one leads.
At once, one pair in five came the other way round to a broker of Kafka 4.3."""
_SETTLES_NS = 2_000_000_000
"""A cluster takes a moment to carry out what changes it: what is read meanwhile, and differs, is
read again."""
_LEADS_NS = 2_000_000_000
"""A leader waits for members of which it does not know what they had."""
_AGAIN_WAIT_MS = 100
_MOMENT_NS = 1_000_000
_LAST_FETCHES = 10
"""A Fetch of committed records is sent so often when all has been produced: the end of a
transaction reaches the partition behind its answer."""


class SentConversation:
    """One copy of the recording's conversation."""

    def __init__(self, sender: Sender, renaming: Renaming, settings: SendSettings) -> None:
        self.substitution = Substitution(renaming, sender.cluster.topic_ids)
        self._sender = sender
        self._settings = settings
        self._transactions = ImplicitTransactions()
        self._joins: dict[SentCall, None] = {}
        """What is to be sent, or not long sent: members join in their order, for the first one
        leads."""
        self._groups = SentGroups()
        self._items: deque[SendItem] = deque()
        self._held = self._held_bytes = 0
        """What was taken, and has not begun."""
        self._is_whole = False
        self._clients: dict[tuple[str | None, int], SentClient] = {}
        self._outstanding = Outstanding()
        self._tickets = 0
        self._began_ns = self._first_ns = self._due_ns = 0
        self._position_ns: float = 0
        """The time of the next request that is not under way."""
        self._producing = 0
        """Requests under way that may lead to records."""
        self._watching: list[Signal] = []
        """For Fetches that wait for what is still to be produced: the position moves, or a request
        is sent or at its end."""
        self._calls = 0
        self._without_records: set[Where] = set()
        """Partitions in which records of the recording did not come: others are not waited for."""
        self._settles_ns = 0
        """Until then the cluster may be carrying out what has changed it."""
        self._given_up: set[tuple[str, frozenset[int]]] = set()

    # ---- inputs

    def take(self, item: SendItem | None) -> None:
        """Take what comes next in the recording, None at its end; `Sender.wake` does the rest."""
        if item is None:
            self._is_whole = True
        else:
            self._items.append(item)
            self._held += 1
            self._held_bytes += item.size_bytes
        self._sender.soon(self._dispatch)
        self._moved()

    @property
    def is_full(self) -> bool:
        """True if it holds enough."""
        return self._held >= HELD_MAX or self._held_bytes >= HELD_BYTES_MAX

    @property
    def is_done(self) -> bool:
        """True if all is sent and answered."""
        return self._is_whole and not self._items and not self._calls

    # ---- the order

    def _dispatch(self) -> None:
        now_ns = self._sender.now_ns
        self._began_ns = self._began_ns or now_ns
        while self._items:
            item = self._items[0]
            self._position_ns = item.time_ns
            self._first_ns = self._first_ns or item.time_ns
            due_ns = self._began_ns + int((item.time_ns - self._first_ns) * self._settings.factor)
            if due_ns > now_ns:
                if due_ns != self._due_ns:
                    self._due_ns = due_ns
                    self._sender.timers.at(due_ns, lambda now_ns: self._dispatch())
                return
            is_held = self._outstanding.hold(item.after_ns)
            if (is_held or self._joins) and (waiting := self._groups.waiting(now_ns)):
                self._let_pass(waiting)
                is_held = self._outstanding.hold(item.after_ns)
            if is_held or (self._joins and forms_group(item.entry)):
                return
            self._items.popleft()
            self._put(item)
        if self._is_whole:
            self._position_ns = math.inf
            if not self._calls:
                for client in self._clients.values():
                    self._end(client)

    def _let_pass(self, waiting: dict[SentClient, int]) -> None:
        """Have nobody wait for clients that wait for others."""
        for client, ticket in waiting.items():
            self._outstanding.answered(ticket)
            for call in client.queue:
                self._outstanding.answered(call.ticket)
                self._joins.pop(call, None)

    def _moved(self) -> None:
        """Have who waits for what others do look again."""
        for each in self._watching:
            self._sender.fire(each)
        self._watching.clear()

    def _put(self, item: SendItem) -> None:
        self._moved()
        exchange = item.entry
        if isinstance(exchange, ConnectionEnd):
            if (client := self._clients.pop(item.connection, None)) is not None:
                self._end(client)
        elif reason := why_left_out(exchange, self._settings.allow_admin):
            self._sender.sent.left_out[reason] += 1
        else:
            self._put_call(item, exchange)
            return
        self._let_go(item.size_bytes)

    def _put_call(self, item: SendItem, exchange: Exchange) -> None:
        client = self._clients.get(item.connection)
        if client is None:
            suffix = self.substitution.renaming.suffix
            renamed = exchange.client_id and f"{exchange.client_id}{suffix}"
            client = self._clients[item.connection] = SentClient(renamed)
        self._tickets += 1
        is_poll = exchange.api_key in (codec.FETCH, _SHARE_FETCH)
        blocks_others = not is_poll or has_records(exchange)
        call = SentCall(exchange, item.size_bytes, client, self._tickets, blocks_others)
        self._calls += 1
        if exchange.api_key == JOIN_GROUP:
            self._joins[call] = None
        if blocks_others:
            self._outstanding.sent(call.ticket, answered_ns(exchange))
        self._producing += exchange.api_key == _PRODUCE
        client.queue.append(call)
        self._advance(client)

    def _let_go(self, size_bytes: int) -> None:
        self._held -= 1
        self._held_bytes -= size_bytes

    def _advance(self, client: SentClient) -> None:
        """Begin what a client sends next, if its own order has it so."""
        if client.sending or any(link.blocked_ns for link in client.links.values()):
            return
        if client.queue and not client.outstanding.hold(client.queue[0].exchange.time_ns):
            call = client.queue.popleft()
            self._let_go(call.size_bytes)
            client.outstanding.sent(call.ticket, answered_ns(call.exchange))
            client.sending = call
            self._sender.start(self._steps(call))
        elif client.has_ended and not client.queue and not len(client.outstanding):
            for link in client.links.values():
                self._sender.close(link)

    def _end(self, client: SentClient) -> None:
        client.has_ended = True
        self._groups.ended(client)
        self._advance(client)

    # ---- a call

    def _steps(self, call: SentCall) -> Steps:
        try:
            yield from self._perform(call)
        except CannotBeSent as error:
            self._differs(call, str(error), f"v{call.exchange.api_version}", "not sent")
        self._was_sent(call)
        self._calls -= 1
        self._producing -= call.exchange.api_key == _PRODUCE
        call.client.outstanding.answered(call.ticket)
        self._outstanding.answered(call.ticket)
        self._advance(call.client)
        self._dispatch()

    def _perform(self, call: SentCall) -> Steps:
        """Put in what the cluster decides, send, send again, compare."""
        exchange, api = call.exchange, call.api
        yield from self._prepare(call)
        recorded = exchange.api_version or 0
        for before in self._transactions.requests(api, recorded, call.version, call.request):
            yield from self._say_before(before)
        found: list[Deviation] = []
        while (new := (yield from self._exchange(call))) is not None:
            is_read_on = exchange.response is not None and not self._settings.is_load
            if exchange.api_key == codec.FETCH and is_read_on:
                self._take_records(call, new)
                while self._may_come(call) and not self._is_certain(call):
                    self._watching.append(moved := Signal())
                    yield moved
                    yield _MOMENT_NS  # much moves at once
            if self._should_retry(call, new):
                yield from self._before_retry(call, new)
                continue
            new = target.merged([*call.taken, new])
            yield from self._begin_epoch(call, new)
            found = [*self._compared(call, new)]
            if not (found and is_read(api) and self._sender.now_ns < self._settles_ns):
                break
            yield AGAIN_NS
        if new is not None and is_admin(api):
            self._settles_ns = self._sender.now_ns + _SETTLES_NS
        for each in found:
            self._sender.sent.differs(each, exchange.number)

    def _begin_epoch(self, call: SentCall, new: Any) -> Steps:
        """Begin the epoch that comes with the end of a transaction, where the broker knows only
        the older protocol: the sequences of a newer client begin anew with it."""
        told = getattr(call.exchange.response, "producer_id", -1)
        if call.api == "EndTxn" and new.producer_id < 0 <= told:
            answer = yield from self._say_before(transactions.next_epoch(call.request))
            if answer is not None and not answer.error_code:
                new.producer_id, new.producer_epoch = answer.producer_id, answer.producer_epoch

    def _prepare(self, call: SentCall) -> Steps:
        """Make the request as this cluster takes it.

        Raises: CannotBeSent.
        """
        exchange, cluster, api = call.exchange, self._sender.cluster, call.api
        names = exchange.topic_names
        try:
            body = call.request = codec.decode_request_body(exchange.request_frame or b"")
        except ProtocolError as error:
            raise CannotBeSent(str(error)) from None
        forms.complete(body, exchange.api_version or 0)
        if exchange.api_key == codec.FETCH:
            call.client.session.complete(body)
            if not self._settings.factor and not call.blocks_others:
                body.max_wait_ms = 0  # nothing came of it
        if cluster.needs_topics(api):
            lacking = self.substitution.topics(body, names) - cluster.topic_ids.keys()
            if lacking:
                yield from self._sender.learn_topics(lacking)
                if not self._settings.allow_admin:  # which may just have created them
                    cluster.miss(lacking)
        self.substitution.translate(body, names)
        # By name, topics that are lacked would come back as −1.
        for group in body.groups if api == "OffsetFetch" else ():
            topics = group.topics and [
                each for each in group.topics if not cluster.lacks((each.name, -1))
            ]
            group.topics = topics
        if exchange.response is not None and answers(api) is Answers.LEADER:
            refused = compared.failed(exchange.response, names, is_refused_for_now)
            left_out = {(self.substitution.renaming.topic(each[0]), each[1]) for each in refused}
            call.request = target.without(body, left_out)
            call.left_out = set() if call.request is body else left_out
        least = 0
        if api == "Metadata" and not self._settings.create_topics:
            body.allow_auto_topic_creation, least = False, _METADATA_CREATES_NOTHING
            if not exchange.api_version and not body.topics:
                body.topics = None  # all of them, as newer versions say it
        wanted = max(exchange.api_version or 0, least)
        call.version = cluster.version(exchange.api_key or 0, wanted, call.request)
        if call.version != wanted and not call.is_counted:
            what = "version: the cluster knows {} to {}".format(*cluster.versions[exchange.api_key])
            self._differs(call, what, f"v{exchange.api_version}", f"sent as v{call.version}")

    def _say_before(self, body: Any) -> Steps:
        """Tell the coordinator of a transaction what newer clients need not say; return what it
        answers at last."""
        api, version = transactions.MADE[type(body)]
        sender, key = self._sender, self._sender.cluster.coordinator_key(api, body)
        gives_up_ns = sender.now_ns + PASSES_NS
        while sender.now_ns < gives_up_ns:
            if key is not None and key not in sender.cluster.coordinators:
                yield from sender.learn_coordinator(key)
            node = sender.cluster.coordinators.get(key or (0, ""))
            answer = yield from sender.ask(api_key(api) or 0, version, body, node)
            if answer is None:
                sender.cluster.forget((), key)
            elif not any(is_retriable(each) for each in compared.errors(answer)):
                return answer
            yield AGAIN_NS
        return None

    def _exchange(self, call: SentCall, ticket: int = 0) -> Steps:
        """Send a request; return the response, None if there is none. `ticket` is what others hold
        up that waits for it: mostly the request itself."""
        new: Any = None
        self._groups.asked(call, ticket or call.ticket, self._sender.now_ns)
        try:
            if call.exchange.api_key == SYNC_GROUP:
                yield from self._put_assignments(call)
            new = yield from self._exchange_parts(call)
        finally:
            self._groups.answered(call, new)
        return new

    def _exchange_parts(self, call: SentCall) -> Steps:
        """Send a request, or its parts, to whoever answers; return the response of all."""
        sender, cluster, exchange = self._sender, self._sender.cluster, call.exchange
        call.might_bring = self._may_come(call)
        responses, left = [], [call.request]
        while left:
            key = cluster.coordinator_key(call.api, call.request)
            if key is not None and key not in cluster.coordinators:
                yield from sender.learn_coordinator(key)
            parts = [part for body in left for part in cluster.divided(call.api, body)]
            if not parts:
                sender.sent.left_out["partitions that the cluster does not have"] += 1
                return None
            questions = [self._ask(call, *each) for each in parts]
            for each in questions:
                yield each.written
            if not call.is_counted and any(each.written_ns for each in questions):
                call.is_counted = True
                sender.sent.ask(exchange)
            self._was_sent(call)
            for each in questions:
                yield each.answered
            if exchange.one_way:
                return None
            open_ = [each for each in questions if each.answer is None]
            if lost := next((each for each in open_ if each.written_ns), None):
                if exchange.response is not None:
                    self._differs(call, "response", "came", lost.why or "the connection ended")
                return None
            if not call.is_timed and not open_:
                call.is_timed = True
                sender.sent.answer(call.api, sender.now_ns - questions[-1].written_ns)
            kind = exchange.api_key or 0, call.version
            try:
                responses += [decoded(each.answer, *kind) for each in questions if each.answer]
            except ProtocolError as error:
                self._differs(call, "the response cannot be decoded", "", str(error))
                return None
            if open_:
                yield from self._find_others(call, open_)
            left = [each.body for each in open_]
        return target.merged(responses)

    def _ask(self, call: SentCall, node: int | None, body: Any) -> Question:
        """Ask a broker, or any."""
        exchange, client = call.exchange, call.client
        if node is None and exchange.node_id in self._sender.cluster.nodes:
            before = client.links.get(exchange.node_id)
            node = None if before is not None and before.why else exchange.node_id
        link = client.links.get(node)
        if link is None or link.ended:
            link = client.links[node] = self._sender.link(node, client.client_id)
            link.on_flow = partial(self._advance, client)
        waits_ms = sum(getattr(body, name, 0) or 0 for name in _WAITS)
        try:
            return self._sender.request(
                link, exchange.api_key or 0, call.version, body,
                waits_ms=waits_ms, expects=exchange.response is not None, one_way=exchange.one_way,
            )  # fmt: skip
        except ProtocolError as error:
            raise CannotBeSent(f"cannot be said in v{call.version}: {error}") from None

    def _was_sent(self, call: SentCall) -> None:
        """Have the client go on, and, in a while, who joins behind it; it may have ended."""
        self._moved()
        if call.client.sending is call:
            call.client.sending = None
            self._sender.soon(partial(self._advance, call.client))
            if call in self._joins:
                self._sender.timers.at(self._sender.now_ns + _JOIN_NS, partial(self._joined, call))

    def _joined(self, call: SentCall, now_ns: int) -> None:
        self._joins.pop(call, None)
        self._dispatch()

    def _find_others(self, call: SentCall, unsent: list[Question]) -> Steps:
        """Have others answer than brokers that are not there.

        Raises: CannotBeSent, ClusterGone.
        """
        sender, link = self._sender, unsent[0].link
        address = sender.cluster.nodes.get(link.node if link.node is not None else -1)
        if address is None:
            raise ClusterGone(link.why)  # no broker can be reached
        if not self._may_pass(call):
            sender.give_up(address, link.why)
        if address in sender.sent.lost:
            raise CannotBeSent("its broker is given up")
        yield AGAIN_NS
        yield from self._learn_anew(call)

    def _learn_anew(self, call: SentCall) -> Steps:
        """Forget who answers a call, and ask."""
        cluster, topics = self._sender.cluster, set[str]()
        if cluster.needs_topics(call.api):
            topics = self.substitution.topics(call.exchange.request, call.exchange.topic_names)
        cluster.forget(topics, cluster.coordinator_key(call.api, call.request))
        yield from self._sender.learn_topics(topics)

    # ---- again

    def _should_retry(self, call: SentCall, new: Any) -> bool:
        recorded, cluster = call.exchange.response, self._sender.cluster
        if recorded is None:
            return False
        if call.api == "JoinGroup" and new.error_code == codes.MEMBER_ID_REQUIRED:
            if recorded.error_code != new.error_code:  # from v4 on members join twice
                call.request.member_id = new.member_id
                return self._may_pass(call)
        if self._left_behind(call, new):
            return self._groups.may_join_again(call, self._sender.now_ns)
        self._groups.went_well(call)
        then = set[int]() if call.left_out else compared.errors(recorded)
        if compared.is_to_be_sent_again(then, new, cluster.lacks, cluster.names):
            why_again = call.api, frozenset(compared.errors(new))
            if self._may_pass(call):
                return why_again not in self._given_up
            self._given_up.add(why_again)
            return False
        call.failing_ns = 0
        if call.exchange.api_key != codec.FETCH or self._settings.is_load or compared.errors(new):
            return False
        return self._lacks_records(call)

    def _may_pass(self, call: SentCall) -> bool:
        """Return whether what has failed now, and maybe before, may pass."""
        now_ns = self._sender.now_ns
        call.failing_ns = call.failing_ns or now_ns
        return now_ns - call.failing_ns < PASSES_NS

    def _take_records(self, call: SentCall, new: Any) -> None:
        if call.fetched is None:
            found = compared.fetched(call.exchange.response, call.exchange.topic_names)
            call.fetched = {where: Fetched(batches) for where, batches in found.items()}
        here = compared.fetched(new, self._sender.cluster.names)
        for where, each in call.fetched.items():
            renamed = self.substitution.renaming.topic(where[0])
            each.take(here.get((renamed, where[1]), []))

    def _may_come(self, call: SentCall) -> bool:
        """Return whether something is produced that a recorded Fetch has brought."""
        return bool(self._producing) or self._position_ns <= call.exchange.completed_ns

    def _is_certain(self, call: SentCall) -> bool:
        found = (call.fetched or {}).items()
        return all(each.is_certain(self._offsets(where)) for where, each in found)

    def _offsets(self, where: Where) -> Offsets:
        return self.substitution.offsets.get(where) or compared.AS_RECORDED

    def _lacks_records(self, call: SentCall) -> bool:
        """Return whether records may come that the recording has."""
        lacking = {
            where: each
            for where, each in (call.fetched or {}).items()
            if not (each.is_complete(self._offsets(where)) or self._is_lacking(where))
        }
        moves = any(each.moves for each in lacking.values())
        if not lacking or self._may_come(call) or call.might_bring or moves:
            return bool(lacking)
        if self._without_records >= lacking.keys():
            return False
        call.last_fetches += 1
        isolated = getattr(call.request, "isolation_level", 0)
        return call.last_fetches <= (_LAST_FETCHES if isolated else 1)

    def _before_retry(self, call: SentCall, new: Any) -> Steps:
        if member := self._left_behind(call, new):
            yield from self._join_again(call, member)
        elif call.fetched is None or compared.errors(new):
            if call.exchange.api_key == _PRODUCE:
                self._keep_rest(call, new)
            yield AGAIN_NS
            yield from self._learn_anew(call)
        else:
            if call.last_fetches:
                yield AGAIN_NS
            self._advance_fetch(call)

    def _left_behind(self, call: SentCall, new: Any) -> SentMember | None:
        """Return a member that is refused because others have joined, or went on, as they had not
        in the recording."""
        leaves = any(each.api == "LeaveGroup" for each in call.client.queue)
        if call.api in ("JoinGroup", "LeaveGroup") or (call.api == "Heartbeat" and leaves):
            return None
        is_new = compared.errors(new) & JOINS_AGAIN - compared.errors(call.exchange.response)
        return self._groups.member(call) if is_new else None

    def _join_again(self, call: SentCall, member: SentMember) -> Steps:
        """Have a member come to where the others are, as its client would."""
        self._outstanding.answered(call.ticket)  # others may have to come, too
        self._sender.soon(self._dispatch)
        if member.behind_ns < self._sender.now_ns:  # it did not help the first time
            yield AGAIN_NS
        if not member.joins:
            yield from self._join(call, member)
        yield from self._prepare(call)

    def _join(self, call: SentCall, member: SentMember) -> Steps:
        join, sync = member.joined, member.synced
        join.request.member_id = member.id
        new = yield from self._exchange(join, call.ticket)
        if new is not None and not new.error_code:
            self._learn(join, new)
            if sync is not None and sync is not call:
                yield from self._prepare(sync)
                yield from self._exchange(sync, call.ticket)

    def _put_assignments(self, call: SentCall) -> Steps:
        """Have whoever leads now say who gets which partitions: the cluster chooses who does."""
        member, body, sender = self._groups.member(call), call.request, self._sender
        recorded = call.exchange.response
        if member is None:
            return
        if recorded is not None and not recorded.error_code:
            member.assignment = self._expected(call).assignment
        sender.timers.at(sender.now_ns + SYNC_WAIT_NS, lambda now_ns: self._dispatch())
        given = {each.member_id: each.assignment for each in body.assignments}
        gives_up_ns = sender.now_ns + _LEADS_NS
        while member.leads != given.keys() and sender.now_ns < gives_up_ns:
            if self._groups.assignments(body.group_id).keys() >= member.leads:
                break
            yield AGAIN_NS
        known = given | self._groups.assignments(body.group_id)
        kind = type(body).SyncGroupRequestAssignment
        body.assignments = [
            kind(member_id=each, assignment=known[each])
            for each in sorted(member.leads & known.keys())
        ]

    def _keep_rest(self, call: SentCall, new: Any) -> None:
        """Have a Produce go on with what was not taken: the rest would be there twice."""
        names = self._sender.cluster.names
        name_topics(new, names)
        failed = compared.failed(new, names, is_retriable)
        rest = target.without(new, failed)
        if rest is not new:
            call.taken.append(rest)
            call.request = target.without(
                call.request, compared.failed(new, names, lambda code: not is_retriable(code))
            )

    def _advance_fetch(self, call: SentCall) -> None:
        """Have a Fetch go on behind what has come."""
        call.request.max_wait_ms = min(call.request.max_wait_ms, _AGAIN_WAIT_MS)
        renamed = self.substitution.renaming.topic
        ends: dict[Where, int] = {}
        for where, each in (call.fetched or {}).items():
            each.go_back(self._offsets(where))
            if each.begin <= each.end:
                ends[renamed(where[0]), where[1]] = each.end
        for topic in call.request.topics:
            for each in topic.partitions:
                end = ends.get((topic.topic, each.partition))
                each.fetch_offset = each.fetch_offset if end is None else end

    # ---- the end

    def _compared(self, call: SentCall, new: Any) -> Iterator[Deviation]:
        """Learn from a pair of responses, and compare them."""
        exchange, api, cluster = call.exchange, call.api, self._sender.cluster
        recorded = exchange.response
        if recorded is None:
            return
        self._learn(call, new)
        told = exchange.api_key in (_PRODUCE, _LIST_OFFSETS)
        others = [*self._learn_offsets(call, new)] if told else []
        if self._settings.is_load and not compared.errors(new):
            return
        yield from others
        if api in ("Produce", "Fetch") and not (compared.errors(recorded) | compared.errors(new)):
            for where, each in (call.fetched or {}).items():
                if self._is_lacking(where):
                    continue
                offsets = self._offsets(where)
                if not each.is_complete(offsets):
                    self._without_records.add(where)
                yield from each.differences(where, offsets)
            return
        expected = target.without(self._expected(call), call.left_out)
        name_topics(new, cluster.names)
        both = call.version, exchange.api_version or 0
        version = max(both) if type(new).__name__ in forms.LISTS else min(both)
        yield from compared.differences(exchange, expected, new, version, cluster.lacks)

    def _expected(self, call: SentCall) -> Any:
        """Return the recorded response as this cluster would say it."""
        then = call.exchange
        body = decoded(then.response_frame or b"", then.api_key or 0, then.api_version or 0)
        self.substitution.translate(body, then.topic_names)  # it was decoded before
        return body

    def _learn(self, call: SentCall, new: Any) -> None:
        then = call.exchange
        names = then.topic_names
        self.substitution.learn(then.request, then.response, call.request, new, names)

    def _is_lacking(self, where: Where) -> bool:
        return self._sender.cluster.lacks((self.substitution.renaming.topic(where[0]), where[1]))

    def _learn_offsets(self, call: SentCall, new: Any) -> Iterator[Deviation]:
        """Learn where records are now; yield where those of a client have another order."""
        exchange, last = call.exchange, call.client.produced
        here = compared.offsets(new, self._sender.cluster.names)
        produced = compared.produced(exchange.request, exchange.topic_names)
        rename = self.substitution.renaming.topic
        for where, offset in compared.offsets(exchange.response, exchange.topic_names).items():
            found = here.get((rename(where[0]), where[1]), -1)
            count = produced.get(where, 0)
            self.substitution.learn_offset(where, offset, found, count)
            if count and min(offset, found) >= 0:
                now = call.ticket, offset, found
                first, second = sorted((now, last.get(where, now)))
                if first[1] < second[1] and first[2] > second[2]:
                    name = f"{where[0]}[{where[1]}] order of records"
                    yield Deviation(call.api, name, "as they were sent", "another")
                last[where] = now

    def _differs(self, call: SentCall, what: str, recorded: str, now: str) -> None:
        self._sender.sent.differs(Deviation(call.api, what, recorded, now), call.exchange.number)
