"""Connections to the brokers of a cluster as a state machine: requests out, responses in.

::

    steps ─ request ─▶ SendLink: kept until it is open ─▶ outputs (`Do`)
      ▲
      └─ Signal ◀─ answered, or why not ◀─ by their order ◀─ opened · received · ended · wake

What goes on over several answers is a generator (`Steps`): it yields the signal that it waits for,
or for how long it pauses. Owns what the cluster has answered of itself (`send.target`), for which
it asks on a connection of its own that is not recorded, and the figures of what was sent.

Invariants: a question is answered, or ended, once; one that was never written may be asked again.
A broker that fails so often in a row is given up, and asked nothing more; where all are, or none of
them can be reached, it ends (`ClusterGone`).
"""

from __future__ import annotations

import enum
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import Any

import attrs

from kproxy.exchange import notes
from kproxy.exchange.entries import NO_RESPONSE, Entry, Frame, Side
from kproxy.proxy import redact
from kproxy.proxy.actions import Address
from kproxy.replay.timers import Timers
from kproxy.send import target
from kproxy.send.sent import Sent
from kproxy.send.substitution import Where
from kproxy.send.target import CannotBeSent, TargetCluster
from kproxy.wire import protocol
from kproxy.wire.protocol import ProtocolError, codec, messages

SECOND_NS = 1_000_000_000
AGAIN_NS = SECOND_NS // 10
PASSES_NS = 10 * SECOND_NS
"""For this long a request is sent again while an error passes, or its broker is not there."""
ANSWER_SECONDS = 30
_FAILURES_MAX = 3
"""After so many in a row a broker is given up."""
_ANSWER_BYTES_MAX = 100 << 20
"""Of one response: as librdkafka takes them by default."""
_SESSION_SHARE = 0.85
"""Of the time that a login holds: then kproxy logs in again (KIP-368)."""
CLOSED = "the broker closed the connection"
_NOT_KAFKA = "the broker does not answer in Kafka's protocol (does its port speak TLS?)"


class ClusterGone(Exception):
    """The cluster cannot be reached, or not any more; the text says why."""


@attrs.define(eq=False)
class Signal:
    """What steps wait for."""

    done: bool = False
    then: Callable[[], None] | None = None


Steps = Generator[Signal | int, None, Any]
"""Yields what it waits for: a signal, or a time in nanoseconds."""


@attrs.define(eq=False)
class Question:
    """A request to a broker."""

    link: SendLink
    api_key: int
    version: int
    correlation_id: int
    frame: bytes
    body: Any
    waits_seconds: float
    """For so long an answer is waited for."""
    expects: bool
    """False: nobody misses the answer."""
    one_way: bool
    written: Signal = attrs.field(factory=Signal)
    answered: Signal = attrs.field(factory=Signal)
    """Both also where it never will be."""
    number: int = 0
    """Of the recorded frames; 0 if they are not recorded."""
    written_ns: int = 0
    """0: never."""
    answer: bytes | None = None
    why: str = ""
    """The reason why there is no answer."""


@attrs.define(eq=False)
class SendLink:
    """A connection to a broker."""

    node: int | None
    client_id: str | None
    is_recorded: bool
    address: Address = ("", 0)
    number: int = 0
    """Of the recorded connection; 0 if it is not recorded."""
    is_open: bool = False
    """True if it takes requests: not yet, or not while it logs in again."""
    blocked_ns: int = 0
    """Since when the broker takes no more bytes; 0: it does."""
    session_ends_ns: int = 0
    unsent: deque[Question] = attrs.field(factory=deque)
    waiting: deque[Question] = attrs.field(factory=deque)
    ended: bool = False
    why: str = ""
    """The reason why it ended."""
    on_flow: Callable[[], None] | None = None
    """Called when it is not blocked any more."""


class Do(enum.Enum):
    """What is to be done with a link; the given value is in brackets."""

    OPEN = "connect to the first of [addresses] that answers, and report `opened` or `ended`"
    WRITE = "send [bytes], and report `blocked` if they are not taken at once, then `drained`"
    LOG_IN = "log in again, and report `logged_in`; nothing else is under way"
    CLOSE = "close it"
    RECORD = "hand [entries] to the recording"


