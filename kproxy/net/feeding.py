"""The inputs of a service, written to a cluster: one request after the other, to keep their order.

::

    Exchange, its records ─ at its time ─▶ rounds ─▶ Produce ─▶ the leaders ─▶ answers
                                              ▲                                  │
                                              └── again, what was refused for ◀──┤
                                                  the moment                     └─▶ Sent

Invariant: each record is written once at most. Only what a broker has certainly not written is sent
again; where a connection ends before the answer, so does all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs
import trio

from kproxy.exchange.body_facts import body_facts
from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.histogram import Histogram
from kproxy.net.sender import AGAIN_SECONDS, PASSES_SECONDS, BrokerLink, ClusterGone, Sender
from kproxy.send.apis import is_refused_for_now
from kproxy.send.compared import Deviation
from kproxy.send.inputs import Batches, Input, produce_request, rounds
from kproxy.send.substitution import Renaming
from kproxy.send.target import NEWEST, CannotBeSent
from kproxy.wire.protocol import ProtocolError, codec, error_name
from kproxy.wire.protocol.codes import UNKNOWN_SERVER_ERROR

_PRODUCE = 0


@attrs.define(eq=False)
class Feeding:
    """The connections to the leaders, and the names that topics have there."""

    sender: Sender
    renaming: Renaming
    factor: float
    """Of the recorded times; 0: at once."""
    _links: dict[int | None, BrokerLink] = attrs.field(factory=dict, init=False)

    async def run(self, inputs: Iterable[Input]) -> None:
        """Write the records, each when the exchange that brought it was complete.

        Raises: ClusterGone, RecordingError.
        """
        began, first_ns, sent = trio.current_time(), 0, self.sender.sent
        for exchange, records in inputs:
            await trio.lowlevel.checkpoint()
            if records and self.factor:
                first_ns = first_ns or exchange.completed_ns
                at = (exchange.completed_ns - first_ns) / 1e9 * self.factor
                await trio.sleep_until(began + at)
            for batches in rounds(records, self.renaming):
                sent.requests += 1
                sent.last = exchange
                refused = await self._write(batches)
                sent.answered += 1
                for where, written in batches.items():
                    if (code := refused.get(where)) is None:
                        sent.records += len(written)
                        continue
                    what = f"{where.topic}[{where.partition}]"
                    differs = Deviation("Produce", what, "NONE", error_name(code))
                    sent.differs(differs, exchange.number)

    async def _write(self, batches: Batches) -> dict[TopicPartition, int]:
        """Write a batch to each partition; return the errors of those that refuse it for good."""
        cluster, again = self.sender.cluster, batches
        gives_up = trio.current_time() + PASSES_SECONDS
        refused: dict[TopicPartition, int] = {}
        while True:
            body = produce_request(again, cluster.topic_ids)
            codes: dict[TopicPartition, int] = {}
            for node, part in cluster.divided("Produce", body):
                codes |= await self._ask(node, part)
            now = {where: codes.get(where, UNKNOWN_SERVER_ERROR) for where in again}
            again = {each: batches[each] for each in now if is_refused_for_now(now[each])}
            if trio.current_time() > gives_up:
                again = {}
            refused |= {each: code for each, code in now.items() if code and each not in again}
            if not again:
                return refused
            await trio.sleep(AGAIN_SECONDS)
            topics = {where.topic for where in again}
            cluster.forget(topics, None)
            await self.sender.learn_topics(topics)

    async def _ask(self, node: int | None, body: Any) -> dict[TopicPartition, int]:
        """Send a request to a broker; return the error, or none, of each partition."""
        sender, link = self.sender, self._links.get(node)
        if link is None or link.ended:
            link = self._links[node] = await sender.connect(node, "kproxy")
        try:
            version = sender.cluster.version(_PRODUCE, NEWEST, body)
        except CannotBeSent as error:
            raise ClusterGone(f"the cluster lacks what is needed: {error}") from None
        began = trio.current_time()
        frame = await sender.answer(link, _PRODUCE, version, body)
        if frame is None:
            raise ClusterGone(link.violation or f"broker {node} closed the connection")
        taken_us = int((trio.current_time() - began) * 1e6)
        sender.sent.latencies.setdefault("Produce", Histogram()).add(taken_us)
        try:
            answer, _ = codec.decode_response_body(frame, _PRODUCE, version)
        except ProtocolError as error:
            raise ClusterGone(f"the answer to a Produce cannot be decoded: {error}") from None
        results = body_facts(None, answer, sender.cluster.names).results
        return {each.where: each.error_code for each in results}
