"""The inputs of a service, written to a cluster: one request after the other, to keep their order.

::

    take ─ at its time ─▶ rounds ─▶ Produce ─▶ the leaders ─▶ answers
                            ▲                                   │
                            └── again, what was refused for  ◀──┤
                                the moment                      └─▶ Sent

Invariant: each record is written once at most. Only what a broker has certainly not written is sent
again; where a connection ends before the answer, so does all.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from kproxy.exchange.body_facts import body_facts
from kproxy.exchange.entities import TopicPartition
from kproxy.send.apis import is_refused_for_now
from kproxy.send.compared import Deviation
from kproxy.send.inputs import Batches, Input, produce_request, rounds
from kproxy.send.sender import AGAIN_NS, PASSES_NS, ClusterGone, Sender, SendLink, Steps
from kproxy.send.substitution import Renaming
from kproxy.send.target import NEWEST, CannotBeSent
from kproxy.wire.protocol import ProtocolError, codec, error_name
from kproxy.wire.protocol.codes import UNKNOWN_SERVER_ERROR

_PRODUCE = 0


class Feeding:
    """Writes the inputs; taken as a conversation is (`SentConversation`)."""

    def __init__(self, sender: Sender, renaming: Renaming, factor: float) -> None:
        """`factor`: of the recorded times; 0: at once."""
        self._sender, self._renaming, self._factor = sender, renaming, factor
        self._inputs: deque[Input] = deque()
        self._is_writing = self._is_whole = False
        self._began_ns = self._first_ns = 0
        self._links: dict[int | None, SendLink] = {}

    def take(self, item: Input | None) -> None:
        """Take what comes next, None at the end; `Sender.wake` does the rest."""
        if item is None:
            self._is_whole = True
        elif item[1]:
            self._inputs.append(item)
        if self._inputs and not self._is_writing:
            self._is_writing = True
            self._sender.start(self._write_all())

    @property
    def is_full(self) -> bool:
        """True if it holds enough."""
        return bool(self._inputs)

    @property
    def is_done(self) -> bool:
        """True if all is written."""
        return self._is_whole and not self._is_writing

    def _write_all(self) -> Steps:
        sender, sent = self._sender, self._sender.sent
        while self._inputs:
            exchange, records = self._inputs.popleft()
            self._began_ns = self._began_ns or sender.now_ns
            self._first_ns = self._first_ns or exchange.completed_ns
            due_ns = int((exchange.completed_ns - self._first_ns) * self._factor) + self._began_ns
            if due_ns > sender.now_ns:
                yield due_ns - sender.now_ns
            for batches in rounds(records, self._renaming):
                sent.requests += 1
                sent.last = exchange
                refused = yield from self._write(batches)
                sent.answered += 1
                for where, written in batches.items():
                    if (code := refused.get(where)) is None:
                        sent.records += len(written)
                        continue
                    what = f"{where.topic}[{where.partition}]"
                    differs = Deviation("Produce", what, "NONE", error_name(code))
                    sent.differs(differs, exchange.number)
        self._is_writing = False

    def _write(self, batches: Batches) -> Steps:
        """Write a batch to each partition; return the errors of those that refuse it for good."""
        sender, cluster, again = self._sender, self._sender.cluster, batches
        gives_up_ns = sender.now_ns + PASSES_NS
        refused: dict[TopicPartition, int] = {}
        while True:
            body = produce_request(again, cluster.topic_ids)
            codes: dict[TopicPartition, int] = {}
            for node, part in cluster.divided("Produce", body):
                codes |= yield from self._ask(node, part)
            now = {where: codes.get(where, UNKNOWN_SERVER_ERROR) for where in again}
            again = {each: batches[each] for each in now if is_refused_for_now(now[each])}
            if sender.now_ns > gives_up_ns:
                again = {}
            refused |= {each: code for each, code in now.items() if code and each not in again}
            if not again:
                return refused
            yield AGAIN_NS
            topics = {where.topic for where in again}
            cluster.forget(topics, None)
            yield from sender.learn_topics(topics)

    def _ask(self, node: int | None, body: Any) -> Steps:
        """Send a request to a broker; return the error, or none, of each partition."""
        sender, link = self._sender, self._links.get(node)
        if link is None or link.ended:
            link = self._links[node] = sender.link(node, "kproxy")
        try:
            version = sender.cluster.version(_PRODUCE, NEWEST, body)
        except CannotBeSent as error:
            raise ClusterGone(f"the cluster lacks what is needed: {error}") from None
        question = sender.request(link, _PRODUCE, version, body)
        yield question.answered
        if question.answer is None:
            raise ClusterGone(f"broker {node}: {question.why}")
        sender.sent.time("Produce", sender.now_ns - question.written_ns)
        try:
            answer, _ = codec.decode_response_body(question.answer, _PRODUCE, version)
        except ProtocolError as error:
            raise ClusterGone(f"the answer to a Produce cannot be decoded: {error}") from None
        results = body_facts(None, answer, sender.cluster.names).results
        return {each.where: each.error_code for each in results}
