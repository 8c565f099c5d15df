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
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.histogram import Histogram
from kproxy.exchange.topic_records import TopicRecord
from kproxy.net.dial import why
from kproxy.net.sender import (
    AGAIN_SECONDS,
    ANSWER_SECONDS,
    PASSES_SECONDS,
    BrokerLink,
    ClusterGone,
    Sender,
)
from kproxy.send.apis import is_refused_for_now
from kproxy.send.compared import Deviation
from kproxy.send.inputs import Batches, produce_request, rounds
from kproxy.send.substitution import Renaming, Where
from kproxy.send.target import NEWEST
from kproxy.wire.protocol import ProtocolError, codec, error_name
from kproxy.wire.protocol.codes import UNKNOWN_SERVER_ERROR

_PRODUCE = 0
_CLIENT_ID = "kproxy"


@attrs.define(eq=False)
class Feeding:
    """The connections to the leaders, and the names that topics have there."""

    sender: Sender
    renaming: Renaming
    factor: float
    """Of the recorded times; 0: at once."""
    _links: dict[int | None, BrokerLink] = attrs.field(factory=dict, init=False)

    async def run(self, inputs: Iterable[tuple[Exchange, list[TopicRecord]]]) -> None:
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
            for batches in rounds(records):
                sent.requests += 1
                sent.last = exchange
                refused = await self._write(batches)
                sent.answered += 1
                sent.records += sum(
                    len(each) for where, each in batches.items() if where not in refused
                )
                for where, code in refused.items():
                    what = f"{where.topic}[{where.partition}]"
                    differs = Deviation("Produce", what, "NONE", error_name(code))
                    sent.differs(differs, exchange.number)

    async def _write(self, batches: Batches) -> dict[TopicPartition, int]:
        """Write a batch to each partition; return the errors of those that refuse it for good."""
        cluster, rename = self.sender.cluster, self.renaming.topic
        gives_up = trio.current_time() + PASSES_SECONDS
        refused: dict[TopicPartition, int] = {}
        again = batches
        while True:
            body = produce_request(again, self.renaming, cluster.topic_ids)
            codes: dict[Where, int] = {}
            for node, part in cluster.divided("Produce", body):
                codes |= await self._ask(node, part)
            now = {
                where: codes.get((rename(where.topic), where.partition), UNKNOWN_SERVER_ERROR)
                for where in again
            }
            again = {each: batches[each] for each in now if is_refused_for_now(now[each])}
            if trio.current_time() > gives_up:
                again = {}
            refused |= {each: code for each, code in now.items() if code and each not in again}
            if not again:
                return refused
            await trio.sleep(AGAIN_SECONDS)
            topics = {rename(where.topic) for where in again}
            cluster.forget(topics, None)
            await self.sender.learn_topics(topics)

    async def _ask(self, node: int | None, body: Any) -> dict[Where, int]:
        """Send a request to a broker; return the error, or none, of each partition."""
        sender, link = self.sender, self._links.get(node)
        if link is None or link.ended:
            link = self._links[node] = await sender.connect(node, _CLIENT_ID)
        version = sender.cluster.version(_PRODUCE, NEWEST, body)
        put, answers = trio.open_memory_channel[bytes | None](1)
        began, reason = trio.current_time(), "it closed the connection"
        try:
            with trio.fail_after(ANSWER_SECONDS):
                await sender.request(link, _PRODUCE, version, _CLIENT_ID, body, put.send_nowait)
                frame = await answers.receive()
        except OSError as error:
            frame, reason = None, why(error)
        except trio.TooSlowError:
            frame, reason = None, f"no answer within {ANSWER_SECONDS:g} s"
        if frame is None:
            raise ClusterGone(f"broker {node}: {reason}")
        taken_us = int((trio.current_time() - began) * 1e6)
        sender.sent.latencies.setdefault("Produce", Histogram()).add(taken_us)
        try:
            answer, _ = codec.decode_response_body(frame, _PRODUCE, version)
        except ProtocolError as error:
            raise ClusterGone(f"the answer to a Produce cannot be decoded: {error}") from None
        results = body_facts(None, answer, sender.cluster.names).results
        return {each.where: each.error_code for each in results}