class Sender:
    """The cluster, and what all conversations with it share. Its inputs get the time, and raise
    ClusterGone; `outputs` is what to do then."""

    def __init__(self, bootstrap: Iterable[Address], is_recorded: bool = False) -> None:
        self.cluster = TargetCluster()
        self.sent = Sent()
        self.outputs: list[tuple[Do, SendLink, Any]] = []
        self.now_ns = 0
        self.timers = Timers()
        self.timers.at(0, self._check)
        self._soon: deque[Callable[[], None]] = deque()
        self._bootstrap = list(bootstrap)
        self._is_recorded = is_recorded
        self._questions = self._numbers = 0
        self._links: dict[SendLink, None] = {}
        """Those that have not ended."""
        self._control: dict[int | None, SendLink] = {}
        self._lacking: set[tuple[int, str]] = set()
        """Those whose coordinator was waited for in vain."""
        self._failures: Counter[Address] = Counter()
        """How often in a row connections to a broker failed, without an answer between."""

    # ---- inputs

    def wake(self, now_ns: int) -> None:
        """Do what is due, and one thing that has become possible."""
        self.now_ns = now_ns
        self.timers.run(now_ns)
        if self._soon:
            self._soon.popleft()()

    @property
    def next_ns(self) -> int | None:
        """When to wake it: at once, after each input, while something has become possible."""
        return self.now_ns if self._soon else self.timers.next

    def opened(
        self, link: SendLink, address: Address, login: str, lifetime_ms: int, now_ns: int
    ) -> None:
        """A link is there, by this login ("": none)."""
        self.now_ns, link.address = now_ns, address
        self.sent.connections += 1
        if link.is_recorded:
            link.number = self.sent.connections
            about = {"node_id": link.node, "broker_address": "{}:{}".format(*address)}
            if login:
                about["broker_login"] = login
            said = notes.client_id(link.number, now_ns, link.client_id)
            self._record(link, notes.opened(link.number, now_ns, about), said)
        self.logged_in(link, lifetime_ms, now_ns)

    def logged_in(self, link: SendLink, lifetime_ms: int, now_ns: int) -> None:
        """A login holds for this long; 0: without end."""
        self.now_ns, link.is_open = now_ns, True
        share_ns = int(lifetime_ms * 1_000_000 * _SESSION_SHARE)
        link.session_ends_ns = now_ns + share_ns if share_ns else 0
        self._flow(link)

    def received(self, link: SendLink, data: bytearray, now_ns: int) -> None:
        """Take what has arrived; what is no whole frame stays in `data`."""
        self.now_ns = now_ns
        try:
            for frame in [] if link.ended else codec.take_frames(data, _ANSWER_BYTES_MAX):
                self._take(link, frame)
        except ProtocolError as error:
            self.fail(link, f"{_NOT_KAFKA}: {error}")
        self._flow(link)

    def blocked(self, link: SendLink, now_ns: int) -> None:
        """The broker takes no more for now."""
        self.now_ns = now_ns
        if not link.ended:
            link.blocked_ns = now_ns

    def drained(self, link: SendLink, now_ns: int) -> None:
        """The broker has taken all."""
        self.now_ns, link.blocked_ns = now_ns, 0
        if link.on_flow:
            self.soon(link.on_flow)

    def ended(self, link: SendLink, reason: str, now_ns: int) -> None:
        """A link has ended, or does not come about."""
        self.now_ns = now_ns
        self.close(link, reason)

    # ---- steps

    def soon(self, action: Callable[[], None]) -> None:
        """Do this when all else is done."""
        self._soon.append(action)

    def start(self, steps: Steps) -> None:
        """Go through steps."""
        self.soon(partial(self._go_on, steps))

    def _go_on(self, steps: Steps) -> None:
        wanted = next(steps, None)
        while isinstance(wanted, Signal) and wanted.done:
            wanted = next(steps, None)
        if isinstance(wanted, int):
            self.timers.at(self.now_ns + wanted, lambda now_ns: self._go_on(steps))
        elif wanted is not None:
            wanted.then = partial(self._go_on, steps)

    def fire(self, signal: Signal) -> None:
        """Have what waits for a signal go on."""
        if not signal.done:
            signal.done = True
            if signal.then:
                self.soon(signal.then)

    # ---- what the cluster says of itself

    def learn_topics(self, topics: Iterable[str]) -> Steps:
        """Ask for the leaders and ids of topics."""
        yield from self.ask(target.METADATA, None, target.metadata_request(topics))

    def learn_leaders(self, wanted: set[Where]) -> Steps:
        """Ask until these partitions have leaders."""
        gives_up_ns = self.now_ns + PASSES_NS
        missing = {topic for topic, _ in wanted}
        while missing and self.now_ns < gives_up_ns:
            yield from self.learn_topics(missing)
            missing = {topic for topic, _ in wanted - self.cluster.leaders.keys()}
            yield AGAIN_NS

    def learn_coordinator(self, key: tuple[int, str]) -> Steps:
        """Ask for the coordinator of a group or a transactional id, until there is one; only once
        where it was waited for in vain."""
        gives_up_ns = self.now_ns + (0 if key in self._lacking else PASSES_NS)
        while True:
            asked = target.coordinator_request(key)
            body = yield from self.ask(target.FIND_COORDINATOR, None, asked)
            found = next(iter(body.coordinators), body)
            if not found.error_code:
                self.cluster.coordinators[key] = found.node_id
                self.cluster.nodes.setdefault(found.node_id, (found.host, found.port))
                self._lacking.discard(key)
                return
            if self.now_ns >= gives_up_ns:
                self._lacking.add(key)
                return
            yield AGAIN_NS

    def ask(self, api_key: int, version: int | None, body: Any, node: int | None = None) -> Steps:
        """Ask the cluster, or a broker of it, something of kproxy's own, which is not recorded;
        return the answer, None if this broker gives none. Without a version it is the newest that
        both know.

        Raises: ClusterGone.
        """
        try:
            if version is None:
                version = self.cluster.version(api_key, target.NEWEST, body)
        except CannotBeSent as error:
            raise ClusterGone(f"the cluster lacks what is needed: {error}") from None
        left = _FAILURES_MAX  # a link that was idle may have been closed
        while True:
            link = self._control.get(node)
            if link is None or link.ended:
                link = self._control[node] = self.link(node, "kproxy", is_recorded=False)
            question = self.request(link, api_key, version, body)
            yield question.answered
            left -= 1
            if question.answer is not None or not question.written_ns or not left:
                break
        if question.answer is None and node is not None:
            return None
        if question.answer is None:
            hint = " (does it want TLS, or a login?)" if question.why == CLOSED else ""
            raise ClusterGone(f"{question.why}{hint}")
        try:
            found, _ = codec.decode_response_body(question.answer, api_key, version)
        except ProtocolError as error:
            raise ClusterGone(f"{_NOT_KAFKA}: {error}") from None
        if api_key == codec.API_VERSIONS:
            self.cluster.learn_versions(found)
        elif api_key == target.METADATA:
            self.cluster.learn_metadata(found)
        return found

    # ---- links

    def link(self, node: int | None, client_id: str | None, is_recorded: bool = True) -> SendLink:
        """Connect to a broker, or to any; the link has ended if the broker is given up.

        Raises: ClusterGone.
        """
        link = SendLink(node, client_id, is_recorded)
        nodes, lost = self.cluster.nodes, self.sent.lost
        known = list(dict.fromkeys((*nodes.values(), *self._bootstrap)))
        addresses = known if node is None or node not in nodes else [nodes[node]]
        left = [each for each in addresses if each not in lost]
        if left:
            self.outputs.append((Do.OPEN, link, sorted(left, key=self._failures.__getitem__)))
            self._links[link] = None
            return link
        link.ended, link.why = True, lost[addresses[0]]
        if not {*known} - lost.keys():
            raise ClusterGone("{}:{} is given up: {}".format(*addresses[0], link.why))
        return link

    def give_up(self, address: Address, reason: str) -> None:
        """Ask a broker nothing more."""
        self.sent.lost.setdefault(address, reason)

    def fail(self, link: SendLink, reason: str) -> None:
        """Close a link to a broker that does not do what brokers do; count it."""
        if not link.ended:
            self._failures[link.address] += 1
            if self._failures[link.address] >= _FAILURES_MAX:
                self.give_up(link.address, f"{_FAILURES_MAX} times in a row: {reason}")
        self.close(link, reason)

    def close(self, link: SendLink, reason: str = "") -> None:
        """Close a link; what waits for responses on it gets none."""
        if link.ended:
            return
        link.ended, link.is_open, link.why = True, False, reason
        self._links.pop(link, None)
        self.drained(link, self.now_ns)  # it holds up nobody
        self.outputs.append((Do.CLOSE, link, None))
        for question in (*link.waiting, *link.unsent):
            question.why = reason
            self.fire(question.written)
            self.fire(question.answered)
        link.waiting.clear()
        link.unsent.clear()
        if link.number:
            side = "broker" if reason else "client"
            how = "reset" if reason else "eof"
            self._record(link, notes.closed(link.number, self.now_ns, {}, how, reason, side))

    def request(
        self,
        link: SendLink,
        api_key: int,
        version: int,
        body: Any,
        *,
        waits_ms: int = 0,
        expects: bool = True,
        one_way: bool = False,
    ) -> Question:
        """Send a request on a link.

        Raises: ProtocolError.
        """
        self._questions = correlation_id = self._questions % 0x7FFFFFFF + 1
        header = messages.RequestHeader(
            api_key=api_key,
            api_version=version,
            correlation_id=correlation_id,
            client_id=link.client_id,
        )
        frame = protocol.encode_request(protocol.Request(header, body))
        kind, waits = (api_key, version, correlation_id), ANSWER_SECONDS + waits_ms / 1000
        question = Question(link, *kind, frame, body, waits, expects, one_way)
        if link.ended:
            question.why = link.why
            question.written.done = question.answered.done = True
        else:
            link.unsent.append(question)
            self.soon(partial(self._flow, link))  # by then it is later: what it takes to make it
        return question

    def _flow(self, link: SendLink) -> None:
        """Write what is not sent yet; before that, if its time has come, log in again."""
        while link.is_open and link.unsent:
            if link.session_ends_ns and self.now_ns >= link.session_ends_ns:
                if link.waiting:
                    return
                link.is_open = False
                self.outputs.append((Do.LOG_IN, link, None))
                return
            question = link.unsent.popleft()
            question.written_ns, frame = self.now_ns, question.frame
            question.frame = b""
            if link.number:
                self._numbers += 1
                question.number = self._numbers
                self.sent.request_bytes += len(frame)
                flags = NO_RESPONSE if question.one_way else 0
                self._record_frame(Side.CLIENT, link, question, frame, flags)
            self.outputs.append((Do.WRITE, link, frame))
            self.fire(question.written)
            if question.one_way:
                self.fire(question.answered)
            else:
                link.waiting.append(question)

    def _check(self, now_ns: int) -> None:
        """End what is not answered in time, as its client would."""
        for link in [*self._links]:
            open_ = next((each for each in link.waiting if not each.answered.done), None)
            if link.blocked_ns and now_ns > link.blocked_ns + ANSWER_SECONDS * SECOND_NS:
                self.fail(link, f"takes no more data for {ANSWER_SECONDS} s")
            elif open_ and now_ns > open_.written_ns + open_.waits_seconds * SECOND_NS:
                open_.why = f"no answer in {open_.waits_seconds:g} s"
                self.fire(open_.answered)
                if open_.expects:
                    self.fail(link, open_.why)
        self.timers.at(now_ns + SECOND_NS, self._check)

    def _take(self, link: SendLink, frame: bytes) -> None:
        """Take a response.

        Raises: ProtocolError.
        """
        if not link.waiting:
            raise ProtocolError("it answers what nobody asked")
        question = link.waiting[0]
        if int.from_bytes(frame[4:8], "big", signed=True) != question.correlation_id:
            raise ProtocolError("it answers another request")
        link.waiting.popleft()
        if question.number:
            self._record_frame(Side.BROKER, link, question, frame)
            self.sent.response_bytes += len(frame)
            self._failures.pop(link.address, None)
        if not question.answered.done:
            question.answer = frame
            self.fire(question.answered)

    # ---- the recording

    def _record_frame(
        self, side: Side, link: SendLink, question: Question, data: bytes, flags: int = 0
    ) -> None:
        if self._is_recorded:
            key, version, now_ns = question.api_key, question.version, self.now_ns
            kept = redact.redact(data, side, key, version) if redact.is_sensitive(key) else None
            kind = side, link.number, question.number, key, version, question.correlation_id
            frame = Frame(*kind, now_ns, [kept or data], len(data), flags, sent_ns=now_ns)
            self._record(link, frame)

    def _record(self, link: SendLink, *entries: Entry) -> None:
        if self._is_recorded:
            self.outputs.append((Do.RECORD, link, entries))
